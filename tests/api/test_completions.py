"""The completions API on real sockets: one prompt, as text or as ids, and what follows it."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.api.conftest import Start
from tests.api.harness import NEUTRAL, Gate, Json, error_of, until
from tests.api.test_sdk import sdk_of
from tests.fakes import FakeEngine, Fault, Say
from tests.fakes.tokens import encode
from tests.served import RolloutClient, ServedProxy

AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TEXT = "def main():"
IDS = list(encode(TEXT))
LONG = Say("    print('hello, world')")
PROMPTS = pytest.mark.parametrize("prompt", [TEXT, IDS], ids=["text", "ids"])


@pytest.fixture
def rollout(rollout: RolloutClient, engine: FakeEngine) -> RolloutClient:
    """A rollout whose engine says more than fits the usual length."""
    engine.always(LONG)
    return rollout


@pytest.fixture
def sdk(rollout: RolloutClient) -> Iterator[openai.OpenAI]:
    """The client of one rollout; it never retries."""
    with sdk_of(rollout) as made:
        yield made


def post(client: RolloutClient, **fields: Any) -> Any:
    return client.http.post("/completions", json={"model": "gpt-9", "prompt": TEXT, **fields})


def complete(client: RolloutClient, *, stream: bool = False, **fields: Any) -> list[Json]:
    """One call; its choices, every byte held to the client's types."""
    if not stream:
        answer = post(client, **fields)
        assert answer.status_code == 200, answer.text
        Completion.model_validate(answer.json())
        return list(answer.json()["choices"])
    choices: dict[int, Json] = {}
    for event in events(client, **fields):
        for said in event["choices"]:
            known = choices.setdefault(said["index"], {"index": said["index"], "text": "", "logprobs": None})
            known["text"] += said["text"]
            known["finish_reason"] = said["finish_reason"]
            known["logprobs"] = _joined(known["logprobs"], said["logprobs"])
    return [choices[index] for index in sorted(choices)]


