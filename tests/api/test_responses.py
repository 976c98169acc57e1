"""The Responses API on real sockets, read by the official client and held to its types, event by event."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from proxy.api.responses.sealed import unseal
from tests.api.conftest import Start
from tests.api.harness import Gate, Json, error_of, until
from tests.api.test_sdk import sdk_of
from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.served import RolloutClient, ServedProxy

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ADD: Json = {
    "type": "function",
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
SAID = Say("so be it", reasoning="hm")
CALLED = Say("let me see", reasoning="hm", calls=(ToolSay("add", '{"a": 1}'), ToolSay("add", '{"a": 2}')))
ROOM = {"max_output_tokens": 300}


@pytest.fixture
def sdk(rollout: RolloutClient) -> Iterator[openai.OpenAI]:
    """The client of one rollout; it never retries."""
    with sdk_of(rollout) as made:
        yield made


def ask(client: RolloutClient, *, stream: bool = False, given: Any = "hello", **fields: Any) -> Json:
    """One call; the response object at its end, every byte of it held to the client's types."""
    body = {"model": "gpt-9", "input": given, "stream": stream, **ROOM, **fields}
    if stream:
        told = events(client, body)
        assert told[-1]["type"] in {"response.completed", "response.incomplete"}, told[-1]
        response: Json = told[-1]["response"]
    else:
        answer = client.http.post("/responses", json=body)
        assert answer.status_code == 200, answer.text
        response = answer.json()
    Response.model_validate(response)
    return response


def events(client: RolloutClient, body: Json) -> list[Json]:
    """The events of a stream, each valid, rightly named and numbered in a row."""
    told: list[Json] = []
    with client.http.stream("POST", "/responses", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        for block in "".join(answer.iter_text()).split("\n\n"):
            if block.startswith("event: "):
                name, data = block.removeprefix("event: ").split("\ndata: ")
                told.append(json.loads(data))
                assert told[-1]["type"] == name
                EVENT.validate_python(told[-1])
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    return told


def outline(response: Json) -> list[Any]:
    """What the items say, without their ids."""
    return [
        item.get("arguments") or item.get("input") or "".join(part["text"] for part in item["content"])
        for item in response["output"]
    ]


def results(response: Json) -> list[Json]:
    """An output for every call of a response."""
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call["call_id"], "output": f"result {place}"}
        for place, call in enumerate(calls)
    ]


# --- the reply ---


