"""Server-sent events: the same events however the bytes are cut."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.sse import read_data

# Every separator that Python's own splitlines() would fall for, and SSE must not.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
EVENTS = st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=5)
NOISE = st.sampled_from([b"", b": ping\n", b"event: x\n", b"id: 1\n", b"retry: 5\n", b"\n"])


def events_of(*chunks: bytes) -> list[bytes]:
    async def feed() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[bytes]:
        return [data async for data in read_data(feed())]

    return asyncio.run(collect())


def written(events: Sequence[Sequence[str]], newline: bytes, noise: bytes) -> bytes:
    lines = [[b"data: " + text.encode() + newline for text in texts] for texts in events]
    return b"".join(noise + b"".join(event) + newline for event in lines)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(stream) + 1) for place in places)
    return [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]


@given(EVENTS, st.sampled_from([b"\n", b"\r\n"]), NOISE, st.lists(st.integers(0, 10_000), max_size=8))
def test_any_chunking_gives_the_same_events(
    events: list[list[str]], newline: bytes, noise: bytes, places: list[int]
) -> None:
    """No event is lost, split or joined, wherever the network cuts; comments and other fields are skipped."""
    stream = written(events, newline, noise)

    assert events_of(*cut(stream, places)) == ["\n".join(texts).encode() for texts in events]


def test_byte_by_byte_is_the_same() -> None:
    """The finest cut there is, through a character of four bytes."""
    stream = 'data: {"x": "😀"}\r\n\r\ndata: [DONE]\r\n\r\n'.encode()

    assert events_of(*(bytes((byte,)) for byte in stream)) == ['{"x": "😀"}'.encode(), b"[DONE]"]


@pytest.mark.parametrize("tail", [b"data: half", b"data: half\n", b"data: half\r\n", b": ping", b"\r"])
def test_an_unterminated_last_event_is_none(tail: bytes) -> None:
    """A reply that was cut must not be read as whole."""
    assert events_of(b"data: whole\n\n" + tail) == [b"whole"]


@pytest.mark.parametrize(
    ("line", "data"),
    [(b"data:x", b"x"), (b"data: x", b"x"), (b"data:  x ", b" x "), (b"data:", b""), (b"data: a: b", b"a: b")],
)
def test_one_space_after_the_colon_is_not_data(line: bytes, data: bytes) -> None:
    """As the standard says."""
    assert events_of(line + b"\n\n") == [data]


@pytest.mark.parametrize("stream", [b"", b"\n\n\n", b": only a comment\n\n", b"event: ping\n\n", b"database: x\n\n"])
def test_without_data_there_is_no_event(stream: bytes) -> None:
    """Heartbeats are no events."""
    assert events_of(stream) == []
