"""What goes wrong with an engine: recorded as data with its kind, and told to the client in OpenAI's form."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from proxy.api.chat import ChatView
from tests.api.conftest import Start
from tests.api.harness import FOREVER, Reader, asked, deliveries, error_of, finish_of, until
from tests.fakes import FakeEngine, Fault, Say
from tests.served import RolloutClient, ServedProxy, served, settings_for

SAY = Say("hello there, how are you")
SOON = {"silence_s": 3}
# Events by which both engines have said some of the words, and not all.
SOME = 8


@dataclass(frozen=True)
class Told:
    """What a fault becomes."""

    kind: str
    status: int
    may_retry: bool = True
    retry_after: str | None = None


REFUSED = Told("engine_refused", 400, may_retry=False)
BUSY = Told("engine_busy", 429, retry_after="1")
BROKEN = Told("engine_error", 502)
MISSING = Told("missing_ids", 502, may_retry=False)
ABORTED = Told("engine_aborted", 503, retry_after="1")
BEFORE_THE_REPLY: dict[str, tuple[Fault, Told]] = {
    "400": (Fault.status(400), REFUSED),
    "422": (Fault.status(422), REFUSED),
    "404": (Fault.status(404), Told("engine_refused", 404, may_retry=False)),
    "401": (Fault.status(401), BROKEN),
    "429": (Fault.refuse(429), BUSY),
    "503": (Fault.refuse(503), Told("engine_busy", 503, retry_after="1")),
    "500": (Fault.status(500), BROKEN),
    "html 502": (Fault.html(502), BROKEN),
    "html 404": (Fault.html(404), BROKEN),
    "an odd body": (Fault.status(500, body=["x"]), BROKEN),
}
WHOLE: dict[str, tuple[Fault, Told]] = {
    "half JSON": (Fault.half_json(SAY), Told("engine_malformed", 502)),
    "no object": (Fault.status(200, body=["x"]), Told("engine_malformed", 502)),
    "no choices": (Fault.status(200, body={"id": "x"}), Told("engine_malformed", 502)),
    "odd choices": (
        Fault.status(200, body={"choices": [{"message": "hi", "finish_reason": "stop"}]}),
        Told("engine_malformed", 502),
    ),
    "odd ids": (
        Fault.status(
            200,
            body={"prompt_token_ids": [1], "choices": [{"message": {}, "finish_reason": "stop", "token_ids": ["x"]}]}
            | {"metadata": {"weight_versions": [5]}},
        ),
        Told("engine_malformed", 502),
    ),
    "an error with status 200": (Fault.status(200, body={"error": {"message": "x"}}), BROKEN),
    "cut": (Fault.cut(0, SAY), Told("engine_cut", 502)),
    "no finish": (Fault.no_finish(SAY), Told("engine_cut", 502)),
    "error": (Fault.error_frame(0, SAY), BROKEN),
    "no ids": (Fault.no_ids(SAY), MISSING),
    "wrong count": (Fault.wrong_count(SAY), MISSING),
    "no usage": (Fault.no_usage(SAY), MISSING),
    "no logprobs": (Fault.no_logprobs(SAY), MISSING),
    "null logprob": (Fault.null_logprob(SAY), MISSING),
}
STREAMED: dict[str, tuple[Fault, Told]] = {
    "cut": (Fault.cut(4, SAY), Told("engine_cut", 502)),
    "half JSON": (Fault.half_json(SAY), Told("engine_cut", 502)),
    "no finish": (Fault.no_finish(SAY), Told("engine_cut", 502)),
    "error": (Fault.error_frame(4, SAY), BROKEN),
    "no ids": (Fault.no_ids(SAY), MISSING),
    "wrong count": (Fault.wrong_count(SAY), MISSING),
    "no usage": (Fault.no_usage(SAY), MISSING),
    "no logprobs": (Fault.no_logprobs(SAY), MISSING),
    "null logprob": (Fault.null_logprob(SAY), MISSING),
}
BEFORE_THE_FIRST_EVENT: dict[str, tuple[Fault, Told]] = {
    "cut": (Fault.cut(0, SAY), Told("engine_cut", 502)),
    "error": (Fault.error_frame(0, SAY), BROKEN),
}
BLIND = ["no ids", "wrong count", "no usage", "no logprobs", "null logprob"]


def table(faults: dict[str, tuple[Fault, Told]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("fault", "told"), list(faults.values()), ids=list(faults))


def check_plain(client: RolloutClient, fault: Fault, told: Told, engine: FakeEngine, *, stream: bool) -> None:
    """A status line of its own, the error in OpenAI's form, and the failure on record."""
    engine.script(fault)
    answer = client.post(asked(stream=stream))
    call = client.call()

    assert (answer.status_code, error_of(answer)["code"]) == (told.status, told.kind)
    assert answer.headers.get("x-should-retry") == (None if told.may_retry else "false")
    assert answer.headers.get("retry-after") == told.retry_after
    assert answer.headers["x-rollpin-call-id"] == call["call_id"]
    assert (call["state"], call["failure"]["kind"], call["failure"]["status"]) == ("failed", told.kind, told.status)
    assert call["failure"]["message"] == error_of(answer)["message"]
    assert deliveries(client) == ["error_told"]


