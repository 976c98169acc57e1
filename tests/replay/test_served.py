"""Replay through the route, on a simulated engine that draws by its seed: what comes out the same, and what not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, Fault, Say
from tests.replay.harness import replay
from tests.served import READER, RolloutClient, ServedProxy, served, settings_for

ADD_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    """A toy model behind each dialect."""
    with FakeEngine(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path_factory.mktemp("replay"), engine.url)) as running:
        yield running


def two_turns(client: RolloutClient) -> None:
    """A question, and another one behind its answer."""
    asked = {"role": "user", "content": "What is 12 * 7?"}
    said = client.post({"messages": [asked], "max_tokens": 40}).json()["choices"][0]["message"]
    client.post({"messages": [asked, said, {"role": "user", "content": "Sure?"}], "max_tokens": 40})


Asking = Callable[[RolloutClient], Any]
WAYS: dict[str, Asking] = {
    "whole": lambda client: client.chat("hello"),
    "streamed": lambda client: client.stream("hello"),
    "cut by length": lambda client: client.chat("hello", max_tokens=3),
    "by a stop string": lambda client: client.chat("hello", stop=["e"], max_tokens=60),
    "choices": lambda client: client.chat("hello", n=3),
    "two turns": two_turns,
    "repeats": lambda client: [client.chat("hello", max_tokens=12) for _ in range(3)],
    "tools": lambda client: client.chat("add", tools=[ADD_TOOL], tool_choice="required"),
    "logit bias": lambda client: client.chat("hello", logit_bias={"101": 5}, max_tokens=20),
    "without thinking": lambda client: client.chat("hello", chat_template_kwargs={"enable_thinking": False}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_call_is_drawn_again_token_for_token(proxy: ServedProxy, way: str) -> None:
    """However it was asked; logprobs are bit-equal on the simulation."""
    client = proxy.rollout()
    WAYS[way](client)
    calls = client.calls()
    told = replay(proxy, client.rollout_id)

    assert told.head == {"rollout_id": client.rollout_id, "calls": len(calls)}
    assert told.words == ["same"] * len(calls)
    assert {one["call_id"]: one["tokens"] for one in told.verdicts} == {
        call["call_id"]: len(call["completion_token_ids"]) for call in calls
    }
    assert (told.summary["rate"], told.summary["largest_difference"]) == (1.0, 0.0)


def test_an_interrupted_call_is_drawn_again_segment_by_segment(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Each behind the ids before it, with its own seed, and no further than it went."""
    engine.script(Fault.abort(3), Fault.abort(2))
    client = proxy.rollout()
    client.chat("hello", max_tokens=30, min_tokens=8, chat_template_kwargs={"enable_thinking": False})
    (call,) = client.calls()
    before = len(engine.requests)
    told = replay(proxy, client.rollout_id)
    asked = [one.body for one in engine.requests[before:]]

    assert len(call["segments"]) == len(asked) == 3
    assert (told.words, told.verdict["tokens"]) == (["same"], len(call["completion_token_ids"]))
    assert [body["seed"] for body in asked] == [segment["seed"] for segment in call["segments"]]
    assert [body.get("min_tokens") for body in asked] == [min(8, call["segments"][0]["end"]), *left_of(call)]


def left_of(call: dict[str, Any]) -> list[int]:
    """What was left of 8 tokens at least when the second and the third segment began, as far as they went."""
    _first, *rest = call["segments"]
    return [min(8 - one["start"], one["end"] - one["start"] + (one is rest[-1])) for one in rest]


def test_the_engine_gets_the_recorded_ids_and_nothing_is_recorded(proxy: ServedProxy, engine: FakeEngine) -> None:
    """By its own door for ids; the rollout stays as it was, also when it is closed."""
    client = proxy.rollout()
    client.chat("hello", temperature=0.3)
    proxy.control.post(f"/rollouts/{client.rollout_id}/finish")
    (before,) = client.calls()
    replay(proxy, client.rollout_id)
    sent = engine.requests[-1].body
    ids = sent.get("input_ids") or sent["kv_transfer_params"]["prompt_token_ids"]

    assert ids == before["prompt_token_ids"]
    assert (sent["seed"], sent["temperature"]) == (before["seed"]["value"], 1.0)
    assert client.calls() == [before]


