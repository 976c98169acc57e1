"""What a Messages client should not send, and what it is told: Anthropic's form, the rollout untouched."""

import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conftest import Start
from tests.api.harness import Gate
from tests.api.messages.speaking import ADD, hello, post, refusal, sdk_of
from tests.fakes import FakeEngine, Fault, Say
from tests.served import RolloutClient, ServedProxy, served, settings_for

PATHS = ["/messages", "/messages/count_tokens"]
ADDRESSED: list[tuple[str, dict[str, str], int, str, str]] = [
    ("/rollouts/nobody/v1{}", {}, 404, "not_found_error", "unknown_rollout"),
    ("/rollouts/{rollout}/v1{}", {"x-api-key": "sk-foreign"}, 401, "authentication_error", "invalid_api_key"),
    ("/v1{}", {"x-api-key": "rk-{rollout}-00"}, 401, "authentication_error", "invalid_api_key"),
    ("/v1{}", {}, 401, "authentication_error", "invalid_api_key"),
    ("/rollouts/{rollout}{}", {}, 401, "authentication_error", "invalid_api_key"),
    ("/rollouts/a%20b/v1{}", {}, 400, "invalid_request_error", "invalid_rollout_id"),
    ("/rollouts/{rollout}/v1{}/nowhere", {}, 404, "not_found_error", "unknown_route"),
    ("/rollouts/{rollout}/v1/v1{}", {}, 404, "not_found_error", "unknown_route"),
]
# What goes wrong, the SDK's class for it, how often the engine is asked with one retry allowed.
FAULTS: list[tuple[Fault, type[anthropic.APIStatusError], int]] = [
    (Fault.status(400), anthropic.BadRequestError, 1),
    (Fault.status(422), anthropic.BadRequestError, 1),
    (Fault.status(500), anthropic.InternalServerError, 2),
    (Fault.refuse(429), anthropic.RateLimitError, 2),
    (Fault.refuse(503), anthropic.OverloadedError, 2),
]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedProxy, FakeEngine]]:
    """A proxy of its own for requests that nobody should answer."""
    with FakeEngine("sglang") as fake, served(settings_for(tmp_path_factory.mktemp("quiet"), fake.url)) as proxy:
        yield proxy, fake


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("where", "headers", "status", "kind", "code"), ADDRESSED)
def test_who_may_not_call_is_told_in_anthropics_form(
    rollout: RolloutClient, path: str, where: str, headers: dict[str, str], status: int, kind: str, code: str
) -> None:
    """And told not to come back."""
    named = {name: value.replace("{rollout}", rollout.rollout_id) for name, value in headers.items()}
    url = rollout.proxy.url + where.replace("{rollout}", rollout.rollout_id).replace("{}", path)
    if "nobody" in where:
        named["x-api-key"] = rollout.created["api_key"]
    answer = httpx.post(url, json=hello(), headers=named)

    assert (answer.status_code, refusal(answer)["type"], answer.headers["x-rollpin-error"]) == (status, kind, code)
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_other_methods_are_told_so(rollout: RolloutClient, path: str, method: str) -> None:
    """With no body where HEAD asks."""
    answer = rollout.http.request(method, path)

    assert answer.status_code == 405
    assert method == "HEAD" or refusal(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ending", ["finish", "delete"])
def test_a_closed_rollout_is_410(rollout: RolloutClient, path: str, ending: str) -> None:
    """Which SDKs do not retry; counting tokens is over too."""
    place = f"/rollouts/{rollout.rollout_id}"
    rollout.proxy.control.post(f"{place}/finish") if ending == "finish" else rollout.proxy.control.delete(place)
    answer = post(rollout, hello(), path)

    assert (answer.status_code, answer.headers["x-should-retry"]) == (410, "false")
    assert refusal(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"", b"hello", b"[]", b'{"messages": ', b'{"max_tokens": NaN}'])
def test_a_body_that_is_no_json_object_is_refused(rollout: RolloutClient, path: str, body: bytes) -> None:
    """As in every API."""
    answer = rollout.http.post(path, content=body)

    assert (answer.status_code, answer.headers["x-rollpin-error"]) == (400, "invalid_json")
    assert refusal(answer)["type"] == "invalid_request_error"


def test_a_body_over_the_limit_is_too_large(start: Start) -> None:
    """By Anthropic's own type for it."""
    proxy, _ = start(limits={"body_bytes": 2000})
    answer = post(proxy.rollout(), hello("x" * 3000))

    assert (answer.status_code, refusal(answer)["type"]) == (413, "request_too_large")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_overflow_has_the_words_that_claude_code_looks_for(rollout: RolloutClient, *, stream: bool) -> None:
    """It compacts its conversation and goes on."""
    answer = post(rollout, hello("x" * 5000, stream=stream))

    assert answer.status_code == 400
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 4096 maximum", refusal(answer)["message"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fault", "raised", "asked"), FAULTS, ids=["400", "422", "500", "429", "503"])
def test_errors_are_the_sdks_own_and_retried_only_where_it_helps(
    rollout: RolloutClient,
    engine: FakeEngine,
    fault: Fault,
    raised: type[anthropic.APIStatusError],
    asked: int,
    *,
    stream: bool,
) -> None:
    """X-should-retry keeps the SDK from asking again what cannot succeed."""
    before = len(engine.requests) + len(engine.refused)
    engine.script(fault, fault)
    with sdk_of(rollout, max_retries=1) as sdk, pytest.raises(raised) as error:
        sdk.messages.create(**hello(), stream=stream)

    assert len(engine.requests) + len(engine.refused) - before == asked
    assert isinstance(error.value.body, dict)
    assert error.value.body["type"] == "error"


