"""What one rollout may use up: generated tokens, then replies end by length; calls, then it is told that it is over."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.harness import Gate, Leaver, Reader, error_of, finish_of, until, until_left
from tests.fakes import FakeEngine, Fault, Say
from tests.served import RolloutClient, ServedProxy, served, settings_for

AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LONG = Say("a reply of many more tokens than any budget in here allows for")

Start = Callable[..., tuple[ServedProxy, FakeEngine]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedProxy, FakeEngine]]:
    """A proxy with default settings and its engine."""
    with FakeEngine("vllm") as engine, served(settings_for(tmp_path_factory.mktemp("p"), engine.url)) as proxy:
        yield proxy, engine


@pytest.fixture
def start(shared: tuple[ServedProxy, FakeEngine], tmp_path: Path) -> Iterator[Start]:
    """A proxy, with settings of its own where there are any, and an engine that always has more to say."""
    store = shared[0].wiring.store
    with ExitStack() as running:

        def start_one(kind: Any = "vllm", **fields: Any) -> tuple[ServedProxy, FakeEngine]:
            engine = shared[1] if kind == "vllm" and not fields else running.enter_context(FakeEngine(kind))
            engine.requests.clear()
            engine.always(LONG)
            if engine is shared[1]:
                return shared
            return running.enter_context(served(settings_for(tmp_path, engine.url, **fields))), engine

        yield start_one
    shared[0].wiring.store = store


def spend(client: RolloutClient, text: str = "hello", *, stream: bool = False, **fields: Any) -> str | None:
    """One call; the reason for which it ended."""
    if stream:
        return finish_of(client.stream(text, **fields))
    response = client.chat(text, **fields)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["finish_reason"])


def sampled(client: RolloutClient) -> list[int]:
    return [len(call["completion_token_ids"] or ()) for call in client.calls()]


def limits_sent(engine: FakeEngine) -> list[int]:
    return [received.body["max_tokens"] for received in engine.requests]


@AS_STREAM
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_budget_ends_replies_by_length(start: Start, kind: str, *, stream: bool) -> None:
    """The harness sees what it knows from any model: a reply that was cut, then empty ones."""
    proxy, engine = start(kind)
    client = proxy.rollout(token_budget=15)
    reasons = [spend(client, f"turn {turn}", stream=stream, max_tokens=10) for turn in range(4)]
    calls = client.calls()

    assert reasons == ["length"] * 4
    assert limits_sent(engine) == [10, 5]
    assert sampled(client) == [10, 5, 0, 0]
    assert [(call["state"], (call["failure"] or {}).get("kind")) for call in calls] == [
        ("done", None),
        ("done", None),
        ("failed", "token_budget_spent"),
        ("failed", "token_budget_spent"),
    ]
    assert [call["sampling"]["asked"]["max_tokens"] for call in calls] == [10] * 4


@AS_STREAM
@pytest.mark.parametrize("n", [1, 3])
def test_an_empty_reply_is_a_whole_one(start: Start, n: int, *, stream: bool) -> None:
    """Every choice, its role, its end and the usage; no engine is asked."""
    proxy, engine = start()
    client = proxy.rollout(token_budget=4)
    spend(client)
    asked_before = len(engine.requests)
    with openai.OpenAI(base_url=client.created["base_url"], api_key=client.created["api_key"]) as sdk:
        asked: Any = {"model": "policy", "messages": [{"role": "user", "content": "more"}], "n": n}
        if stream:
            chunks = list(sdk.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
            choices = [choice for chunk in chunks for choice in chunk.choices]
            usage, texts = chunks[-1].usage, [choice.delta.content for choice in choices]
        else:
            reply = sdk.chat.completions.create(**asked)
            choices, usage = list(reply.choices), reply.usage
            texts = [choice.message.content for choice in reply.choices]

    assert [choice.index for choice in choices] == list(range(n))
    assert {choice.finish_reason for choice in choices} == {"length"}
    assert set(texts) == {""}
    assert usage is not None
    assert usage.total_tokens == 0
    assert len(engine.requests) == asked_before
    assert client.calls()[-1]["deliveries"][0]["outcome"] == "delivered"


def test_a_budget_bounds_a_call_that_asks_for_no_limit(start: Start) -> None:
    """The engine is told what is left."""
    proxy, engine = start()
    client = proxy.rollout(token_budget=7)

    assert spend(client) == "length"
    assert limits_sent(engine) == [7]


def test_a_profiles_cap_holds_beside_a_budget(start: Start) -> None:
    """The least of them counts."""
    proxy, engine = start(profiles={"train": {"max_tokens_cap": 5}})
    client = proxy.rollout(token_budget=8)
    spend(client, "one", max_tokens=100)
    spend(client, "two", max_tokens=100)

    assert limits_sent(engine) == [5, 3]


def test_choices_share_what_is_left(start: Start) -> None:
    """So that a set does not overshoot."""
    proxy, engine = start()
    client = proxy.rollout(token_budget=14)
    spend(client, n=4)

    assert limits_sent(engine) == [3] * 4
    assert sum(sampled(client)) == 12


def test_a_setting_is_the_budget_of_those_that_name_none(start: Start) -> None:
    """A rollout's own word counts more."""
    proxy, engine = start(limits={"tokens_per_rollout": 6})
    spend(proxy.rollout())
    spend(proxy.rollout(token_budget=9))

    assert limits_sent(engine) == [6, 9]


