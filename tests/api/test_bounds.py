"""What a client may send of stops and keys has bounds in every API, and what is over them changes nothing."""

from typing import Any

import pytest

from proxy.request.identify import LONGEST_IDEMPOTENCY_KEY
from proxy.request.sampling import LONGEST_STOP, MOST_STOPS
from tests.api.harness import Json
from tests.served import RolloutClient

HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, Json] = {
    "/chat/completions": {"messages": HELLO},
    "/completions": {"prompt": "hello"},
    "/messages": {"messages": HELLO, "max_tokens": 16},
    "/responses": {"input": "hello"},
}
EVERY_API = pytest.mark.parametrize("path", BODIES)
MANY, LONG = ["x"] * (MOST_STOPS + 1), ["x" * (LONGEST_STOP + 1)]
BEYOND = [(name, value) for name in ("stop", "stop_sequences") for value in (MANY, LONG)]
BEYOND.append(("stop_token_ids", [7] * (MOST_STOPS + 1)))


def send(rollout: RolloutClient, path: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return rollout.http.post(path, json={"model": "policy", **BODIES[path], **fields}, headers=headers)


def refusal_of(answer: Any, path: str) -> str:
    """The sentence of an error in the API's own form."""
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert answer.headers["x-should-retry"] == "false"
    assert error["type"] == "invalid_request_error"
    assert (set(answer.json()) == {"type", "error"}) == (path == "/messages")
    return str(error["message"])


@EVERY_API
@pytest.mark.parametrize("key", ["", "k" * (LONGEST_IDEMPOTENCY_KEY + 1), "a\tb"], ids=["empty", "long", "unprintable"])
def test_a_key_out_of_bounds_is_refused(rollout: RolloutClient, path: str, key: str) -> None:
    """It is kept with the call."""
    answer = send(rollout, path, {"idempotency-key": key})

    assert f"Idempotency-Key: 1 to {LONGEST_IDEMPOTENCY_KEY}" in refusal_of(answer, path)
    assert rollout.proxy.calls(rollout.rollout_id) == []


@EVERY_API
def test_the_longest_key_is_a_key(rollout: RolloutClient, path: str) -> None:
    """Asked twice, answered once."""
    headers = {"idempotency-key": "k" * LONGEST_IDEMPOTENCY_KEY}
    first, again = [send(rollout, path, headers) for _ in range(2)]

    assert first.headers["x-rollpin-call-id"] == again.headers["x-rollpin-call-id"] == rollout.call()["call_id"]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [(path, name, value) for path in BODIES for name, value in BEYOND if (path == "/messages") == ("seq" in name)],
)
def test_stops_out_of_bounds_are_refused_by_the_clients_name_for_them(
    rollout: RolloutClient, path: str, name: str, value: Any
) -> None:
    """Engines hold each against the reply at every token."""
    answer = send(rollout, path, **{name: value})

    assert refusal_of(answer, path).startswith(f"{name}: at most {MOST_STOPS}")
    assert rollout.proxy.calls(rollout.rollout_id) == []


@EVERY_API
def test_as_many_stops_as_may_be_reach_the_engine(rollout: RolloutClient, path: str) -> None:
    """As the client wrote them."""
    stops = [str(number) * (LONGEST_STOP // 2) for number in range(10, 10 + MOST_STOPS)]
    answer = send(rollout, path, **{"stop_sequences" if path == "/messages" else "stop": stops})

    assert answer.status_code == 200, answer.text
    assert rollout.call()["sampling"]["length"]["stop"] == stops