@AS_STREAM
def test_a_reply_is_items(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """Reasoning, message and calls, in this order, and all of it on record."""
    engine.script(CALLED)
    response = ask(rollout, stream=stream, tools=[ADD])
    call = rollout.call()

    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert outline(response) == ["hm", "let me see", '{"a": 1}', '{"a": 2}']
    assert (response["model"], response["status"], call["api"]) == ("gpt-9", "completed", "responses")
    assert [item["call_id"] for item in response["output"][2:]] == [one["id"] for one in call["message"]["tool_calls"]]
    assert response["usage"]["output_tokens"] == len(call["completion_token_ids"])
    assert response["usage"]["input_tokens"] == len(call["prompt_token_ids"])
    assert call["capture"]["complete"]


def test_both_modes_say_the_same(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Item ids apart, a stream ends with the response that a whole reply is."""
    engine.script(CALLED, CALLED)
    clients = [proxy.rollout(run=f"{run}-{proxy.url}", group="modes") for run in ("whole", "streamed")]
    one, other = (ask(client, stream=client is clients[1], tools=[ADD]) for client in clients)

    assert [_without_ids(item) for item in one["output"]] == [_without_ids(item) for item in other["output"]]
    assert one["usage"] == other["usage"]


def _without_ids(item: Json) -> Json:
    return {name: value for name, value in item.items() if name != "id"}


def test_the_stream_helper_reads_every_event(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    """The client's own accumulator agrees with the end."""
    engine.script(CALLED)
    with sdk.responses.stream(model="gpt-9", input="hello", tools=[ADD], **ROOM) as stream:  # type: ignore[list-item]
        kinds = [event.type for event in stream]
        final = stream.get_final_response()

    assert final.output_text == "let me see"
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.done") == 4
    assert {"response.reasoning_text.delta", "response.function_call_arguments.delta"} <= set(kinds)


@AS_STREAM
def test_a_reply_cut_by_its_length_is_incomplete(rollout: RolloutClient, *, stream: bool) -> None:
    """With the reason, and the item that was cut."""
    response = ask(rollout, stream=stream, max_output_tokens=2)

    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][-1]["status"] == "incomplete"


@AS_STREAM
def test_logprobs_come_where_they_are_asked_for(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """By `include`; else there are none."""
    engine.script(SAID, SAID)
    with_them = ask(rollout, stream=stream, include=["message.output_text.logprobs"], top_logprobs=2)
    without = ask(rollout, stream=stream, given="again")
    told = [response["output"][-1]["content"][0]["logprobs"] for response in (with_them, without)]

    assert len(told[0]) == with_them["usage"]["output_tokens"]
    assert len(told[0][0]["top_logprobs"]) == 2
    assert told[1] == []


def test_free_text_and_namespaced_tools_come_back_as_the_client_knows_them(
    rollout: RolloutClient, engine: FakeEngine
) -> None:
    """The model sees functions with names of their own; what nobody runs here it is not shown."""
    patch = {"type": "custom", "name": "patch", "description": "Edit.", "format": {"type": "text"}}
    inner = {**ADD, "description": "Add elsewhere."}
    tools = [ADD, patch, {"type": "namespace", "name": "math", "description": "", "tools": [inner]}]
    tools.append({"type": "web_search"})
    calls = (ToolSay("patch", '{"input": "*** Begin"}'), ToolSay("math__add", "{}"), ToolSay("add", "{}"))
    engine.script(Say("", calls=calls))
    response = ask(rollout, stream=True, tools=tools)
    shown = [tool["function"]["name"] for tool in engine.requests[-1].body["tools"]]
    items = [item for item in response["output"] if item["type"] != "reasoning"]

    assert shown == ["add", "patch", "math__add"]
    assert [(item["type"], item["name"], item.get("namespace")) for item in items] == [
        ("custom_tool_call", "patch", None),
        ("function_call", "add", "math"),
        ("function_call", "add", None),
    ]
    assert items[0]["input"] == "*** Begin"
    assert rollout.call()["sampling"]["ignored"] == ["tools.web_search"]


# --- conversations ---


@AS_STREAM
@pytest.mark.parametrize("keeps", ["client", "proxy"])
def test_a_conversation_with_tools(rollout: RolloutClient, engine: FakeEngine, keeps: str, *, stream: bool) -> None:
    """Echoed by a client that has nothing kept, or gone on from by id: the second turn finds the first."""
    engine.script(CALLED, Say("it is 3"))
    fields = {"tools": [ADD], "instructions": "be brief", "stream": stream}
    if keeps == "client":
        fields |= {"store": False, "include": ["reasoning.encrypted_content"]}
    first = ask(rollout, **fields)
    if keeps == "client":
        second = ask(rollout, given=[_user("hello"), *first["output"], *results(first)], **fields)
    else:
        second = ask(rollout, given=results(first), previous_response_id=first["id"], **fields)
    one, other = rollout.calls()
    told = engine.requests[-1].body["messages"]

    assert outline(second)[-1] == "it is 3"
    assert other["parent"] == {"call_id": one["call_id"], "outcome": "resolved", "reason": "one_match"}
    assert [message["role"] for message in told] == ["system", "user", "assistant", "tool", "tool"]
    assert (told[2].get("reasoning") or told[2].get("reasoning_content")) == "hm"
    assert [call["function"]["arguments"] for call in told[2]["tool_calls"]] == ['{"a": 1}', '{"a": 2}']


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def test_a_conversation_means_the_same_however_it_is_told(proxy: ServedProxy, engine: FakeEngine) -> None:
    """As chat, as items, or by the id of what came before: one context, and so one seed."""
    contexts, seeds = set(), set()
    for run in ("chat", "items", "id"):
        engine.script(SAID, SAID)
        client = proxy.rollout(run=f"{run}-{proxy.url}", group="meaning")
        if run == "chat":
            messages = [{"role": "system", "content": "be brief"}, _user("hello")]
            said = client.post({"messages": messages, "max_tokens": 300}).json()["choices"][0]["message"]
            client.post({"messages": [*messages, said, _user("more")], "max_tokens": 300})
        else:
            first = ask(client, instructions="be brief")
            before = [_user("hello"), *first["output"]] if run == "items" else []
            fields = {"previous_response_id": first["id"]} if run == "id" else {}
            ask(client, given=[*before, _user("more")], instructions="be brief", **fields)
        contexts.add(tuple(call["context"] for call in client.calls()))
        seeds.add(tuple(call["seed"]["value"] for call in client.calls()))

    assert len(contexts) == len(seeds) == 1


def test_instructions_are_not_carried_on(rollout: RolloutClient, engine: FakeEngine) -> None:
    """Each request has its own, as the API has it; everything else of the conversation is there."""
    engine.script(SAID, SAID, SAID)
    first = ask(rollout, instructions="be brief")
    second = ask(rollout, given="more", previous_response_id=first["id"])
    ask(rollout, given="and more", previous_response_id=second["id"], instructions="be long")
    told = engine.requests[-1].body["messages"]

    assert [(message["role"], message["content"]) for message in told] == [
        ("system", "be long"),
        ("user", "hello"),
        ("assistant", "so be it"),
        ("user", "more"),
        ("assistant", "so be it"),
        ("user", "and more"),
    ]


def test_an_item_may_be_referred_to(rollout: RolloutClient, engine: FakeEngine) -> None:
    """By its id, in the place where it belongs."""
    engine.script(SAID, SAID)
    first = ask(rollout)
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    ask(rollout, given=[_user("hello"), *references, _user("more")])

    assert [call["parent"]["outcome"] for call in rollout.calls()] == ["root", "resolved"]


# --- what can be found again ---


@AS_STREAM
def test_a_response_can_be_read_again(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """As it was, out of the store."""
    engine.script(CALLED)
    response = ask(rollout, stream=stream, tools=[ADD], instructions="be brief")

    assert rollout.http.get(f"/responses/{response['id']}").json() == response


def test_a_response_belongs_to_its_rollout(rollout: RolloutClient, proxy: ServedProxy) -> None:
    """Another rollout neither reads it nor goes on from it."""
    name, stranger = ask(rollout)["id"], proxy.rollout()
    read = stranger.http.get(f"/responses/{name}")
    gone_on = stranger.http.post("/responses", json={"input": "hi", "previous_response_id": name})

    assert (read.status_code, error_of(read)["code"]) == (404, "unknown_response")
    assert (gone_on.status_code, error_of(gone_on)["code"]) == (400, "previous_response_not_found")
    assert proxy.calls(stranger.rollout_id) == []


def test_what_was_not_to_be_kept_is_not_found(rollout: RolloutClient) -> None:
    """`store: false` holds towards the client; the record is the trainer's."""
    response = ask(rollout, store=False)

    assert rollout.http.get(f"/responses/{response['id']}").status_code == 404
    assert rollout.call()["message"]["content"] == outline(response)[-1]


# --- commit before the end ---


def test_nothing_is_done_before_it_is_on_record(start: Start) -> None:
    """A harness that acts on a call can rely on it. What ends the arguments is kept back with the end."""
    proxy, engine = start()
    rollout, gate = proxy.rollout(), Gate(proxy)
    engine.script(CALLED)
    seen: list[str] = []
    body = {"input": "hello", "tools": [ADD], "stream": True, **ROOM}
    with rollout.http.stream("POST", "/responses", json=body) as answer:
        lines = answer.iter_lines()
        while _arguments(seen, place=3) != '{"a": 2':
            seen.append(next(lines))
        until(lambda: gate.waiting)
        running = rollout.http.get(f"/responses/{_response_id(seen)}").json()
        assert not [line for line in seen if "done" in line or "completed" in line]
        gate.open()
        rest = list(lines)

    assert [line for line in rest if line.startswith("event: ")][-1] == "event: response.completed"
    assert (running["status"], running["output"]) == ("in_progress", [])


def _response_id(lines: list[str]) -> str:
    created = next(line for line in lines if line.startswith("data: "))
    return str(json.loads(created.removeprefix("data: "))["response"]["id"])


def _arguments(lines: list[str], place: int) -> str:
    """What a client has read of the arguments of the call in this place."""
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    kind = "response.function_call_arguments.delta"
    return "".join(event["delta"] for event in told if event["type"] == kind and event["output_index"] == place)


def test_a_stream_that_breaks_tells_it_in_both_ways_and_leaves_nothing_done(
    rollout: RolloutClient, engine: FakeEngine
) -> None:
    """An error event, and a response that failed; the next try asks the same and claims the draw."""
    engine.script(Fault.cut(12, CALLED), CALLED)
    body = {"input": "hello", "tools": [ADD], **ROOM}
    told = events(rollout, body)
    rollout.calls()
    read = rollout.http.get(f"/responses/{told[0]['response']['id']}").json()
    again = events(rollout, body)
    call = rollout.call()

    assert [event["type"] for event in told[-2:]] == ["error", "response.failed"]
    assert told[-2]["code"] == "engine_cut"
    assert (read["status"], read["error"]["code"]) == ("failed", "server_error")
    assert not [event for event in told if event["type"].endswith("done")]
    assert again[-1]["type"] == "response.completed"
    assert (call["state"], len(call["deliveries"])) == ("done", 2)


def test_an_error_before_the_stream_is_a_plain_one(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    """In OpenAI's form."""
    engine.script(Fault.status(400))
    with pytest.raises(openai.BadRequestError) as error:
        sdk.responses.create(model="m", input="hello", stream=True)

    assert error.value.code == "engine_refused"


# --- repeats, budgets, strictness ---


@AS_STREAM
def test_a_repeat_gets_the_response_that_is_on_record(
    rollout: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """The same ids and the same items, out of the store."""
    engine.script(CALLED)
    rollout.http.headers["idempotency-key"] = "once"
    first = ask(rollout, tools=[ADD])
    again = ask(rollout, stream=stream, tools=[ADD])

    assert again == first
    assert len(rollout.call()["deliveries"]) == 2


@AS_STREAM
def test_a_rollout_without_budget_gets_an_empty_response(proxy: ServedProxy, *, stream: bool) -> None:
    """It is incomplete, and holds nothing."""
    rollout = proxy.rollout(token_budget=1)
    ask(rollout, max_output_tokens=1)
    response = ask(rollout, stream=stream, given="more")

    assert (response["status"], response["output"]) == ("incomplete", [])
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


CODEX: Json = {
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"summary": "auto"},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "prompt_cache_key": "S",
    "client_metadata": {"a": "1"},
    "tools": [ADD, {"type": "web_search"}],
}


def test_a_strict_proxy_takes_what_codex_sends(start: Start) -> None:
    """Its own fields are the API's; what nobody here runs is left out, not refused. A stranger's field is refused."""
    proxy, _engine = start(unknown_fields="refuse")
    rollout = proxy.rollout()
    response = ask(rollout, stream=True, **CODEX)
    refused = rollout.http.post("/responses", json={"input": "hi", "temprature": 1})

    assert response["status"] in {"completed", "incomplete"}
    assert (refused.status_code, error_of(refused)["code"]) == (400, "unknown_field")


def test_reasoning_is_sealed_for_those_who_keep_the_conversation(rollout: RolloutClient, engine: FakeEngine) -> None:
    """And only for them."""
    engine.script(SAID, SAID)
    with_seal = ask(rollout, store=False)["output"][0]
    without = ask(rollout, given="again")["output"][0]

    assert unseal(with_seal["encrypted_content"]) == "hm"
    assert "encrypted_content" not in without