def test_other_rollouts_have_budgets_of_their_own(start: Start) -> None:
    """One that is spent takes nothing from its neighbours."""
    proxy, engine = start()
    for _ in range(2):
        spend(proxy.rollout(token_budget=6))

    assert limits_sent(engine) == [6, 6]


def test_a_reply_that_ends_by_itself_leaves_the_rest(start: Start) -> None:
    """Only what was generated is spent."""
    proxy, engine = start()
    engine.script(Say("ok"))
    client = proxy.rollout(token_budget=50)

    assert spend(client, "one") == "stop"
    spend(client, "two")
    assert limits_sent(engine) == [50, 50 - sampled(client)[0]]


def test_what_a_broken_reply_had_generated_is_spent(start: Start) -> None:
    """The engine worked for it."""
    proxy, engine = start(resume_attempts=0)
    engine.script(Fault.abort(4, LONG))
    client = proxy.rollout(token_budget=20)
    assert client.chat("one").status_code == 503
    spend(client, "two")

    assert limits_sent(engine) == [20, 20 - sampled(client)[0]]
    assert sampled(client)[0] == 4


def test_a_reply_that_was_interrupted_is_spent_once(start: Start) -> None:
    """Its parts share what was left when it began, and nothing of them is counted twice."""
    proxy, engine = start()
    engine.script(Fault.abort(4, LONG))
    client = proxy.rollout(token_budget=30)
    reasons = [spend(client, "one", max_tokens=20), spend(client, "two"), spend(client, "three")]

    assert reasons == ["length"] * 3
    assert limits_sent(engine) == [20, 16, 10]
    assert sampled(client) == [20, 10, 0]


# --- retries under a limit ---


def test_a_retry_is_recognised_though_less_is_left(start: Start) -> None:
    """A budget shrinks between a call and its retry; that makes them no different."""
    proxy, engine = start()
    client = proxy.rollout(token_budget=40)
    gate = Gate(proxy)
    leaver = Leaver(client, max_tokens=30)
    until(lambda: gate.waiting)
    leaver.leave()
    until_left(client)
    gate.open()
    client.calls()

    assert spend(client, max_tokens=30) == "length"
    assert len(engine.requests) == 1
    assert [one["claim"] for one in client.call()["deliveries"]] == [None, "client_gone"]


def test_a_recorded_reply_is_given_though_nothing_is_left(start: Start) -> None:
    """It was paid for."""
    proxy, engine = start()
    client = proxy.rollout(token_budget=10)
    answers = [
        client.http.post(
            "/chat/completions",
            json={"messages": [{"role": "user", "content": "hello"}]},
            headers={"x-stainless-retry-count": str(retry)},
        ).json()
        for retry in range(2)
    ]

    assert answers[0] == answers[1]
    assert answers[0]["usage"]["completion_tokens"] == 10
    assert len(engine.requests) == 1


def test_a_failed_call_is_tried_again_within_the_limit_of_calls(start: Start) -> None:
    """A claim is no call of its own."""
    proxy, engine = start(limits={"calls_per_rollout": 1})
    client = proxy.rollout()
    engine.script(Fault.status(500))

    assert [client.chat().status_code for _ in range(3)] == [502, 200, 429]
    assert client.call()["state"] == "done"


# --- calls ---


@AS_STREAM
def test_one_call_too_many_is_refused_for_good(start: Start, *, stream: bool) -> None:
    """429 that SDKs do not retry; nothing is recorded, no engine is asked."""
    proxy, engine = start(limits={"calls_per_rollout": 2})
    client = proxy.rollout()
    for turn in range(2):
        spend(client, f"turn {turn}", max_tokens=2)
    refused = client.chat("one more", stream=stream)
    sdk = openai.OpenAI(base_url=client.created["base_url"], api_key=client.created["api_key"])
    with sdk, pytest.raises(openai.RateLimitError):
        sdk.chat.completions.create(model="policy", messages=[{"role": "user", "content": "and one"}])

    assert (refused.status_code, error_of(refused)["code"]) == (429, "rollout_limit")
    assert refused.headers["x-should-retry"] == "false"
    assert len(engine.requests) == len(client.calls()) == 2
    assert spend(proxy.rollout(), max_tokens=2) == "length"


def test_choices_count_as_calls(start: Start) -> None:
    """A set that is too large is refused whole."""
    proxy, engine = start(limits={"calls_per_rollout": 3})
    client = proxy.rollout()

    assert client.chat(n=4).status_code == 429
    assert client.chat(n=2, max_tokens=2).status_code == 200
    assert client.chat("else", n=2).status_code == 429
    assert client.chat("else", max_tokens=2).status_code == 200
    assert len(engine.requests) == 3


def test_calls_at_once_do_not_slip_past_the_limit(start: Start) -> None:
    """It is counted where calls are reserved."""
    proxy, engine = start(limits={"calls_per_rollout": 3})
    client = proxy.rollout()
    readers = [Reader(client, f"question {number}", max_tokens=2) for number in range(8)]
    statuses = sorted(reader.ended().status or 0 for reader in readers)

    assert statuses == [200] * 3 + [429] * 5
    assert len(engine.requests) == 3