def check_stream(client: RolloutClient, fault: Fault, told: Told, engine: FakeEngine) -> None:
    """A beginning of the reply, an error event in place of its end, and the failure on record."""
    engine.script(fault)
    reader = Reader(client).ended()
    call = client.call()

    assert (reader.status, reader.is_done, finish_of(reader.chunks)) == (200, False, None)
    assert reader.error is not None
    assert (reader.error["code"], set(reader.error)) == (told.kind, {"message", "type", "param", "code"})
    assert len(reader.chunks) > 1
    assert (call["state"], call["failure"]["kind"], call["failure"]["status"]) == ("failed", told.kind, told.status)
    assert deliveries(client) == ["error_told"]


@table(BEFORE_THE_REPLY)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_refusal_is_told_and_recorded(
    rollout: RolloutClient, engine: FakeEngine, fault: Fault, told: Told, *, stream: bool
) -> None:
    """4xx for what the client did, with the engine's own words; 5xx for the rest."""
    check_plain(rollout, fault, told, engine, stream=stream)


@table(WHOLE)
def test_a_whole_reply_that_breaks_is_told_and_recorded(
    rollout: RolloutClient, engine: FakeEngine, fault: Fault, told: Told
) -> None:
    """No half reply and no reply without its ids is passed off as one."""
    check_plain(rollout, fault, told, engine, stream=False)


@table(BEFORE_THE_FIRST_EVENT)
def test_a_stream_that_breaks_before_its_first_event_is_a_plain_error(
    rollout: RolloutClient, engine: FakeEngine, fault: Fault, told: Told
) -> None:
    """The status line waits for the first event, so that SDKs can retry."""
    check_plain(rollout, fault, told, engine, stream=True)


@table(STREAMED)
def test_a_stream_that_breaks_ends_with_an_error_event(
    rollout: RolloutClient, engine: FakeEngine, fault: Fault, told: Told
) -> None:
    """The client never learns of an end that is not on record."""
    check_stream(rollout, fault, told, engine)


def test_an_overflow_is_told_in_the_words_that_harnesses_know(rollout: RolloutClient, engine: FakeEngine) -> None:
    """Recognised in each engine's own refusal."""
    answer = rollout.chat("x" * 5000)

    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert error_of(answer)["code"] == "context_length_exceeded"
    assert rollout.call()["failure"]["kind"] == "context_length_exceeded"
    assert engine.refused[-1].body["messages"][0]["content"] == "x" * 5000


