"""A reply that is aborted in the middle of a character goes on with the character whole, and nobody sees a replacement.

Engines wait with the bytes of a character until all have come. SGLang waits no longer where it aborts a reply: it tells
U+FFFD for what it has, and closes the arguments of half a call. Bytes that are no UTF-8 at all are U+FFFD as well.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.fakes.tokens import CALL_START, decode
from tests.fakes.tokens import END_OF_TEXT as FIRST_MARKUP
from tests.patience import until
from tests.served import RolloutClient, served, settings_for

Json = dict[str, Any]
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": ADD}
# Characters of two, three and four bytes, a U+FFFD that was really said, and bytes that are no UTF-8.
SPOKEN = Say("é\udcc3€ \ufffd😀\udcf0\udc9f\udcff.", reasoning="ça\udce2\udc82")
CALLING = Say("é", reasoning="", calls=(ToolSay("add", '{"a": [{"é\\"": "😀"}]}'),))
CUT_OFF = {"half": Say("né\udcf0\udc9f", finish="length"), "none": Say("né \udcff\udcff", finish="length")}
# Of a call's markup, what stands before its arguments; aborts in there are test_interruptions' matter.
CALL_HEAD = len('\n{"name": "add", "arguments": ')
THRICE = Say("😀€é", reasoning="")


@dataclass(frozen=True, slots=True)
class Site:
    """A proxy, and its engine."""

    client: RolloutClient
    engine: FakeEngine
    control: httpx.Client

    def order(self, path: str, **body: Any) -> None:
        """Tell the control plane what it must do."""
        self.control.post(path, json=body).raise_for_status()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Any], Site]]:
    """Start a proxy in front of an engine of its own."""
    with ExitStack() as running:
        numbers = iter(range(10))

        def start_one(kind: Any) -> Site:
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            engine = running.enter_context(FakeEngine(kind, dev_mode=True))
            proxy = running.enter_context(served(settings_for(folder, engine.url)))
            return Site(proxy.rollout(group="g"), engine, proxy.control)

        yield start_one


# How the clients of each API ask, and what they have read in the end.


def chat(client: RolloutClient, text: str, *, stream: bool, **fields: Any) -> Json:
    body = {"messages": [{"role": "user", "content": text}], "tools": [CHAT_TOOL], **fields}
    return heard(client, "/chat/completions", body, stream=stream)


def plain(client: RolloutClient, text: str, *, stream: bool, **fields: Any) -> Json:
    return heard(client, "/completions", {"prompt": text, "max_tokens": 100, **fields}, stream=stream)


def messages(client: RolloutClient, text: str, *, stream: bool, **fields: Any) -> Json:
    tool = {"name": "add", "description": "Add.", "input_schema": {"type": "object"}}
    body = {"messages": [{"role": "user", "content": text}], "tools": [tool], "max_tokens": 400, **fields}
    return heard(client, "/messages", body, stream=stream)


def responses(client: RolloutClient, text: str, *, stream: bool, **fields: Any) -> Json:
    body = {"input": text, "tools": [{"type": "function", **ADD, "strict": False}], **fields}
    return heard(client, "/responses", body, stream=stream)


def heard(client: RolloutClient, path: str, body: Json, *, stream: bool) -> Json:
    """Each kind of text as a client puts it together."""
    answer = client.http.post(path, json={"model": "policy", "stream": stream, **body})
    assert answer.status_code == 200, answer.text
    said: Json = {}
    for kind, text in texts_of_stream(answer) if stream else texts_of_whole(answer.json()):
        said[kind] = said.get(kind, "") + text
    return {kind: text for kind, text in said.items() if text}


def texts_of_whole(body: Json) -> Iterator[tuple[str, str]]:
    for choice in body.get("choices") or ():
        yield from texts_of_delta(choice.get("message") or {"content": choice.get("text")})
    for block in body.get("content") or ():
        yield block["type"], block.get("text") or block.get("thinking") or json.dumps(block.get("input"))
    for item in body.get("output") or ():
        parts = item.get("content") or [{"text": item.get("arguments")}]
        yield item["type"], "".join(part["text"] for part in parts)


def texts_of_stream(answer: httpx.Response) -> Iterator[tuple[str, str]]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    for event in (json.loads(line) for line in lines if line != "[DONE]"):
        assert "error" not in event, event
        for choice in event.get("choices") or ():
            yield from texts_of_delta(choice.get("delta") or {"content": choice.get("text")})
        yield from texts_of_event(event)


def texts_of_delta(delta: Json) -> Iterator[tuple[str, str]]:
    for name in ("content", "reasoning_content"):
        yield name, delta.get(name) or ""
    for call in delta.get("tool_calls") or ():
        yield "call", call["function"].get("arguments") or ""


def texts_of_event(event: Json) -> Iterator[tuple[str, str]]:
    """What an event of Messages or Responses adds."""
    kinds = {
        "response.output_text.delta": "message",
        "response.reasoning_text.delta": "reasoning",
        "response.function_call_arguments.delta": "function_call",
        "text_delta": "text",
        "thinking_delta": "thinking",
        "input_json_delta": "tool_use",
    }
    delta = event.get("delta")
    if isinstance(delta, str) and event["type"] in kinds:
        yield kinds[event["type"]], delta
    elif isinstance(delta, dict) and delta.get("type") in kinds:
        yield kinds[delta["type"]], delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""


def rest_of(say: Say, after: int, ask: Any) -> Say:
    """What comes behind so many tokens; a plain prompt does not show the engine that they were said before."""
    if ask is not plain:
        return say
    ids = [token for token in say.ids(thinking=False)[after:] if token < FIRST_MARKUP]
    return replace(say, text=bytes(ids).decode(errors="surrogateescape"))


def check_every_cut(site: Site, ask: Any, say: Say, *, stream: bool) -> Json:
    """Wherever the abort falls, the client reads what it reads without one, and so does the record."""
    ids = say.ids(thinking=ask is not plain)
    site.engine.script(say)
    whole, once = ask(site.client, "whole", stream=stream), site.client.call()
    first = ids.index(CALL_START) + CALL_HEAD if say.calls else 1
    for after in range(first, len(ids)):
        site.engine.script(Fault.abort(after, say), rest_of(say, after, ask))

        assert ask(site.client, f"cut {after}", stream=stream) == whole, after
    for call in site.client.calls():
        assert spoken(call) == spoken(once), call["segments"]
        assert tuple(call["completion_token_ids"]) == ids
        assert len(call["logprobs"]) == len(ids)
    return whole


def spoken(call: Json) -> Json:
    """The message of a record, without the ids of its calls."""
    calls = [called["function"] for called in call["message"].get("tool_calls") or ()]
    return {**call["message"], "tool_calls": calls}


@KINDS
@AS_STREAM
@pytest.mark.parametrize("say", [SPOKEN, CALLING], ids=["spoken", "calling"])
def test_wherever_the_abort_falls_chat_reads_the_uninterrupted_reply(
    start: Callable[[Any], Site], kind: str, say: Say, *, stream: bool
) -> None:
    """Within the first character and behind the last byte, in thought, words and arguments."""
    check_every_cut(start(kind), chat, say, stream=stream)


@KINDS
@AS_STREAM
def test_wherever_the_abort_falls_a_completion_is_the_uninterrupted_one(
    start: Callable[[Any], Site], kind: str, *, stream: bool
) -> None:
    """It has no parser, and no events of its own for what an abort tells."""
    check_every_cut(start(kind), plain, SPOKEN, stream=stream)


@pytest.mark.parametrize("ask", [messages, responses])
@pytest.mark.parametrize("say", [SPOKEN, CALLING], ids=["spoken", "calling"])
def test_wherever_the_abort_falls_streams_of_other_apis_read_the_uninterrupted_reply(
    start: Callable[[Any], Site], ask: Any, say: Say
) -> None:
    """Their events are made of chat's; on SGLang, which tells replacements."""
    check_every_cut(start("sglang"), ask, say, stream=True)


