"""The main job on real engines: a call goes through pinned, seeded, recorded, and the record is what happened."""

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.live.harness import (
    AS_STREAM,
    LOGPROB_TOLERANCE,
    PATIENCE_S,
    Site,
    Tell,
    at_once,
    largest_difference,
    plain,
    site_before,
    tokens_of,
)
from tests.live.speaking import ADD_TOOL, NO_END, NO_THINKING, forced_call

PROMPTS = ("import os", "def main():", "class A:", "return")


def test_the_engine_is_recognised_with_its_version_context_and_vocabulary(site: Site) -> None:
    """`auto` finds out what serves there, and how many ids the model knows."""
    (engine,) = site.proxy.control.get("/engines").json()["engines"]

    assert (engine["kind"], engine["problem"]) == (site.kind, None)
    assert engine["version"] == {"vllm": "0.32.0", "sglang": "0.5.23"}[site.kind]
    assert (engine["context_length"], engine["vocabulary"]) == (4096, 1024)


def test_generation_config_does_not_leak_into_a_pinned_call(site: Site) -> None:
    """The model folder asks for top_k 20; through the proxy many tokens come from beyond the 20 likeliest."""
    client = site.rollout("leak")
    client.chat("import os", max_tokens=64, logprobs=True, top_logprobs=20)

    assert unlikely(client.call()["top_logprobs"]) > 16


def test_generation_config_does_leak_without_the_proxy(site: Site) -> None:
    """The control experiment: the same engine asked plainly draws from the 20 likeliest only."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "import os"}], "max_tokens": 64, "seed": 5}
    answer = site.direct({**body, "temperature": 1, "top_p": 1, "logprobs": True, "top_logprobs": 20})

    assert unlikely(answer["choices"][0]["logprobs"]["content"]) < 8


def unlikely(tokens: list[dict[str, Any]]) -> int:
    """How many sampled tokens were less likely than every other one listed.

    vLLM lists the sampled token among the 20, so the 20th likeliest, which top_k 20 allows, counts as well.
    """
    others = ([other["logprob"] for other in token["top_logprobs"]] for token in tokens)
    return sum(
        token["logprob"] < min(logprob for logprob in listed if logprob != token["logprob"])
        for token, listed in zip(tokens, others, strict=True)
    )


def test_the_same_identity_draws_the_same_tokens_again_also_sixteen_at_once(site: Site) -> None:
    """Four samples of four groups, one after another and then all at once."""
    pairs = [(group, sample) for group in range(4) for sample in range(4)]

    def draw(group: int, sample: int) -> tuple[int, ...]:
        return tokens_of(site.rollout(f"same-{group}", sample), PROMPTS[group], max_tokens=24)

    in_a_row = [draw(group, sample) for group, sample in pairs]
    side_by_side = at_once([lambda pair=pair: draw(*pair) for pair in pairs])

    assert side_by_side == in_a_row
    assert len(set(in_a_row)) == len(pairs), "samples of a group must differ"


@pytest.mark.parametrize("text", PROMPTS)
def test_a_streamed_reply_has_the_tokens_of_the_whole_one(site: Site, text: str) -> None:
    """Same seed, same ids; logprobs within 1e-4 (batching and caches move SGLang's by some 1e-6)."""
    whole, streamed = site.rollout(f"modes-{text}"), site.rollout(f"modes-{text}")
    whole.chat(text, max_tokens=40)
    streamed.stream(text, max_tokens=40)
    one, other = whole.call(), streamed.call()

    assert one["seed"] == other["seed"]
    assert one["prompt_token_ids"] == other["prompt_token_ids"]
    assert one["completion_token_ids"] == other["completion_token_ids"]
    assert one["logprobs"] == pytest.approx(other["logprobs"], abs=1e-4)


@AS_STREAM
def test_the_engines_tool_parser_reaches_the_client(site: Site, stream: bool) -> None:  # noqa: FBT001
    """A call steered by a pattern arrives parsed, is marked constrained, and its id is the proxy's own."""
    client = site.rollout(f"tools-{stream}")
    if stream:
        client.stream("add 1 and 2", **forced_call(site.kind))
    else:
        client.chat("add 1 and 2", **forced_call(site.kind))
    call = client.call()
    (tool_call,) = call["message"]["tool_calls"]

    assert call["finish_reason"] == "tool_calls"
    assert set(json.loads(tool_call["function"]["arguments"])) == {"a", "b"}
    assert tool_call["id"].startswith("call_")
    assert call["sampling"]["constrained"] == ["structured_outputs" if site.kind == "vllm" else "regex"]


def test_a_client_that_leaves_frees_the_engine_after_the_grace_time(site: Site, tmp_path: Path) -> None:
    """The partial reply is in the record, and the engine is idle long before it could have drawn the whole."""
    wanted = 3500
    body = {"messages": [{"role": "user", "content": "import"}], "stream": True, "max_tokens": wanted, **NO_END}
    with site_before(site.engine, tmp_path, timeouts={"orphan_grace_s": 0.1}) as own:
        client = own.rollout("leaver")
        with client.http.stream("POST", "/chat/completions", json=body) as response:
            events = (line for line in response.iter_lines() if line)
            assert len(list(itertools.islice(events, 8))) == 8
        call = client.call()
        drawn_since = drawn_until_idle(own, most=wanted // 2)

    assert (call["failure"]["kind"], call["deliveries"][0]["outcome"]) == ("client_gone", "client_gone")
    assert drawn_since < wanted // 2


def drawn_until_idle(site: Site, *, most: int) -> int:
    """How many tokens the engine drew for each of its calls until it was idle, told by the calls that others make."""
    for drawn in range(50, most, 50):
        site.works_on(50)
        if not site.running_requests():
            return drawn
    return most


def test_a_length_beyond_the_context_is_clamped_to_it(site: Site) -> None:
    """What does not fit is cut to the room that is left, measured by the engine's own tokenizer."""
    client = site.rollout("clamped")
    answer = client.chat("word " * 1000, max_tokens=4096)
    call = client.call()

    assert answer.status_code == 200, answer.text
    assert call["sampling"]["asked"]["max_tokens"] == 4096
    assert call["sampling"]["length"]["max_tokens"] == 4096 - len(call["prompt_token_ids"])


def test_a_prompt_beyond_the_context_is_the_clients_error(site: Site) -> None:
    """400 in OpenAI's form, by code and not by guess, whether or not a length was asked for."""
    client = site.rollout("too-long")
    answers = [client.chat("word " * 6000, max_tokens=5), client.chat("word " * 6000)]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert {answer.json()["error"]["code"] for answer in answers} == {"context_length_exceeded"}


@AS_STREAM
def test_the_openai_sdk_holds_a_conversation_with_tools(site: Site, stream: bool) -> None:  # noqa: FBT001
    """Two turns; every call reads back complete, and the second goes on from the first."""
    client = site.rollout(f"sdk-{stream}")
    sdk = openai.OpenAI(base_url=client.created["base_url"], api_key=client.created["api_key"], max_retries=0)
    forced = forced_call(site.kind)
    extra = {
        name: forced.pop(name) for name in ("structured_outputs", "regex", "chat_template_kwargs") if name in forced
    }
    messages: list[Any] = [{"role": "user", "content": "add 1 and 2"}]
    said = said_by(sdk, stream, messages=messages, extra_body=extra, **forced)
    assert said.tool_calls
    messages += [
        said.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "3"},
    ]
    second = sdk.chat.completions.create(
        model="policy", messages=messages, tools=[ADD_TOOL], max_tokens=30, stream=stream, extra_body=NO_THINKING
    )
    replies = list(second) if stream else [second]
    first_call, second_call = client.calls()

    assert [choice.finish_reason for reply in replies for choice in reply.choices][-1] in {"stop", "length"}
    assert second_call["parent"] == {"call_id": first_call["call_id"], "outcome": "resolved", "reason": "one_match"}
    for call in client.calls():
        assert call["state"] == "done"
        assert call["stream"] is stream
        assert call["capture"] == {"complete": True, "gaps": []}
        assert len(call["logprobs"]) == len(call["completion_token_ids"]) == call["usage"]["completion_tokens"]


def said_by(sdk: openai.OpenAI, stream: bool, **asked: Any) -> Any:  # noqa: FBT001
    """The assistant's message, by the SDK's whole or streaming door."""
    if not stream:
        return sdk.chat.completions.create(model="policy", **asked).choices[0].message
    with sdk.chat.completions.stream(model="policy", **asked) as events:
        return events.get_final_completion().choices[0].message


def test_choices_differ_and_each_can_be_drawn_alone(site: Site) -> None:
    """n is a number of draws with seeds of their own, which neither engine does by itself."""
    client = site.rollout("choices")
    answer = client.chat("import os", n=3, max_tokens=16)
    calls = client.calls()
    drawn = [call["completion_token_ids"] for call in calls]

    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]
    assert len({tuple(ids) for ids in drawn}) == len({call["seed"]["value"] for call in calls}) == 3
    assert [alone(site, call) for call in calls] == drawn


