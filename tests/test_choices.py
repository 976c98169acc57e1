"""n choices: n draws with a seed each, merged into one reply, on record together or not at all."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.api.harness import (
    ADD,
    FOREVER,
    NEUTRAL,
    PATIENCE_S,
    Gate,
    Json,
    Leaver,
    Reader,
    asked,
    error_of,
    message_of,
    until,
)
from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.served import RolloutClient, ServedProxy, served, settings_for

AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
USAGE = {"stream_options": {"include_usage": True}}
FAULTS = {
    "engine_error": Fault.status(500),
    "engine_busy": Fault.refuse(429),
    "engine_cut": Fault.cut(3, Say("one two three")),
    "engine_aborted": Fault.abort(3, Say("one two three")),
    "missing_ids": Fault.no_ids(Say("one two three")),
}


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServedProxy, FakeEngine]]:
    """An engine of each kind and a proxy in front of it that does not ask on where a reply was aborted."""
    settings = {"timeouts": {"orphan_grace_s": 0.05}, "resume_attempts": 0}
    folder = tmp_path_factory.mktemp("proxy")
    with FakeEngine(request.param) as engine, served(settings_for(folder, engine.url, **settings)) as proxy:
        yield proxy, engine


@pytest.fixture
def engine(shared: tuple[ServedProxy, FakeEngine]) -> Iterator[FakeEngine]:
    """The engine, with an empty script and nothing asked yet."""
    engine = shared[1]
    engine.requests.clear()
    yield engine
    engine.always(None)
    engine._engine._queue.clear()


@pytest.fixture
def client(shared: tuple[ServedProxy, FakeEngine], engine: FakeEngine) -> Iterator[RolloutClient]:
    """A new rollout."""
    proxy = shared[0]
    store = proxy.wiring.store
    made = proxy.rollout()
    yield made
    made.http.close()
    proxy.wiring.store = store


def by_choice(client: RolloutClient) -> list[Json]:
    """The rollout's calls, in order of their choice."""
    return sorted(client.calls(), key=lambda call: int(call["seed"]["choice"]))


def messages_of(chunks: list[Json], n: int) -> list[Json]:
    """The message of each choice, put together from chunks."""
    parts: list[list[Json]] = [[] for _ in range(n)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts[choice["index"]].append({"choices": [choice]})
    return [message_of(part) for part in parts]


def said(reader: Reader, n: int) -> list[str | None]:
    """The words of each choice so far."""
    return [message.get("content") for message in messages_of(reader.chunks, n)]


def replied(client: RolloutClient, n: int, *, stream: bool, **fields: Any) -> tuple[list[Json], Json]:
    """The message of each choice and the usage, as a client gets them."""
    if stream:
        chunks = client.stream(n=n, **USAGE, **fields)
        return messages_of(chunks, n), chunks[-1]["usage"]
    reply = client.chat(n=n, **fields).json()
    assert [choice["index"] for choice in reply["choices"]] == list(range(n))
    return [choice["message"] for choice in reply["choices"]], reply["usage"]


def drawn_again(engine: FakeEngine, seed: int) -> list[int]:
    """What the engine draws for a seed when it is asked directly."""
    body = asked(seed=seed, **NEUTRAL, return_token_ids=True) | {"model": "tiny"}
    choice = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).json()["choices"][0]
    ids: list[int] = choice.get("token_ids") or choice["response_token_ids"]
    return ids


# --- whole sets ---


