"""Media in requests: what an engine may be handed, and what it would have to fetch from elsewhere."""

import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from proxy.errors import BadAsk
from proxy.model import JsonObject

PROSE = frozenset({"text", "content", "title", "arguments"})
HAS_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:[^\s]")


def check_media(messages: Sequence[JsonObject], allowed_hosts: tuple[str, ...]) -> None:
    """Refuse media that the engine would fetch from elsewhere, and parts that stand for tensors; raises BadAsk."""
    for index, message in enumerate(messages):
        for part in _parts(message.get("content")):
            if str(part.get("type")).endswith("_embeds"):
                raise _media_refused(index, f"{part['type']} parts are not passed on")
            for url in _media_urls(part):
                if not may_fetch(url, allowed_hosts):
                    raise _media_refused(index, f"media must come as data: URLs, not from {url[:80]!r}")


def may_fetch(url: str, allowed_hosts: tuple[str, ...]) -> bool:
    """Whether an engine may be given this URL: data: always, http(s) from an allowed host told in a plain way."""
    if url.startswith("data:"):
        return True
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and parts.netloc in allowed_hosts and "\\" not in url


def _media_refused(index: int, why: str) -> BadAsk:
    return BadAsk(f"messages[{index}]: {why}", code="media_url_refused", param=f"messages[{index}].content")


def _parts(value: object) -> Iterator[JsonObject]:
    """Every object inside a list of content parts, however deep."""
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _parts(item)


def _media_urls(part: JsonObject) -> Iterator[str]:
    """Texts of a part that an engine could take for an address: in URL fields, and anything with a scheme elsewhere."""
    for name, value in part.items():
        if name.endswith("_url"):
            yield str(value.get("url")) if isinstance(value, dict) else str(value)
        elif isinstance(value, str) and name not in PROSE and HAS_SCHEME.match(value):
            yield value