def alone(site: Site, call: dict[str, Any]) -> list[int]:
    """The ids that the engine itself draws for a call's prompt, seed and sampling."""
    body = {"model": "tiny", "messages": call["messages"], "seed": call["seed"]["value"], "return_token_ids": True}
    answer = site.direct({**body, **call["sampling"]["effective"], **call["sampling"]["length"]})
    (choice,) = answer["choices"]
    return list(choice["token_ids"] if site.kind == "vllm" else choice["response_token_ids"])


def test_arguments_that_are_no_json_do_not_break_the_next_turn(site: Site) -> None:
    """What a model wrote is data, also when a client echoes it back broken."""
    broken = {"id": "call_x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}
    messages = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [broken]},
        {"role": "tool", "tool_call_id": "call_x", "content": "error: not JSON"},
    ]
    answer = site.rollout("broken").post({"messages": messages, "tools": [ADD_TOOL], "max_tokens": 8})

    assert answer.status_code == 200, answer.text


def test_the_proxys_own_models_route_asks_the_engine_nothing(site: Site) -> None:
    """Discovery leaves no trace in the rollout."""
    client = site.rollout("discovery")

    assert client.http.get("/models").json()["data"][0]["id"] == "tiny"
    assert site.proxy.calls(client.rollout_id) == []


def test_recorded_logprobs_are_the_policys_own(site: Site, tell: Tell) -> None:
    """The on-policy proof: transformers over the recorded ids on the same weights says the same, within 1e-4."""
    calls = plain(site.all_calls())
    worst = largest_difference(site.engine, calls)
    tell(f"{site.kind}: chat: {len(calls)} calls within {worst:.1e} of transformers")

    assert len(calls) > 40
    assert worst < LOGPROB_TOLERANCE


def test_the_engine_is_alive_at_the_end(site: Site) -> None:
    """Nothing above harmed it."""
    assert httpx.get(f"{site.engine.url}/v1/models", timeout=PATIENCE_S).status_code == 200