@KINDS
@pytest.mark.parametrize("ask", [chat, plain, messages, responses])
def test_a_stream_says_what_a_whole_reply_says_of_the_same_tokens(
    start: Callable[[Any], Site], kind: str, ask: Any
) -> None:
    """What is no character is U+FFFD in both, cut or not."""
    site = start(kind)
    site.engine.script(SPOKEN, SPOKEN, Fault.abort(9, SPOKEN), rest_of(SPOKEN, 9, ask))
    whole, streamed, cut = (ask(site.client, str(n), stream=n > 0) for n in range(3))

    assert whole == streamed == cut
    assert any(text.endswith("é\ufffd€ \ufffd😀\ufffd\ufffd.") for text in whole.values())


@KINDS
@AS_STREAM
@pytest.mark.parametrize("ask", [chat, plain])
@pytest.mark.parametrize("say", CUT_OFF.values(), ids=CUT_OFF)
def test_a_reply_that_ends_in_half_a_character_ends_as_the_engine_has_it(
    start: Callable[[Any], Site], kind: str, ask: Any, say: Say, *, stream: bool
) -> None:
    """SGLang tells U+FFFD, vLLM leaves it out: also where the reply had been cut before."""
    whole = check_every_cut(start(kind), ask, say, stream=stream)

    assert ("\ufffd" in whole["content"]) == (kind == "sglang")


