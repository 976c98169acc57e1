"""The Responses and completions APIs on real engines: read by the official client, captured to the token."""

from typing import Any

import openai
import pytest

from tests.live.harness import AS_STREAM, LOGPROB_TOLERANCE, Site, Tell, largest_difference, plain
from tests.live.speaking import NO_THINKING, ONE_CALL, steered
from tests.served import RolloutClient

ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
IDS = [300, 301, 302, 303]


def sdk_of(client: RolloutClient) -> openai.OpenAI:
    return openai.OpenAI(base_url=client.created["base_url"], api_key=client.created["api_key"], max_retries=0)


def respond(sdk: openai.OpenAI, *, stream: bool, **asked: Any) -> Any:
    """The response, by the client's whole or streaming door."""
    asked = {"model": "policy", "tools": [ADD], **asked}
    if not stream:
        return sdk.responses.create(**asked)
    # Steered replies may be cut by their length, which the helper's own end does not know.
    return list(sdk.responses.create(stream=True, **asked))[-1].response


@AS_STREAM
@pytest.mark.parametrize("keeps", ["client", "proxy"])
def test_a_conversation_with_tools(site: Site, keeps: str, stream: bool) -> None:  # noqa: FBT001
    """Two turns, kept by either side; the second goes on from the first, whatever the engine's parsers did."""
    client = site.rollout(f"responses-{keeps}-{stream}")
    sdk = sdk_of(client)
    forced = steered(site.kind, ONE_CALL) | NO_THINKING
    first = respond(sdk, stream=stream, input="add 1 and 2", max_output_tokens=150, extra_body=forced)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    if keeps == "client":
        echoed = [item.model_dump(exclude_none=True) for item in first.output]
        given: dict[str, Any] = {"input": [{"role": "user", "content": "add 1 and 2"}, *echoed, result], "store": False}
    else:
        given = {"input": [result], "previous_response_id": first.id}
    second = respond(sdk, stream=stream, max_output_tokens=20, extra_body=NO_THINKING, **given)
    one, other = client.calls()

    assert first.status == "completed"
    assert second.status in {"completed", "incomplete"}
    assert other["parent"]["call_id"] == one["call_id"]
    assert other["prefix"]["supplied"], other["prefix"]
    assert all(each["capture"] == {"complete": True, "gaps": []} for each in (one, other))
    assert second.usage.output_tokens == len(other["completion_token_ids"])


def test_a_reply_and_its_stream_say_the_same(site: Site) -> None:
    """Same seed, same items, same tokens."""
    clients = [site.rollout("responses-modes") for _mode in range(2)]
    told = [
        respond(sdk_of(client), stream=client is clients[1], input="import os", max_output_tokens=40)
        for client in clients
    ]
    items = [[item.model_dump(exclude={"id"}, exclude_none=True) for item in response.output] for response in told]

    assert items[0] == items[1]
    assert clients[0].call()["completion_token_ids"] == clients[1].call()["completion_token_ids"]


@pytest.mark.parametrize("prompt", ["import os\n", IDS], ids=["text", "ids"])
def test_completions_are_captured_to_the_token(site: Site, prompt: Any) -> None:
    """Whole and streamed, from text and from ids: one draw, its ids, and the logprobs that were asked for."""
    clients = [site.rollout(f"completions-{type(prompt).__name__}") for _mode in range(2)]
    asked: dict[str, Any] = {"model": "policy", "prompt": prompt, "max_tokens": 12, "logprobs": 2, "n": 2}
    whole = sdk_of(clients[0]).completions.create(**asked)
    pieces = list(sdk_of(clients[1]).completions.create(stream=True, stream_options={"include_usage": True}, **asked))
    texts = ["", ""]
    for piece in pieces:
        for choice in piece.choices:
            texts[choice.index] += choice.text
    one, other = clients[0].calls(), clients[1].calls()

    assert [choice.text for choice in whole.choices] == texts
    assert [call["completion_token_ids"] for call in one] == [call["completion_token_ids"] for call in other]
    assert all(call["capture"]["complete"] and len(call["logprobs"]) == 12 for call in (*one, *other))
    assert prompt in (one[0]["prompt_token_ids"], "import os\n")
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.token_logprobs == one[0]["logprobs"]
    assert pieces[-1].usage == whole.usage


def test_completions_without_logprobs_are_captured_as_well(site: Site) -> None:
    """The client gets none; the record has all."""
    client = site.rollout("completions-plain")
    reply = sdk_of(client).completions.create(model="policy", prompt=IDS, stop=["\n\n\n"])
    call = client.call()

    assert reply.choices[0].logprobs is None
    assert call["capture"]["complete"]
    assert len(call["logprobs"]) == len(call["completion_token_ids"])


def test_a_prompt_goes_on_from_a_reply_by_its_tokens(site: Site) -> None:
    """One branch at assembly."""
    client = site.rollout("completions-joined")
    sdk = sdk_of(client)
    sdk.completions.create(model="policy", prompt=IDS, max_tokens=6)
    first = client.call()
    sdk.completions.create(model="policy", prompt=[*IDS, *first["completion_token_ids"], 310], max_tokens=6)
    client.calls()
    (branch,) = site.proxy.control.get(f"/rollouts/{client.rollout_id}/trajectory").json()["branches"]

    assert len(branch["call_ids"]) == 2
    assert sum(branch["loss_mask"]) == 12


def test_a_foreign_id_does_not_reach_the_engine(site: Site) -> None:
    """SGLang would not live to tell."""
    client = site.rollout("completions-foreign")
    answer = client.http.post("/completions", json={"prompt": [1, 5000]})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_token_id")
    assert client.chat("still there?", max_tokens=2).status_code == 200


def test_recorded_logprobs_are_the_policys_own(site: Site, tell: Tell) -> None:
    """Of completions too: transformers over the recorded ids on the same weights says the same, within 1e-4."""
    calls = plain(site.all_calls())
    worst = largest_difference(site.engine, calls)
    tell(f"{site.kind}: Responses and completions: {len(calls)} calls within {worst:.1e} of transformers")

    assert len([call for call in calls if call["api"] == "completions"]) > 8
    assert worst < LOGPROB_TOLERANCE