def test_the_engines_status_is_on_record(rollout: RolloutClient, engine: FakeEngine) -> None:
    """What the engine said, beside what the client was told."""
    engine.script(Fault.status(500))
    rollout.chat()

    assert rollout.call()["failure"]["engine_status"] == 500


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_may_go_on_after_a_failure(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """Nothing of a failure stays behind."""
    engine.script(Fault.status(500), SAY)

    assert [rollout.post(asked(stream=stream)).status_code for _ in range(2)] == [502, 200]


def test_the_tokens_that_had_arrived_are_kept_with_the_failure(rollout: RolloutClient, engine: FakeEngine) -> None:
    """As far as the engine's form allows: SGLang tells a stream's ids at its end."""
    engine.script(Fault.cut(8, SAY))
    reader = Reader(rollout).ended()
    call = rollout.call()

    assert call["message"]["content"] == reader.text
    assert call["finish_reason"] is None
    if call["engine"]["kind"] == "vllm":
        assert len(call["completion_token_ids"]) == len(call["logprobs"]) == 7
    else:
        assert call["completion_token_ids"] is None


# --- with settings of their own ---


@pytest.fixture(scope="module")
def masking(shared_engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy that keeps replies without whole ids."""
    settings = settings_for(tmp_path_factory.mktemp("masking"), shared_engine.url, missing_ids="mask")
    with served(settings) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def impatient(shared_engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy that bears no silence."""
    with served(settings_for(tmp_path_factory.mktemp("impatient"), shared_engine.url, timeouts=SOON)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def sparing(shared_engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy that bears no long replies."""
    limits = {"reply_bytes": 10_000}
    with served(settings_for(tmp_path_factory.mktemp("sparing"), shared_engine.url, limits=limits)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def not_resuming(shared_engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy that does not ask on where a reply was aborted."""
    with served(settings_for(tmp_path_factory.mktemp("aborted"), shared_engine.url, resume_attempts=0)) as proxy:
        yield proxy


def test_a_whole_reply_that_is_aborted_is_told_and_recorded(not_resuming: ServedProxy, engine: FakeEngine) -> None:
    """As any that breaks."""
    check_plain(not_resuming.rollout(), Fault.abort(4, SAY), ABORTED, engine, stream=False)


def test_a_stream_that_is_aborted_ends_with_an_error_event(not_resuming: ServedProxy, engine: FakeEngine) -> None:
    """As any that breaks."""
    check_stream(not_resuming.rollout(), Fault.abort(4, SAY), ABORTED, engine)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_tokens_of_an_aborted_reply_are_kept(
    not_resuming: ServedProxy, engine: FakeEngine, *, stream: bool
) -> None:
    """And are never a completion."""
    client = not_resuming.rollout()
    engine.script(Fault.abort(4, SAY))
    client.post(asked(stream=stream))
    call = client.call()

    assert (call["state"], len(call["completion_token_ids"]), call["finish_reason"]) == ("failed", 4, "abort")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_silent_engine_is_given_up(impatient: ServedProxy, engine: FakeEngine, *, stream: bool) -> None:
    """Before its headers, after them, and in the middle; the engine is freed each time."""
    faults = [Fault.stall_before_headers(FOREVER), Fault.stall(0, FOREVER, SAY), Fault.stall(SOME, FOREVER, SAY)]
    clients = [impatient.rollout() for _ in faults]
    readers = []
    for place, (client, fault) in enumerate(zip(clients, faults, strict=True)):
        engine.script_when(lambda body, text=str(place): body["messages"][0]["content"] == text, fault)
        readers.append(Reader(client, str(place), stream=stream))
    answers = [reader.ended() for reader in readers]
    until(lambda: engine.running == 0)

    assert [client.call()["failure"]["kind"] for client in clients] == ["engine_stalled"] * 3
    assert [answer.status for answer in answers] == [504, 504, 200 if stream else 504]
    assert '"code":"engine_stalled"' in "".join(answers[2].lines).replace(": ", ":")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_engine_that_is_gone_is_told_and_comes_back(start: Start, *, stream: bool) -> None:
    """The call that found out is recorded; later ones wait outside until the engine answers again."""
    proxy, engine = start()
    client = proxy.rollout()
    engine.stop()
    first, second = (client.post(asked(text, stream=stream)) for text in ("one", "two"))
    engine.restart()
    answer = until(lambda: next((a for a in [client.post(asked("three", stream=stream))] if a.is_success), None))

    assert (first.status_code, error_of(first)["code"]) == (502, "engine_unreachable")
    assert (second.status_code, error_of(second)["code"]) == (503, "engine_unready")
    assert second.headers["retry-after"]
    assert answer.status_code == 200
    assert [call["state"] for call in client.calls()] == ["failed", "done"]


@pytest.mark.parametrize("flaw", BLIND)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_masking_keeps_a_reply_without_whole_ids(
    masking: ServedProxy, engine: FakeEngine, flaw: str, *, stream: bool
) -> None:
    """`missing_ids = mask`: the client is served, and the record says that it cannot be trained on."""
    client = masking.rollout()
    engine.script(WHOLE[flaw][0])
    text = Reader(client).ended().text if stream else client.chat().json()["choices"][0]["message"]["content"]
    call = client.call()

    assert text == SAY.text
    assert (call["state"], call["capture"]["complete"], bool(call["capture"]["gaps"])) == ("done", False, True)
    assert call["replayable"]["value"] == "no"
    health = masking.control.get(f"/rollouts/{client.rollout_id}").json()["health"]
    assert health["complete"] is False


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_reply_beyond_the_limit_is_cut_off(sparing: ServedProxy, engine: FakeEngine, *, stream: bool) -> None:
    """No engine can fill the proxy's memory."""
    client = sparing.rollout()
    engine.script(Say("x" * 1000))
    answer = client.post(asked(stream=stream))

    assert "reply_too_large" in answer.text
    assert client.call()["failure"]["kind"] == "reply_too_large"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_that_takes_too_long_is_cut(start: Start, *, stream: bool) -> None:
    """`timeouts.call_s`: the engine is freed and the record says why."""
    proxy, engine = start(timeouts={"call_s": 3})
    client = proxy.rollout()
    engine.script(Fault.stall(SOME, FOREVER, SAY))
    answer = client.post(asked(stream=stream))
    until(lambda: engine.running == 0)

    assert answer.status_code == (200 if stream else 504)
    assert "call_timeout" in answer.text
    assert (client.call()["failure"]["kind"], engine.aborted) == ("call_timeout", 1)


def test_an_idle_connection_that_the_engine_closed_costs_nothing(start: Start) -> None:
    """A restarted engine on the same address is reached at the first try."""
    proxy, engine = start()
    client = proxy.rollout()
    assert client.chat().status_code == 200
    engine.restart()

    assert client.chat().status_code == 200


def test_failures_are_counted_in_the_rollout(rollout: RolloutClient, engine: FakeEngine) -> None:
    """By kind, for whoever looks at a rollout's health."""
    engine.script(Fault.status(500), Fault.no_ids(SAY), SAY)
    for text in ("one", "two", "three"):
        rollout.chat(text)
    counts: dict[str, Any] = rollout.proxy.control.get(f"/rollouts/{rollout.rollout_id}").json()["counts"]

    assert (counts["calls"], counts["completed"], counts["failed"]) == (3, 1, 2)
    assert counts["failures"] == {"engine_error": 1, "missing_ids": 1}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_reply_that_cannot_be_told_is_on_record_and_given_to_the_retry(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    """A fault of ours in the telling: the client is not left in doubt, its reading is closed, and nothing is drawn."""
    proxy, engine = start(timeouts={"orphan_grace_s": 20})
    client = proxy.rollout()
    with monkeypatch.context() as broken:
        broken.setattr(ChatView, "stream_end" if stream else "whole", unable)
        if stream:
            with pytest.raises(httpx.RemoteProtocolError):
                client.stream()
        else:
            assert error_of(client.chat())["code"] == "internal_error"
    first = client.call()
    again = client.post(asked(stream=stream))
    until(lambda: client.call()["deliveries"][-1]["outcome"])
    call = client.call()

    assert again.status_code == 200
    assert [one["outcome"] for one in first["deliveries"]] == ["broken"]
    assert [(one["claim"], one["outcome"]) for one in call["deliveries"]] == [
        (None, "broken"),
        ("client_gone", "delivered"),
    ]
    assert (call["state"], call["completion_token_ids"]) == ("done", first["completion_token_ids"])
    assert len([one for one in engine.requests if one.path.endswith("/chat/completions")]) == 1


def unable(*_: object) -> bytes:
    raise RuntimeError("a fault of ours")
