"""Server-sent events, cut out of a byte stream however it is chunked. Comments, ids and event names are not kept."""

from collections.abc import AsyncIterator


async def read_data(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each complete event; what stands after the last blank line of a cut stream is no event."""
    pending, data = b"", list[bytes]()
    async for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")  # noqa: PLW2901  the line without its ending
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
