"""The official OpenAI client against the proxy: what it reads, what it raises, and what it retries."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from tests.api.conftest import Start
from tests.api.harness import ADD, Gate, until
from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.served import RolloutClient

ASKED: dict[str, Any] = {"model": "gpt-9", "messages": [{"role": "user", "content": "hello"}]}
SAID = Say("so be it", reasoning="hm")
CALLED = Say("let me see", calls=(ToolSay("add", '{"a": 1}'), ToolSay("add", '{"a": 2}')))
# What a fault is to the client, and how many requests the engine gets for one call with two retries.
RAISED: dict[str, tuple[Fault, type[openai.APIStatusError], int]] = {
    "400": (Fault.status(400), openai.BadRequestError, 1),
    "404": (Fault.status(404), openai.NotFoundError, 1),
    "422": (Fault.status(422), openai.BadRequestError, 1),
    "500": (Fault.status(500), openai.InternalServerError, 2),
}


def sdk_of(client: RolloutClient, **fields: Any) -> openai.OpenAI:
    created = client.created
    return openai.OpenAI(**{"base_url": created["base_url"], "api_key": created["api_key"], "max_retries": 0, **fields})


@pytest.fixture
def sdk(rollout: RolloutClient) -> Iterator[openai.OpenAI]:
    """The client of one rollout; it never retries."""
    with sdk_of(rollout) as made:
        yield made


def test_a_whole_reply(sdk: openai.OpenAI, rollout: RolloutClient, engine: FakeEngine) -> None:
    """With the headers of the answer at hand."""
    engine.script(SAID)
    answer = sdk.chat.completions.with_raw_response.create(**ASKED)
    reply = answer.parse()

    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("so be it", "stop")
    assert reply.choices[0].message.reasoning_content == "hm"  # type: ignore[attr-defined]
    assert reply.model == "gpt-9"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(rollout.call()["completion_token_ids"])
    assert answer.headers["x-rollpin-call-id"] == rollout.call()["call_id"]


def test_a_streamed_reply(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    """Chunk by chunk, the usage last."""
    engine.script(SAID)
    chunks = list(sdk.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]

    assert "".join(delta.content or "" for delta in deltas) == "so be it"
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


def test_the_stream_helper(sdk: openai.OpenAI, rollout: RolloutClient, engine: FakeEngine) -> None:
    """It puts the message together as the record has it."""
    engine.script(CALLED)
    with sdk.chat.completions.stream(**ASKED, tools=[ADD], max_tokens=300) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    recorded = rollout.call()["message"]

    assert {"chunk", "content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds
    assert final.finish_reason == "tool_calls"
    assert final.message.content == recorded["content"]
    assert [call.id for call in final.message.tool_calls or []] == [call["id"] for call in recorded["tool_calls"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_conversation_with_tools(
    sdk: openai.OpenAI, rollout: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """The second turn echoes the first; both are recorded, and the engine reads what was said."""
    engine.script(CALLED, Say("it is 3"))
    messages: list[Any] = list(ASKED["messages"])
    for _ in range(2):
        message = _say(sdk, messages, stream=stream)
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": f"result {place}"}
            for place, call in enumerate(message.get("tool_calls") or ())
        ]
    first, second = rollout.calls()

    assert messages[-1]["content"] == "it is 3"
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool", "tool"]
    assert [call["function"] for call in engine.requests[-1].body["messages"][1]["tool_calls"]] == [
        call["function"] for call in first["engine_message"]["tool_calls"]
    ]
    assert all(call["capture"]["complete"] for call in (first, second))


def _say(sdk: openai.OpenAI, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    """One turn; the message as the client will echo it."""
    asked = {"model": "gpt-9", "messages": messages, "tools": [ADD], "max_tokens": 300}
    if stream:
        with sdk.chat.completions.stream(**asked) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = sdk.chat.completions.create(**asked).choices[0].message
    told: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"parsed": True})
    for call in told.get("tool_calls") or ():
        call["function"].pop("parsed_arguments", None)
    return told


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fault", "raised", "asked"), list(RAISED.values()), ids=list(RAISED))
def test_errors_are_the_sdks_own_and_retried_only_where_it_helps(
    rollout: RolloutClient,
    engine: FakeEngine,
    fault: Fault,
    raised: type[openai.APIStatusError],
    asked: int,
    *,
    stream: bool,
) -> None:
    """X-should-retry keeps the SDK from asking again what cannot succeed."""
    before = len(engine.requests)
    engine.script(fault, fault)
    with sdk_of(rollout, max_retries=1) as sdk, pytest.raises(raised) as error:
        sdk.chat.completions.create(**ASKED, stream=stream)

    assert len(engine.requests) - before == asked
    assert isinstance(error.value.body, dict)
    assert set(error.value.body) == {"message", "type", "param", "code"}


def test_a_busy_engine_is_asked_again_after_its_pause(rollout: RolloutClient, engine: FakeEngine) -> None:
    """The SDK obeys Retry-After."""
    engine.script(Fault.refuse(429), Fault.refuse(429))
    with sdk_of(rollout, max_retries=1) as sdk, pytest.raises(openai.RateLimitError) as error:
        sdk.chat.completions.create(**ASKED)

    assert error.value.response.headers["retry-after"] == "1"
    assert error.value.response.request.headers["x-stainless-retry-count"] == "1"


def test_a_reply_without_ids_is_asked_for_once(rollout: RolloutClient, engine: FakeEngine) -> None:
    """An engine that gives none will not give them later."""
    before = len(engine.requests)
    engine.script(Fault.no_ids(SAID), Fault.no_ids(SAID))
    with sdk_of(rollout, max_retries=1) as sdk, pytest.raises(openai.InternalServerError):
        sdk.chat.completions.create(**ASKED)

    assert len(engine.requests) - before == 1


def test_a_retry_may_succeed(rollout: RolloutClient, engine: FakeEngine) -> None:
    """After a fault that passes, the caller notices nothing."""
    engine.script(Fault.status(500), SAID)
    with sdk_of(rollout, max_retries=1) as sdk:
        reply = sdk.chat.completions.create(**ASKED)

    assert reply.choices[0].message.content == "so be it"


def test_a_wrong_key_is_an_authentication_error(rollout: RolloutClient) -> None:
    """And is asked once."""
    with sdk_of(rollout, api_key="sk-foreign", max_retries=5) as sdk, pytest.raises(openai.AuthenticationError):
        sdk.chat.completions.create(**ASKED)


def test_an_unknown_rollout_is_not_found(rollout: RolloutClient) -> None:
    """And is asked once."""
    url = f"{rollout.proxy.url}/rollouts/nobody/v1"
    with sdk_of(rollout, base_url=url, max_retries=5) as sdk, pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(**ASKED)


def test_a_finished_rollout_is_told_once(rollout: RolloutClient) -> None:
    """410 has no class of its own; the SDK does not come back."""
    rollout.proxy.control.post(f"/rollouts/{rollout.rollout_id}/finish")
    with sdk_of(rollout, max_retries=5) as sdk, pytest.raises(openai.APIStatusError) as error:
        sdk.chat.completions.create(**ASKED)

    assert error.value.status_code == 410


def test_a_bad_field_is_named(sdk: openai.OpenAI) -> None:
    """As the SDK shows it: param and code."""
    with pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(**ASKED, max_tokens=0)

    assert (error.value.param, error.value.code) == ("max_tokens", "invalid_request")


def test_an_overflow_has_the_code_that_harnesses_look_for(sdk: openai.OpenAI) -> None:
    """H5."""
    with pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 5000}])

    assert error.value.code == "context_length_exceeded"


def test_a_stream_that_breaks_raises_in_mid_stream(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    """Never a quiet end: an agent must not take half a reply for one."""
    engine.script(Fault.cut(5, SAID))
    chunks: list[Any] = []
    with pytest.raises(openai.APIError, match="connection lost: the engine's reply broke off") as error:
        chunks.extend(sdk.chat.completions.create(**ASKED, stream=True))

    assert error.value.code == "engine_cut"


def test_models_can_be_listed_and_shown(sdk: openai.OpenAI) -> None:
    """Harnesses do at their start."""
    assert [model.id for model in sdk.models.list()] == ["tiny"]
    assert sdk.models.retrieve("gpt-9").id == "gpt-9"


class Impatient(httpx2.HTTPTransport):
    """Its first request is given up once it has waited for this, instead of for so many seconds."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__()
        self._waits = [wait]

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._waits:
            request.extensions["trace"] = self._give_up
        return super().handle_request(request)

    def _give_up(self, event: str, _told: object) -> None:
        if event == "http11.receive_response_headers.started":
            self._waits.pop()()
            raise httpx2.ReadTimeout("the client has waited for long enough")


def test_a_timed_out_client_retries_into_the_same_draw(start: Start) -> None:
    """Its retry joins the reply that was on its way; nothing is drawn twice."""
    proxy, engine = start()
    rollout, gate = proxy.rollout(), Gate(proxy)
    engine.always(SAID)
    impatient = openai.DefaultHttpxClient(transport=Impatient(lambda: until(lambda: gate.waiting)))
    with sdk_of(rollout, max_retries=1, http_client=impatient) as sdk, ThreadPoolExecutor(1) as thread:
        asking = thread.submit(lambda: sdk.chat.completions.create(**ASKED))
        until(lambda: gate.waiting)
        until(lambda: len(rollout.proxy.calls(rollout.rollout_id)[0]["deliveries"]) == 2)
        gate.open()
        reply = asking.result()

    assert reply.choices[0].message.content == "so be it"
    assert len(engine.requests) == 1
    assert len(rollout.call()["deliveries"]) == 2
