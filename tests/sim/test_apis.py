"""What goes wrong in chat goes wrong in the other APIs too: one script, one draw, one way to break."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine, Fault, Say, ToolSay

Json = dict[str, Any]

CALLED = Say("let me see", reasoning="hm", calls=(ToolSay("add", '{"a": 1}'),))
BODIES: dict[str, Json] = {
    "messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300},
    "responses": {"input": "hello", "max_output_tokens": 300},
}
NO_USAGE = {"messages": {"input_tokens", "output_tokens"}, "responses": None}
APIS = pytest.mark.parametrize("api", list(BODIES))
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    """One of each kind."""
    with FakeEngine(request.param) as fake:
        yield fake


def ask(engine: FakeEngine, api: str, *, stream: bool) -> httpx.Response:
    return httpx.post(f"{engine.url}/v1/{api}", json={"model": "tiny", "stream": stream, **BODIES[api]})


def payloads(answer: httpx.Response) -> list[Json]:
    """All that an answer tells: its body, or the payloads of its events."""
    lines = answer.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and not line.startswith("event: ")]


@APIS
@AS_STREAM
def test_the_last_json_may_be_half(engine: FakeEngine, api: str, *, stream: bool) -> None:
    """Of a reply that is not streamed, the only one."""
    engine.script(Fault.half_json(CALLED))
    answer = ask(engine, api, stream=stream)

    with pytest.raises(json.JSONDecodeError):
        payloads(answer)


@APIS
@AS_STREAM
@pytest.mark.parametrize("fault", [Fault.no_ids, Fault.wrong_count, Fault.no_logprobs, Fault.null_logprob])
def test_what_these_apis_do_not_tell_cannot_be_missing(
    engine: FakeEngine, api: str, fault: Callable[[Say], Fault], *, stream: bool
) -> None:
    """Ids and logprobs: the reply is as it would be."""
    engine.script(fault(CALLED), CALLED)
    broken, sound = (len(payloads(ask(engine, api, stream=stream))) for _ in range(2))

    assert broken == sound


@APIS
@AS_STREAM
def test_usage_may_be_missing(engine: FakeEngine, api: str, *, stream: bool) -> None:
    """Responses have none then; a message has to have some, and tells of no output."""
    engine.script(Fault.no_usage(CALLED))
    told = payloads(ask(engine, api, stream=stream))
    usages = [told[-1].get("response", told[-1]).get("usage"), *(one["usage"] for one in told if one.get("usage"))]

    assert usages[-1] is None if api == "responses" else usages[-1]["output_tokens"] == 0


@APIS
@pytest.mark.parametrize(
    ("fault", "status", "kind"), [(Fault.refuse(503), 503, "application/json"), (Fault.html(502), 502, "text/html")]
)
def test_a_busy_engine_and_a_machine_in_between(
    engine: FakeEngine, api: str, fault: Fault, status: int, kind: str
) -> None:
    """The first says when to come back, the second knows nothing of APIs."""
    engine.script(fault)
    answer = ask(engine, api, stream=True)

    assert answer.status_code == status
    assert answer.headers["content-type"].startswith(kind)
    assert ("retry-after" in answer.headers) == (status == 503)


@APIS
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_stream_that_is_aborted_comes_to_its_end(kind: Any, api: str) -> None:
    """What has been told stays, and the open block or item is closed."""
    body = {"model": "tiny", "stream": True, **BODIES[api]}
    path, everything = ("/abort_requests", {}) if kind == "vllm" else ("/abort_request", {"abort_all": True})
    with FakeEngine(kind, dev_mode=True) as engine:
        engine.script(Fault.stall(12, 600, Say("so be it " * 30, reasoning="hm")))
        with httpx.stream("POST", f"{engine.url}/v1/{api}", json=body) as answer:
            names = (line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: "))
            told = list(islice(names, 12))
            httpx.post(engine.url + path, json=everything)
            told.extend(names)

    opened, closed = {"messages": ("block_start", "block_stop"), "responses": ("item.added", "item.done")}[api]
    assert told[-1] == {"messages": "message_stop", "responses": "response.failed"}[api]
    assert sum(name.endswith(opened) for name in told) == sum(name.endswith(closed) for name in told) == 2
    assert len(told) < 30