@AS_STREAM
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_each_choice_is_a_draw_of_its_own(client: RolloutClient, engine: FakeEngine, n: int, *, stream: bool) -> None:
    """N engine requests with n seeds; the client gets what is recorded, and the prompt counts once."""
    messages, usage = replied(client, n, stream=stream)
    calls = by_choice(client)

    assert [received.body["n"] for received in engine.requests] == [1] * n
    assert {received.body["seed"] for received in engine.requests} == {call["seed"]["value"] for call in calls}
    assert len({call["seed"]["value"] for call in calls}) == n
    assert [call["seed"]["choice"] for call in calls] == list(range(n))
    assert {call["seed"]["occurrence"] for call in calls} == {0}
    assert len({call["request_id"] for call in calls}) == 1
    assert messages == [call["message"] for call in calls]
    sampled = sum(len(call["completion_token_ids"]) for call in calls)
    prompt = len(calls[0]["prompt_token_ids"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, sampled)
    assert usage["total_tokens"] == prompt + sampled


@AS_STREAM
def test_each_choice_can_be_drawn_alone(client: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """Its recorded seed gives its recorded ids, whatever was drawn beside it."""
    replied(client, 4, stream=stream)

    for call in by_choice(client):
        assert call["completion_token_ids"] == drawn_again(engine, call["seed"]["value"])
        assert call["capture"]["complete"]


def test_a_rerun_draws_the_same_set(shared: tuple[ServedProxy, FakeEngine]) -> None:
    """In the other form, and under another run's name."""
    proxy, _ = shared
    clients = [proxy.rollout(run=run, group=f"set-{proxy.url}") for run in ("one", "two")]
    replied(clients[0], 3, stream=False)
    replied(clients[1], 3, stream=True)
    first, second = [[call["completion_token_ids"] for call in by_choice(client)] for client in clients]

    assert first == second


def test_a_smaller_set_begins_like_a_larger_one(shared: tuple[ServedProxy, FakeEngine]) -> None:
    """A seed knows its choice, not how many there are."""
    proxy, _ = shared
    clients = [proxy.rollout(run=f"size-{n}", group=f"sizes-{proxy.url}") for n in (1, 4)]
    for client, n in zip(clients, (1, 4), strict=True):
        replied(client, n, stream=False)

    assert by_choice(clients[0])[0]["seed"] == by_choice(clients[1])[0]["seed"]


@AS_STREAM
def test_one_header_names_all_calls(client: RolloutClient, *, stream: bool) -> None:
    """In the order of the choices."""
    with client.http.stream("POST", "/chat/completions", json=asked(n=3, stream=stream)) as response:
        response.read()

    named = response.headers.get_list("x-rollpin-call-id")
    assert named == [", ".join(call["call_id"] for call in by_choice(client))]


def test_usage_is_streamed_only_where_it_was_asked_for(client: RolloutClient) -> None:
    """One chunk for all choices, the last."""
    plain, told = client.stream(n=3), client.stream(n=3, **USAGE)

    assert not [chunk for chunk in plain if "usage" in chunk]
    assert [chunk for chunk in told if chunk.get("usage")] == told[-1:]
    assert told[-1]["choices"] == []


@AS_STREAM
def test_tool_calls_of_choices_have_ids_of_their_own(
    client: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """A later request that echoes one must name one choice."""
    engine.always(Say("so", calls=(ToolSay("add", '{"a": 1}'), ToolSay("add", '{"a": 2}'))))
    messages, _ = replied(client, 3, stream=stream, tools=[ADD], max_tokens=200)
    ids = [call["id"] for message in messages for call in message["tool_calls"]]

    assert len(set(ids)) == len(ids) == 6
    assert messages == [call["message"] for call in by_choice(client)]


@AS_STREAM
def test_logprobs_are_shown_for_each_choice(client: RolloutClient, *, stream: bool) -> None:
    """The recorded ones."""
    fields: Json = {"n": 2, "logprobs": True, "top_logprobs": 2}
    shown: list[list[float]] = [[], []]
    choices = (
        [choice for chunk in client.stream(**fields) for choice in chunk["choices"]]
        if stream
        else client.chat(**fields).json()["choices"]
    )
    for choice in choices:
        entries = (choice.get("logprobs") or {}).get("content") or []
        shown[choice["index"]] += [entry["logprob"] for entry in entries]

    assert shown == [call["logprobs"] for call in by_choice(client)]


def test_the_sdk_reads_a_streamed_set(client: RolloutClient) -> None:
    """As harnesses do."""
    created = client.created
    with openai.OpenAI(base_url=created["base_url"], api_key=created["api_key"], max_retries=0) as sdk:
        texts, ended = Counter[int](), list[int]()
        for chunk in sdk.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "hello"}], n=3, stream=True
        ):
            for choice in chunk.choices:
                texts[choice.index] += len(choice.delta.content or "")
                ended += [choice.index] if choice.finish_reason else []

    assert sorted(ended) == [0, 1, 2]
    assert [texts[index] for index in range(3)] == [len(call["message"]["content"] or "") for call in by_choice(client)]


@pytest.mark.parametrize("n", [0, -1, 129, 1.5, "2", True])
def test_a_number_that_is_none_is_refused(client: RolloutClient, engine: FakeEngine, n: Any) -> None:
    """Before anything is drawn."""
    answer = client.chat(n=n)

    assert (answer.status_code, error_of(answer)["param"]) == (400, "n")
    assert engine.requests == []
    assert client.proxy.calls(client.rollout_id) == []


# --- the end ---


