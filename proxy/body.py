"""Reading a request body: bounded, and a JSON object or a clear refusal."""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from proxy.canonical import strict_json
from proxy.errors import BadAsk, BodyTooLarge
from proxy.model import JsonObject

# Deeper than any schema or document; Python's own JSON writer gives up at about 1000.
DEEPEST_NESTING = 100
# A client that is still sending sees our answer only once its body was taken; beyond this we hang up instead.
MOST_DRAINED_BYTES = 1_000_000_000


def json_object(text: bytes) -> JsonObject:
    """The body as a JSON object; raises BadAsk."""
    if not text.strip():
        raise BadAsk("the body is empty; a JSON object is needed", code="invalid_json")
    try:
        value = strict_json(text)
    except RecursionError:
        raise BadAsk("the body is nested too deeply", code="invalid_json") from None
    except UnicodeDecodeError:
        raise BadAsk("the body is not JSON: text that is not valid Unicode", code="invalid_json") from None
    except ValueError as error:
        raise BadAsk(f"the body is not JSON: {error}", code="invalid_json") from None
    if is_deeper(value, DEEPEST_NESTING):
        raise BadAsk("the body is nested too deeply", code="invalid_json")
    if not isinstance(value, dict):
        raise BadAsk(f"the body must be a JSON object, not {_json_type(value)}", code="invalid_json")
    return value


async def read_body(request: Request, limit: int) -> bytes:
    """The body, at most `limit` bytes; a longer one is taken and thrown away before BodyTooLarge is raised."""
    parts: list[bytes] = []
    received = 0
    async for part in request.stream():
        received += len(part)
        if received <= limit:
            parts.append(part)
        elif received > MOST_DRAINED_BYTES:
            break
        else:
            parts.clear()
    if received > limit:
        raise BodyTooLarge(f"the body is over the limit of {limit} bytes (limits.body_bytes)")
    return b"".join(parts)


def is_deeper(value: object, levels: int) -> bool:
    """Whether containers stand in each other beyond so many levels, told without recursion."""
    layer = [value]
    for _level in range(levels + 1):
        layer = [item for held in layer for item in _items(held)]
        if not layer:
            return False
    return True


def _items(container: Any) -> Iterable[object]:
    if isinstance(container, dict):
        return container.values()
    return container if isinstance(container, list) else ()


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    return {list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number")