def events(client: RolloutClient, **fields: Any) -> list[Json]:
    body = {"model": "gpt-9", "prompt": TEXT, "stream": True, **fields}
    with client.http.stream("POST", "/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    told = [json.loads(line) for line in lines[:-1]]
    for event in told:
        # A stream's choices have no finish reason until the last, which the type of whole replies does not know.
        for choice in event["choices"]:
            assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    return told


def _joined(known: Json | None, said: Json | None) -> Json | None:
    if said is None or known is None:
        return said if known is None else known
    return {name: None if known[name] is None else known[name] + said[name] for name in known}


@AS_STREAM
@PROMPTS
def test_a_reply_and_its_record(rollout: RolloutClient, prompt: Any, *, stream: bool) -> None:
    """Both forms of prompt and of reply; ids that were given are the ids that were computed on."""
    (choice,) = complete(rollout, stream=stream, prompt=prompt)
    call = rollout.call()

    assert call["message"]["content"] == choice["text"]
    assert (call["api"], call["finish_reason"], call["capture"]["complete"]) == ("completions", "length", True)
    assert call["prompt_token_ids"] == IDS
    assert len(call["completion_token_ids"]) == len(call["logprobs"]) == 16
    content = prompt if prompt == TEXT else [{"type": "token_ids", "token_ids": prompt}]
    assert call["messages"] == [{"role": "prompt", "content": content}]
    assert call["request"]["prompt"] == prompt
    assert call["parent"] == {"call_id": None, "outcome": "root", "reason": "plain_prompt"}


def test_the_engine_is_asked_for_one_thing_by_the_same_rules(rollout: RolloutClient, engine: FakeEngine) -> None:
    """The pin holds, and what the client cannot have stays out."""
    complete(rollout, temperature=0.1, top_k=5, user="u", stop=["\n\n"], max_tokens=7)
    sent, call = engine.requests[-1], rollout.call()

    assert sent.path == "/v1/completions"
    assert {name: sent.body[name] for name in NEUTRAL} == NEUTRAL
    assert (sent.body["max_tokens"], sent.body["stop"], sent.body["n"]) == (7, ["\n\n"], 1)
    assert sent.body["seed"] == call["seed"]["value"]
    assert call["sampling"]["overridden"] == ["temperature", "top_k"]
    assert call["sampling"]["ignored"] == ["user"]


def test_both_modes_draw_the_same(proxy: ServedProxy, engine: FakeEngine) -> None:
    """One seed, one text, one list of logprobs."""
    clients = [proxy.rollout(run=f"{run}-{proxy.url}", group="plain") for run in ("whole", "streamed")]
    one, other = (complete(client, stream=client is clients[1], logprobs=2, n=2) for client in clients)

    assert one == other
    assert one[0]["text"] != one[1]["text"]


@AS_STREAM
@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_are_lists_side_by_side(rollout: RolloutClient, top: int, *, stream: bool) -> None:
    """One entry a token, offsets counted from the beginning of the reply."""
    (choice,) = complete(rollout, stream=stream, logprobs=top, max_tokens=5)
    told, call = choice["logprobs"], rollout.call()

    assert told["token_logprobs"] == call["logprobs"]
    assert len(told["tokens"]) == len(told["text_offset"]) == 5
    assert told["text_offset"][0] == 0
    assert told["text_offset"][-1] == len("".join(told["tokens"][:-1]))
    assert (told["top_logprobs"] is None) if top == 0 else all(len(one) >= top for one in told["top_logprobs"])


def test_the_client_reads_both_forms(sdk: openai.OpenAI) -> None:
    """OpenAI's own."""
    whole = sdk.completions.create(model="gpt-9", prompt=TEXT)
    pieces = list(
        sdk.completions.create(model="gpt-9", prompt=TEXT, stream=True, stream_options={"include_usage": True})
    )

    assert (whole.model, whole.choices[0].finish_reason) == ("gpt-9", "length")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    assert pieces[-2].choices[0].finish_reason == "length"
    assert pieces[-1].usage == whole.usage


def test_usage_comes_only_where_it_is_asked_for(rollout: RolloutClient) -> None:
    """As the API has it."""
    assert all("usage" not in event for event in events(rollout))


def test_a_prompt_that_goes_on_from_a_reply_is_joined_by_its_tokens(rollout: RolloutClient) -> None:
    """At assembly, where the ids are known: one branch, the reply of each turn trained once."""
    complete(rollout, prompt=IDS)
    first = rollout.call()
    longer = [*first["prompt_token_ids"], *first["completion_token_ids"], *encode("\nresult")]
    complete(rollout, prompt=longer)
    complete(rollout, prompt="something else")
    found = rollout.proxy.control.get(f"/rollouts/{rollout.rollout_id}/trajectory").json()
    second = rollout.calls()[1]
    branch = next(one for one in found["branches"] if second["call_id"] in one["call_ids"])

    assert branch["call_ids"] == [first["call_id"], second["call_id"]]
    assert branch["token_ids"] == second["prompt_token_ids"] + second["completion_token_ids"]
    assert sum(branch["loss_mask"]) == 32
    assert (found["health"]["by_tokens"], found["health"]["roots"], found["health"]["unresolved"]) == (1, 2, 0)


def test_texts_and_ids_have_contexts_of_their_own(rollout: RolloutClient) -> None:
    """What a text becomes, nobody here can know."""
    for prompt in (TEXT, IDS, [TEXT], [IDS]):
        complete(rollout, prompt=prompt)
    contexts = [call["context"] for call in rollout.calls()]

    assert contexts[:2] == contexts[2:]
    assert contexts[0] != contexts[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [["a"]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"echo": "x"}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": 5}, "stop"),
        ({"stream": "x"}, "stream"),
        ({"model": 5}, "model"),
        ({"temperature": "hot"}, "temperature"),
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_field_is_named_and_changes_nothing(rollout: RolloutClient, fields: Json, param: str) -> None:
    """Several prompts, echoes and searches are other things than a record of one reply."""
    answer = post(rollout, **fields)

    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert rollout.proxy.calls(rollout.rollout_id) == []


def test_what_says_nothing_is_taken(rollout: RolloutClient) -> None:
    """Values by which some clients leave a field out."""
    complete(rollout, echo=False, best_of=1, suffix="", logprobs=None, n=1)

    assert rollout.call()["state"] == "done"


def test_a_foreign_id_never_reaches_an_engine(rollout: RolloutClient, engine: FakeEngine) -> None:
    """It would take a real SGLang down with all that it serves."""
    before = len(engine.requests)
    answer = post(rollout, prompt=[1, 2, 100_000])

    assert (answer.status_code, error_of(answer)["code"]) == (400, "unknown_token_id")
    assert (len(engine.requests), engine.is_alive) == (before, True)


@PROMPTS
def test_a_length_beyond_the_context_is_cut_to_it(rollout: RolloutClient, engine: FakeEngine, prompt: Any) -> None:
    """Ids are counted here, texts by the engine's tokenizer."""
    complete(rollout, prompt=prompt, max_tokens=4096, stop=["a", "e", "i", "o", "u"])

    assert engine.requests[-1].body["max_tokens"] == 4096 - len(IDS)


@PROMPTS
def test_a_prompt_that_fills_the_context_is_told(rollout: RolloutClient, prompt: Any) -> None:
    """Before the engine is asked."""
    answer = post(rollout, prompt=prompt * 500)

    assert (answer.status_code, error_of(answer)["code"]) == (400, "context_length_exceeded")


def test_the_end_waits_for_the_record(start: Start) -> None:
    """As in every API."""
    proxy, engine = start()
    engine.always(LONG)
    rollout, gate = proxy.rollout(), Gate(proxy)
    seen: list[str] = []
    body = {"prompt": TEXT, "stream": True}
    with rollout.http.stream("POST", "/completions", json=body) as answer:
        lines = answer.iter_lines()
        while sum('"text"' in line for line in seen) < 15:
            seen.append(next(lines))
        until(lambda: gate.waiting)
        gate.open()
        rest = list(lines)

    assert '"finish_reason":"length"' not in "".join(seen)
    assert '"finish_reason":"length"' in "".join(rest)


@pytest.mark.parametrize(
    ("fault", "code"), [(Fault.no_ids(Say("so")), "missing_ids"), (Fault.cut(3, Say("so be it")), "engine_cut")]
)
def test_a_broken_reply_is_an_error(rollout: RolloutClient, engine: FakeEngine, fault: Fault, code: str) -> None:
    """And on record as one."""
    engine.script(fault, fault)
    answer = post(rollout, max_tokens=300)

    assert (answer.status_code, error_of(answer)["code"]) == (502, code)
    assert rollout.call()["failure"]["kind"] == code


@PROMPTS
def test_a_completion_can_be_drawn_again(proxy: ServedProxy, engine: FakeEngine, prompt: Any) -> None:
    """By its exact ids, through its own route."""
    rollout = proxy.rollout()
    complete(rollout, prompt=prompt, stream=True)
    rollout.calls()
    told = proxy.control.post(f"/rollouts/{rollout.rollout_id}/replay", json={})
    (verdict,) = [json.loads(line)["verdict"] for line in told.text.splitlines() if '"verdict"' in line]

    assert (verdict["verdict"], verdict["tokens"]) == ("same", len(rollout.call()["completion_token_ids"]))
    assert engine.requests[-1].path == "/v1/completions"