def test_no_choice_shows_its_end_before_all_are_on_record(client: RolloutClient, engine: FakeEngine) -> None:
    """H1 for sets: words flow, ends wait."""
    engine.always(Say("one two three"))
    gate = Gate(client.proxy)
    reader = Reader(client, n=3, **USAGE)
    until(lambda: gate.waiting and said(reader, 3) == ["one two three"] * 3)

    assert not [choice for chunk in reader.chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert {call["state"] for call in client.proxy.calls(client.rollout_id)} == {"reserved"}
    assert reader.is_alive()
    gate.open()
    reader.ended()
    ends = [choice["index"] for chunk in reader.chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert (sorted(ends), reader.is_done, gate.waiting) == ([0, 1, 2], True, 1)


def test_a_choice_that_ends_early_waits_for_the_others(client: RolloutClient, engine: FakeEngine) -> None:
    """Its words are shown, its end is not."""
    engine.script(Say("quick"), Fault.stall(3, FOREVER, Say("slow reply")))
    reader = Reader(client, n=2)
    until(lambda: "quick" in said(reader, 2))

    assert not [choice for chunk in reader.chunks for choice in chunk["choices"] if choice["finish_reason"]]
    engine.go_on()
    assert reader.ended().is_done


# --- failures ---


@AS_STREAM
@pytest.mark.parametrize("kind", FAULTS)
def test_one_failure_leaves_no_half_set(client: RolloutClient, engine: FakeEngine, kind: str, *, stream: bool) -> None:
    """All fail, one with the cause; the retry claims the whole set, with its seeds."""
    say = Say("one two three")
    engine.script(say, say, FAULTS[kind], say)
    refused = client.post(asked(n=4, stream=stream))
    failed = by_choice(client)
    # One of the four may have been cut before its engine had it.
    first_seeds = {received.body["seed"] for received in engine.requests}
    seeds = sorted(call["seed"]["value"] for call in failed)
    retry = client.http.post(
        "/chat/completions", json=asked(n=4, stream=stream), headers={"x-stainless-retry-count": "1"}
    )

    assert f'"{kind}"' in refused.text
    assert '"finish_reason":"' not in refused.text.replace(": ", ":")
    assert Counter(call["failure"]["kind"] for call in failed) == {kind: 1, "sibling_failed": 3}
    assert {call["state"] for call in failed} == {"failed"}
    assert retry.status_code == 200
    done = by_choice(client)
    assert [call["call_id"] for call in done] == [call["call_id"] for call in failed]
    assert {call["state"] for call in done} == {"done"}
    assert sorted(received.body["seed"] for received in engine.requests[-4:]) == seeds
    assert first_seeds <= set(seeds)
    assert [call["earlier_failures"] for call in done] == [[call["failure"]] for call in failed]
    assert [[one["outcome"] for one in call["deliveries"]] for call in done] == [["error_told", "delivered"]] * 4


@AS_STREAM
def test_siblings_of_a_failure_are_cut_at_once(client: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """Nobody waits for what no client will get."""
    silences = [Fault.stall_before_headers(FOREVER), Fault.stall(2, FOREVER), Fault.stall(0, FOREVER)]
    engine.script(*silences[:2], Fault.status(500), *silences[2:])
    client.post(asked(n=4, stream=stream))

    until(lambda: engine.running == 0)
    assert Counter(call["failure"]["kind"] for call in client.calls()) == {"engine_error": 1, "sibling_failed": 3}


def test_the_cause_is_told_whichever_choice_it_hit(client: RolloutClient, engine: FakeEngine) -> None:
    """Not what became of the others because of it."""
    for place in range(3):
        faults: list[Any] = [Fault.stall_before_headers(FOREVER)] * 3
        faults[place] = Fault.refuse(429)
        engine.script(*faults)
        answer = client.chat(f"place {place}", n=3)

        assert (answer.status_code, error_of(answer)["code"]) == (429, "engine_busy")


def test_what_had_come_of_siblings_is_kept(client: RolloutClient, engine: FakeEngine) -> None:
    """A reply that was whole by itself fails with the set, and what it said stands in the record."""
    engine.script(Say("quick"), Fault.cut(4, Say("one two three four"), seconds=FOREVER))
    reader = Reader(client, n=2)
    until(lambda: engine.running == 1 and "quick" in said(reader, 2) and all(said(reader, 2)))
    engine.go_on()
    reader.ended()

    for call in client.calls():
        assert call["state"] == "failed"
        assert call["message"]["content"]


def test_a_client_that_leaves_a_set_is_gone_for_all_of_it(client: RolloutClient, engine: FakeEngine) -> None:
    """Every engine is told to stop, and its return claims the set."""
    engine.always(Fault.stall(3, FOREVER, Say("one two three")))
    leaver = Leaver(client, n=3, stream=True)
    until(lambda: engine.running == 3)
    leaver.leave()
    until(lambda: engine.running == 0)
    failed = by_choice(client)
    engine.always(None)
    messages, _ = replied(client, 3, stream=False)

    assert {call["failure"]["kind"] for call in failed} == {"client_gone"}
    assert messages == [call["message"] for call in by_choice(client)]
    assert len(client.calls()) == 3


def test_sets_of_other_sizes_are_other_requests(client: RolloutClient, engine: FakeEngine) -> None:
    """A retry that asks for more is no retry."""
    engine.script(Fault.status(500))
    client.chat(n=2)
    client.chat(n=3)

    assert len(client.calls()) == 5
    assert Counter(call["seed"]["occurrence"] for call in client.calls()) == {0: 2, 1: 3}