@KINDS
@AS_STREAM
def test_each_choice_is_cut_in_a_character_of_its_own(start: Callable[[Any], Site], kind: str, *, stream: bool) -> None:
    """Two of three replies to one request."""
    site = start(kind)
    site.engine.script(Fault.abort(3, THRICE), Fault.abort(7, THRICE), *[THRICE] * 3)
    body = {"model": "policy", "messages": [{"role": "user", "content": "go"}], "n": 3, "stream": stream}
    texts = ["", "", ""]
    for choice in choices_of(site.client.http.post("/chat/completions", json=body), stream=stream):
        texts[choice["index"]] += choice["delta" if stream else "message"].get("content") or ""

    assert texts == [THRICE.text] * 3
    assert sorted(len(call["segments"]) for call in site.client.calls()) == [1, 2, 2]


def choices_of(answer: httpx.Response, *, stream: bool) -> Iterator[Json]:
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    for body in map(json.loads, lines) if stream else [answer.json()]:
        yield from body["choices"]


@KINDS
@pytest.mark.parametrize("into", [1, 2, 3])
def test_a_pause_that_cuts_a_stream_in_mid_character_shows_no_replacement(
    start: Callable[[Any], Site], kind: str, into: int
) -> None:
    """By the control plane, once the client has what came before; it reads on after the resume."""
    site, say = start(kind), Say("ab😀c")
    after = say.ids(thinking=True).index("😀".encode()[0]) + into
    site.engine.script(Fault.halt(after, say), say)
    text, told = "", 0
    body = {"model": "policy", "messages": [{"role": "user", "content": "go"}], "stream": True, "logprobs": True}
    with site.client.http.stream("POST", "/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                text += choice["delta"].get("content") or ""
                entries = (choice.get("logprobs") or {}).get("content") or ()
                told += len(entries)
                if entries and told == after:
                    assert text == "ab"
                    until(lambda: site.engine.halted == 1)
                    site.order("/pause", mode="abort", lease_s=600)
                    site.order("/resume")
    call = site.client.call()

    assert text == call["message"]["content"] == "ab😀c"
    assert [part["end"] for part in call["segments"]] == [after, len(say.ids(thinking=True))]


def test_what_was_shown_and_is_no_beginning_of_the_whole_fails_aloud(
    start: Callable[[Any], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that reads another text off all ids than it had shown of the first."""
    site, ids = start("sglang"), THRICE.ids(thinking=True)

    def other(tokens: list[int], *, skip_special: bool) -> str:
        return decode(tokens, skip_special=skip_special) if len(tokens) < len(ids) - 1 else "</think>another"

    monkeypatch.setattr("proxy.sim.sglang.endpoints.decode", other)
    site.engine.script(Fault.abort(8, THRICE), THRICE)

    assert "resume_failed" in site.client.chat(stream=True).text
    assert site.client.call()["failure"]["kind"] == "resume_failed"
