"""A call that is kept where the script wants it until its owner lets it go on: no test has to hit a moment."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api.harness import until
from tests.fakes import FakeEngine, Fault, Say

KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SAY = Say("one two three", finish="length")
Start = Callable[..., FakeEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start an engine that is stopped when the test ends."""
    running: list[FakeEngine] = []

    def start_one(kind: Any, **options: Any) -> FakeEngine:
        running.append(FakeEngine(kind, **options))
        running[-1].start()
        return running[-1]

    yield start_one
    for engine in running:
        engine.stop()


class Call(threading.Thread):
    """One call on its way."""

    def __init__(self, engine: FakeEngine, *, stream: bool = False) -> None:
        super().__init__(daemon=True)
        self._url, self._stream = engine.url, stream
        self.told = ""
        self.start()

    def run(self) -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": self._stream}
        with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=60) as answer:
            for piece in answer.iter_text():
                self.told += piece

    def ended(self) -> str:
        """All that was told, once it was."""
        self.join(60)
        assert not self.is_alive()
        return self.told


@KINDS
@AS_STREAM
def test_a_halted_reply_gets_no_further_until_it_is_told_to_go_on(start: Start, kind: str, *, stream: bool) -> None:
    """Then it is the reply that it would have been."""
    engine = start(kind)
    engine.script(Fault.halt(5, SAY))
    call = Call(engine, stream=stream)
    until(lambda: engine.halted == 1)
    by_then = call.told
    engine.go_on()

    assert "three" not in by_then
    assert "length" in call.ended()
    # Its client has the end a moment before the engine has put the call away.
    assert until(lambda: (engine.halted, engine.running) == (0, 0))


@KINDS
@AS_STREAM
def test_a_halted_reply_can_be_aborted(start: Start, kind: str, *, stream: bool) -> None:
    """It has the tokens at which it was halted."""
    engine = start(kind, dev_mode=True)
    engine.script(Fault.halt(5, SAY))
    call = Call(engine, stream=stream)
    until(lambda: engine.halted == 1)
    pause = "/pause?mode=abort" if kind == "vllm" else "/pause_generation"
    httpx.post(engine.url + pause, json={"mode": "abort"}, timeout=60)

    assert '"abort"' in call.ended()
    assert "three" not in call.told


@KINDS
@pytest.mark.parametrize(
    "silence", [Fault.stall_before_headers(600, SAY), Fault.stall(2, 600, SAY), Fault.cut(2, SAY, seconds=600)]
)
def test_a_silence_ends_as_well(start: Start, kind: str, silence: Fault) -> None:
    """Whatever was to come after it comes at once; a call that has not come to its silence yet passes it."""
    engine = start(kind)
    engine.script(silence)
    call = threading.Thread(target=streamed, args=(engine,))
    call.start()
    until(lambda: engine.running == 1)
    engine.go_on()
    call.join(60)

    assert not call.is_alive()
    assert until(lambda: engine.served == 1)


def streamed(engine: FakeEngine) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    with contextlib.suppress(httpx.TransportError):
        httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=60)


def test_a_process_is_told_over_http(start: Start) -> None:
    """As it is scripted."""
    engine = start("vllm")
    script = {"fault": "halt", "after_tokens": 3}
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        client.post("/_sim/script", json=script).raise_for_status()
        call = Call(engine)
        until(lambda: client.get("/_sim/state").json()["halted"] == 1)
        client.post("/_sim/go_on").raise_for_status()

    assert '"choices"' in call.ended()
