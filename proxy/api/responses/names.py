"""The ids of responses and of their items: made from the request's own id, so that both lead back to the record."""

import re

RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})")
ITEM_ID = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})(?:_\d+)?")


def response_id(request_id: str) -> str:
    """The id of the response to a request."""
    return f"resp_{digits(request_id)}"


def item_id(kind: str, request_id: str, number: int | None = None) -> str:
    """The id of one item of the response to a request: `rs`, `msg`, or with the number of its call `fc` and `ctc`."""
    return f"{kind}_{digits(request_id)}" + ("" if number is None else f"_{number}")


def request_of_response(name: str) -> str | None:
    """The request that a response id leads back to, where it can be one of ours."""
    return _request(RESPONSE_ID.fullmatch(name))


def request_of_item(name: str) -> str | None:
    """The request that an item id leads back to, where it can be one of ours."""
    return _request(ITEM_ID.fullmatch(name))


def digits(request_id: str) -> str:
    """The part of a request's id that makes it unlike all others."""
    return request_id.partition("_")[2]


def _request(match: re.Match[str] | None) -> str | None:
    return f"rq_{match[1]}" if match else None