def test_a_call_that_nobody_drew_diverges_at_a_token_with_its_gap(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Words that were put into the engine's mouth are not what the seed draws."""
    engine.script(Say("utterly scripted"))
    client = proxy.rollout()
    client.chat("hello")
    (call,) = client.calls()
    told = replay(proxy, client.rollout_id)
    found = told.verdict["diverged"]

    assert (told.words, told.summary["rate"]) == (["diverged"], 0.0)
    assert found["kind"] == "token"
    assert found["recorded"]["token_id"] == call["completion_token_ids"][found["at"]] != found["drawn"]["token_id"]
    assert found["gap"] == pytest.approx(found["drawn"]["logprob"] - found["recorded"]["logprob"])
    assert (found["score_gap"] is not None) == (call["engine"]["kind"] == "sglang")


def test_a_failed_call_says_what_failed(proxy: ServedProxy, engine: FakeEngine) -> None:
    """And no engine is asked for it."""
    engine.script(Fault.status(500))
    client = proxy.rollout()
    client.chat("hello")
    client.calls()
    asked = len(engine.requests)
    told = replay(proxy, client.rollout_id)

    assert (told.words, told.verdict["reasons"]) == (["not_replayable"], ["engine_error"])
    assert (told.summary["rate"], len(engine.requests)) == (None, asked)


def test_an_engine_that_fails_the_replay_is_no_divergence(proxy: ServedProxy, engine: FakeEngine) -> None:
    """The verdict is about the replay, not about the call."""
    client = proxy.rollout()
    client.chat("hello")
    client.calls()
    engine.script(Fault.status(500))
    told = replay(proxy, client.rollout_id)

    assert told.words == ["failed"]
    assert told.verdict["reasons"][0] == "engine_error"


def test_only_the_named_calls_are_replayed(proxy: ServedProxy) -> None:
    """A call of another rollout is unknown here, and nothing is asked then."""
    client, other = proxy.rollout(), proxy.rollout()
    two_turns(client)
    other.chat("hello")
    call_ids = [call["call_id"] for call in client.calls()]
    stranger = proxy.control.post(f"/rollouts/{client.rollout_id}/replay", json={"calls": [other.call()["call_id"]]})

    assert [one["call_id"] for one in replay(proxy, client.rollout_id, calls=call_ids[1:]).verdicts] == call_ids[1:]
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (404, "unknown_call")


def test_a_replay_takes_the_admin_token(proxy: ServedProxy) -> None:
    """It costs engine time."""
    client = proxy.rollout()
    answer = proxy.control.post(
        f"/rollouts/{client.rollout_id}/replay", json={}, headers={"authorization": f"Bearer {READER}"}
    )

    assert answer.status_code == 403


def test_calls_of_both_sampling_classes_are_replayed(proxy: ServedProxy) -> None:
    """One class after the other."""
    client = proxy.rollout(sampling={"top_k": 3})
    two_turns(client)

    assert replay(proxy, client.rollout_id).words == ["same", "same"]


def test_other_weights_are_no_divergence(tmp_path: Path) -> None:
    """The engine tells its weights, and they are not the recorded ones."""
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        engine._engine.label_weights("step-2")
        told = replay(proxy, client.rollout_id)

    assert (told.words, told.verdict["reasons"]) == (["weights_gone"], ["recorded default", "now step-2"])


def test_another_model_is_not_asked(tmp_path: Path) -> None:
    """At the same address another engine came up."""
    with FakeEngine("sglang", model="one") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        port = engine._port
        engine.stop()
        with FakeEngine("sglang", model="other", port=port):
            told = replay(proxy, client.rollout_id)

    assert (told.words, told.verdict["reasons"]) == (["not_replayable"], ["no_engine_like_it"])


def test_an_engine_without_seeds_replays_nothing(tmp_path: Path) -> None:
    """The record says so, and is believed."""
    with FakeEngine("sglang", deterministic=False) as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        told = replay(proxy, client.rollout_id)

    assert (told.words, told.verdict["reasons"]) == (["not_replayable"], ["engine_ignores_seeds"])
