"""Signs of life while a reply is silent: what they are, when they come, and that clients read past them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.api.harness import FOREVER, Gate, Leaver, Reader, asked, message_of, until, until_left
from tests.fakes import FakeEngine, Fault, Say
from tests.served import RolloutClient, ServedProxy, served, settings_for

WORDS = Say("one two three")
# Events by which both engines have said some of the words, and not all.
STALL_AFTER = 8
SOON = {"heartbeat_after_s": 0.05, "orphan_grace_s": FOREVER}
ASKED: Any = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}

Pair = tuple[ServedProxy, FakeEngine]
Start = Callable[..., Pair]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A proxy that soon shows signs of life, and its engine."""
    folder = tmp_path_factory.mktemp("proxy")
    with FakeEngine(request.param) as engine, served(settings_for(folder, engine.url, timeouts=SOON)) as proxy:
        yield proxy, engine


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    """The same as at its start."""
    proxy, engine = shared
    engine.requests.clear()
    store = proxy.wiring.store
    yield shared
    proxy.wiring.store = store
    engine.always(None)
    engine._engine._queue.clear()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a proxy with settings of its own, in front of an engine of its own."""
    with ExitStack() as running:

        def start_one(**fields: Any) -> Pair:
            engine = running.enter_context(FakeEngine("vllm"))
            fields["timeouts"] = SOON | fields.pop("timeouts", {})
            return running.enter_context(served(settings_for(tmp_path, engine.url, **fields))), engine

        yield start_one


def sdk_of(client: RolloutClient) -> openai.OpenAI:
    return openai.OpenAI(base_url=client.created["base_url"], api_key=client.created["api_key"], max_retries=0)


@pytest.mark.parametrize("n", [1, 2])
def test_the_sdk_reads_past_comments(pair: Pair, n: int) -> None:
    """Before the first event, in the middle, and while the record waits."""
    proxy, engine = pair
    engine.always(Fault.stall(STALL_AFTER, 0.2, WORDS))
    client = proxy.rollout()
    with sdk_of(client) as sdk:
        texts = [""] * n
        for chunk in sdk.chat.completions.create(**ASKED, stream=True, n=n):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""

    assert texts == [WORDS.text] * n


def test_comments_come_as_long_as_it_is_silent(pair: Pair) -> None:
    """Whole SSE comments, apart from the events."""
    proxy, engine = pair
    engine.script(Fault.stall_before_headers(FOREVER, WORDS))
    reader = Reader(proxy.rollout())
    until(lambda: reader.heartbeats >= 3 and engine.running)
    engine.go_on()
    reader.ended()

    assert reader.lines[1] == ""
    assert (reader.status, reader.text, reader.is_done) == (200, WORDS.text, True)


def test_a_busy_stream_gets_none(start: Start) -> None:
    """They are for silence."""
    proxy, engine = start(timeouts={"heartbeat_after_s": FOREVER})
    engine.script(Fault.slow(0.01, WORDS))

    assert Reader(proxy.rollout()).ended().heartbeats == 0


def test_comments_come_while_the_record_waits(pair: Pair) -> None:
    """A store that is slow to commit must not look like a dead proxy."""
    proxy, engine = pair
    engine.script(WORDS)
    gate = Gate(proxy)
    reader = Reader(proxy.rollout())
    until(lambda: gate.waiting and reader.text == WORDS.text)
    before = reader.heartbeats
    until(lambda: reader.heartbeats > before + 2)

    assert not reader.is_done
    gate.open()
    assert reader.ended().is_done


def test_who_joins_a_silent_reply_gets_them_too(pair: Pair) -> None:
    """Each reading has its own patience."""
    proxy, engine = pair
    client = proxy.rollout()
    engine.script(Fault.stall(STALL_AFTER, FOREVER, WORDS))
    leaver = Leaver(client, stream=True)
    until(lambda: engine.running)
    leaver.leave()
    until_left(client)
    reader = Reader(client)
    until(lambda: reader.heartbeats)
    engine.go_on()

    assert message_of(reader.ended().chunks)["content"] == WORDS.text
    assert len(engine.requests) == 1


def test_an_error_after_a_comment_is_an_event(start: Start) -> None:
    """The status is out; the SDK raises all the same."""
    proxy, engine = start()
    engine.always(Fault.cut(0, seconds=FOREVER))
    client = proxy.rollout()
    reader = Reader(client, "raw")
    until(lambda: reader.heartbeats and len(engine.requests) == 1)
    engine.go_on()
    reader.ended()
    with sdk_of(client) as sdk:
        chunks = sdk.chat.completions.create(**ASKED, stream=True)
        until(lambda: len(engine.requests) == 2)
        engine.go_on()
        with pytest.raises(openai.APIError) as raised:
            list(chunks)

    assert reader.status == 200
    assert reader.error is not None
    assert reader.error["code"] == raised.value.code == "engine_cut"
    assert not reader.is_done
    assert {one["outcome"] for call in client.calls() for one in call["deliveries"]} == {"error_told"}


def test_an_error_before_any_comment_is_a_status(start: Start) -> None:
    """Clients that retry by status can."""
    proxy, engine = start(timeouts={"heartbeat_after_s": FOREVER})
    engine.script(Fault.status(500))

    assert Reader(proxy.rollout()).ended().status == 502


def test_a_whole_reply_gets_none_by_default(pair: Pair) -> None:
    """It keeps a status of its own, however long it takes."""
    proxy, engine = pair
    engine.script(Fault.stall_before_headers(0.3, WORDS))

    assert proxy.rollout().chat().content.startswith(b"{")


@pytest.mark.parametrize("n", [1, 2])
def test_blanks_before_a_body_are_still_json(start: Start, n: int) -> None:
    """`heartbeat_unstreamed`: the SDK parses it, the header and the usage are there."""
    proxy, engine = start(heartbeat_unstreamed=True)
    engine.script(*[Fault.stall_before_headers(FOREVER, WORDS)] * n)
    client = proxy.rollout()
    with client.http.stream("POST", "/chat/completions", json=asked("raw", n=n)) as raw:
        body = raw.iter_raw(1)
        blanks = [next(body) for _ in range(3)]
        until(lambda: engine.running == n)
        engine.go_on()
        text = b"".join(body)
    engine.always(Fault.stall_before_headers(0.3, WORDS))
    with sdk_of(client) as sdk:
        reply = sdk.chat.completions.create(**ASKED, n=n)

    assert blanks == [b" "] * 3
    assert json.loads(text)["usage"]["completion_tokens"]
    assert len(raw.headers["x-rollpin-call-id"].split(", ")) == n
    assert [choice.message.content for choice in reply.choices] == [WORDS.text] * n


def test_a_quick_whole_reply_has_no_blanks(start: Start) -> None:
    """And keeps its length in a header."""
    proxy, engine = start(heartbeat_unstreamed=True, timeouts={"heartbeat_after_s": FOREVER})
    engine.script(WORDS)
    reply = proxy.rollout().chat()

    assert int(reply.headers["content-length"]) == len(reply.content)


def test_an_error_after_blanks_is_told_in_the_body(start: Start) -> None:
    """With status 200, which is why the setting is off by default."""
    proxy, engine = start(heartbeat_unstreamed=True)
    engine.script(Fault.cut(0, seconds=FOREVER))
    client = proxy.rollout()
    with client.http.stream("POST", "/chat/completions", json=asked()) as reply:
        body = reply.iter_raw(1)
        blank = next(body)
        until(lambda: engine.running)
        engine.go_on()
        text = b"".join(body)

    assert (reply.status_code, blank) == (200, b" ")
    assert json.loads(text)["error"]["code"] == "engine_cut"
    assert client.call()["deliveries"][0]["outcome"] == "error_told"


def test_a_client_that_leaves_between_comments_is_noticed(start: Start) -> None:
    """Signs of life do not keep an orphan alive."""
    proxy, engine = start(timeouts={"orphan_grace_s": 0.05})
    engine.script(Fault.stall_before_headers(FOREVER))
    client = proxy.rollout()
    leaver = Leaver(client, stream=True)
    leaver.read_until(b": ")
    leaver.leave()

    until(lambda: engine.running == 0)
    assert client.call()["failure"]["kind"] == "client_gone"


def test_anthropics_sdk_reads_past_pings(pair: Pair) -> None:
    """Before the first event, in the middle, and while the record waits."""
    proxy, engine = pair
    engine.script(Fault.stall(STALL_AFTER, FOREVER, WORDS))
    engine.always(Fault.stall(STALL_AFTER, 0.2, WORDS))
    client = proxy.rollout()
    body: Any = {"model": "policy", "max_tokens": 100, "messages": ASKED["messages"]}
    with client.http.stream("POST", "/messages", json=body | {"stream": True}) as response:
        lines = response.iter_lines()
        pinged = "event: ping" in lines
        until(lambda: engine.running)
        engine.go_on()
        list(lines)
    created = client.created
    with (
        anthropic.Anthropic(base_url=created["anthropic_base_url"], api_key=created["api_key"], max_retries=0) as sdk,
        sdk.messages.stream(**body) as stream,
    ):
        message = stream.get_final_message()

    assert pinged
    assert [block.text for block in message.content if block.type == "text"] == [WORDS.text]