def test_a_store_that_is_down_is_an_overload(start: Start) -> None:
    """529: the client waits and comes back."""
    proxy, engine = start(timeouts={"commit_wait_s": 0.01})
    client, gate = proxy.rollout(), Gate(proxy)
    gate.refuses_reservations = True
    answer = post(client, hello())

    assert (answer.status_code, refusal(answer)["type"]) == (529, "overloaded_error")
    assert "x-should-retry" not in answer.headers
    assert answer.headers["retry-after"]
    assert engine.requests == []


def test_a_record_that_is_lost_ends_the_stream_with_an_error(start: Start) -> None:
    """Not with its stop reason."""
    proxy, engine = start(timeouts={"commit_wait_s": 0.01})
    client, gate = proxy.rollout(), Gate(proxy)
    gate.refuses_records = True
    engine.script(Say("so be it"))
    answer = post(client, hello(stream=True))
    gate.open()
    last = answer.text.strip().split("\n\n")[-1]

    assert answer.status_code == 200
    assert last.startswith("event: error\n")
    assert json.loads(last.split("data: ")[1])["error"]["type"] == "overloaded_error"
    assert 'stop_reason":"' not in answer.text


def test_an_engine_that_cannot_count_is_told_as_its_fault(start: Start) -> None:
    """Not as a number that nobody counted."""
    proxy, engine = start()
    client = proxy.rollout()
    engine.stop()
    answer = post(client, hello(), "/messages/count_tokens")

    assert (answer.status_code, refusal(answer)["type"]) == (502, "api_error")
    assert proxy.calls(client.rollout_id) == []


# --- anything at all ---

JUNK: Any = st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False, allow_infinity=False, width=16)
WORDS = st.sampled_from(["", "hi", "user", "text", "\ud800", "add", "toolu_1"])
VALUES: Any = st.recursive(
    JUNK | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
TYPES = ["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking", "document", "server_tool_use"]
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)},
    optional={
        "text": WORDS | VALUES,
        "thinking": WORDS,
        "id": WORDS,
        "name": WORDS,
        "input": st.dictionaries(WORDS, VALUES, max_size=2) | VALUES,
        "tool_use_id": WORDS,
        "content": WORDS | VALUES,
        "is_error": st.booleans(),
        "source": st.fixed_dictionaries(
            {"type": st.sampled_from(["base64", "url", "file"])},
            optional={"media_type": st.just("image/png"), "data": WORDS, "url": st.just("http://example.org/a")},
        ),
        "cache_control": st.just({"type": "ephemeral"}),
        "citations": VALUES,
    },
)
CONTENT = WORDS | st.lists(BLOCKS, max_size=4) | VALUES
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": CONTENT}, optional={"x": VALUES}
    ),
    max_size=4,
)
BODIES = st.fixed_dictionaries(
    {"messages": MESSAGES | VALUES, "max_tokens": st.integers(1, 3) | VALUES},
    optional={
        "model": st.just("m") | VALUES,
        "system": CONTENT,
        "stream": st.booleans(),
        "tools": st.lists(st.just(ADD) | st.dictionaries(WORDS, VALUES, max_size=2), max_size=2) | VALUES,
        "tool_choice": st.sampled_from([{"type": kind, "name": "add"} for kind in ("auto", "any", "tool", "none")])
        | VALUES,
        "stop_sequences": st.lists(WORDS, max_size=2) | VALUES,
        "temperature": VALUES,
        "top_k": VALUES,
        "seed": VALUES,
        "thinking": VALUES,
        "metadata": VALUES,
        "output_config": VALUES,
        "n": VALUES,
        "logit_bias": VALUES,
    },
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(body=BODIES, path=st.sampled_from(PATHS))
def test_no_body_breaks_the_proxy_or_changes_the_rollout(
    quiet: tuple[ServedProxy, FakeEngine], body: dict[str, Any], path: str
) -> None:
    """Served, or refused for a documented reason of the client's own with nothing written down."""
    proxy, _ = quiet
    client = proxy.rollout()
    answer = client.http.post(path, content=json.dumps(body).encode())

    if answer.status_code == 200:
        assert len(proxy.settled_calls(client.rollout_id)) == 1 if path == "/messages" else True
        return
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    assert refusal(answer)["type"] == "invalid_request_error"
    assert answer.headers["x-should-retry"] == "false"
    if answer.headers["x-rollpin-error"] not in {"engine_refused", "context_length_exceeded"}:
        assert proxy.calls(client.rollout_id) == []
