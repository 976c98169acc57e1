"""Retry or deliberate repeat where a rollout forks: a branch never gets a reply that was drawn on another's tokens."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.harness import ADD, Gate, Json, Leaver, asked, until
from tests.echoes import reordered, without_reasoning
from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.served import RolloutClient, ServedProxy, served, settings_for

TASK: Json = {"role": "user", "content": "Go."}
NEXT: Json = {"role": "user", "content": "And?"}
CALL = ToolSay("add", '{"a": 1, "b": 2}')
MARKED = {"x-stainless-retry-count": "1"}
KEYED = {"idempotency-key": "k"}

Loss = Callable[[RolloutClient, FakeEngine, Json], None]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServedProxy, FakeEngine]]:
    folder = tmp_path_factory.mktemp("forks")
    with FakeEngine(request.param) as engine, served(settings_for(folder, engine.url, resume_attempts=0)) as proxy:
        yield proxy, engine


@pytest.fixture
def engine(shared: tuple[ServedProxy, FakeEngine]) -> Iterator[FakeEngine]:
    """The engine, with an empty script."""
    yield shared[1]
    shared[1]._engine._queue.clear()


@pytest.fixture
def client(shared: tuple[ServedProxy, FakeEngine]) -> Iterator[RolloutClient]:
    """A new rollout."""
    proxy = shared[0]
    store = proxy.wiring.store
    yield proxy.rollout()
    proxy.wiring.store = store


def send(client: RolloutClient, *messages: Json, headers: dict[str, str] | None = None) -> Any:
    """One call, answered."""
    body = asked(messages=list(messages), tools=[ADD])
    answer = client.http.post("/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def forked(client: RolloutClient, engine: FakeEngine, *says: Say) -> list[Json]:
    """Draws on one task, as the client got them."""
    engine.script(*says)
    return [dict(send(client, TASK).json()["choices"][0]["message"]) for _ in says]


def follow(said: Json) -> list[Json]:
    """What a harness asks after a reply: the same, whatever the ids of its calls."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in said.get("tool_calls") or ()]
    return [TASK, said, *(results or [NEXT])]


def fail(client: RolloutClient, engine: FakeEngine, talk: list[Json]) -> None:
    """A request whose engine breaks."""
    engine.script(Fault.status(500))
    answer = client.http.post("/chat/completions", json=asked(messages=talk, tools=[ADD]))
    assert answer.status_code >= 500


def leave(client: RolloutClient, engine: FakeEngine, talk: list[Json]) -> None:
    """A request whose client is gone when the reply is on record."""
    engine.script(Say("left behind"))
    gate, before = Gate(client.proxy), len(client.proxy.calls(client.rollout_id))
    leaver = Leaver(client, messages=talk, tools=[ADD])
    until(lambda: gate.waiting)
    leaver.leave()
    until(lambda: client.proxy.calls(client.rollout_id)[before]["deliveries"][0]["outcome"] == "client_gone")
    gate.open()
    client.calls()


def deliver(client: RolloutClient, engine: FakeEngine, talk: list[Json]) -> None:
    """A request that was answered, with a key."""
    engine.script(Say("delivered"))
    send(client, *talk, headers=KEYED)


LOSSES = pytest.mark.parametrize(
    ("lose", "headers"),
    [(fail, None), (leave, None), (deliver, MARKED), (deliver, KEYED)],
    ids=["failed", "client gone", "marked", "keyed"],
)
FORKS = pytest.mark.parametrize(
    "says",
    [
        [Say("", reasoning="one", calls=(CALL,)), Say("", reasoning="two", calls=(CALL,))],
        [Say("so", reasoning="one"), Say("so", reasoning="two")],
    ],
    ids=["told by ids", "told by thoughts"],
)


@LOSSES
@FORKS
def test_another_branch_repeats_nothing(
    client: RolloutClient, engine: FakeEngine, says: list[Say], lose: Any, headers: dict[str, str] | None
) -> None:
    """Two replies mean the same and differ in thought, and each is gone on from: what one loses is not the other's."""
    one, two = (follow(said) for said in forked(client, engine, *says))
    lose(client, engine, one)
    engine.script(Say("its own"))
    answer = send(client, *two, headers=headers)
    calls = client.calls()

    assert answer.json()["choices"][0]["message"]["content"] == "its own"
    assert [call["parent"]["call_id"] for call in calls[2:]] == [call["call_id"] for call in calls[:2]]
    assert [len(call["deliveries"]) for call in calls] == [1, 1, 1, 1]
    parent = calls[1]["prompt_token_ids"] + calls[1]["completion_token_ids"]
    assert calls[3]["prompt_token_ids"][: len(parent)] == parent


@LOSSES
@FORKS
@pytest.mark.parametrize("echo", [copy.deepcopy, reordered])
def test_a_retry_in_a_fork_finds_its_own_draw(
    client: RolloutClient, engine: FakeEngine, says: list[Say], lose: Any, headers: dict[str, str] | None, echo: Any
) -> None:
    """However its arguments are spelt, and whatever the other branch has lost meanwhile."""
    one, two = (follow(said) for said in forked(client, engine, *says))
    lose(client, engine, one)
    fail(client, engine, two)
    engine.script(Say("again"))
    answer = send(client, *map(echo, one), headers=headers)
    third, fourth = client.calls()[2:]

    assert answer.headers["x-rollpin-call-id"] == third["call_id"]
    assert len(third["deliveries"]) == 2
    assert fourth["state"] == "failed"


@LOSSES
def test_a_retry_whose_parent_became_doubtful_finds_its_draw(
    client: RolloutClient, engine: FakeEngine, lose: Any, headers: dict[str, str] | None
) -> None:
    """Another reply has come that means what its parent meant, and the client keeps no thoughts to tell them by."""
    (said,) = forked(client, engine, Say("so", reasoning="one"))
    talk = follow(without_reasoning(said))
    lose(client, engine, talk)
    forked(client, engine, Say("so", reasoning="two"))
    engine.script(Say("again"))
    answer = send(client, *talk, headers=headers)
    lost = client.calls()[1]

    assert answer.headers["x-rollpin-call-id"] == lost["call_id"]
    assert (lost["state"], len(lost["deliveries"])) == ("done", 2)


@pytest.mark.parametrize("path", ["/messages", "/responses"])
def test_branches_are_told_apart_in_every_api(client: RolloutClient, engine: FakeEngine, path: str) -> None:
    """Each spells ids of calls in its own way."""
    engine.script(Say("", reasoning="one", calls=(CALL,)), Say("", reasoning="two", calls=(CALL,)))
    one, two = (in_api(path, client.http.post(path, json=in_api(path)).json()) for _ in range(2))
    engine.script(Fault.status(500), Say("its own"), Say("again"))
    answers = [client.http.post(path, json=body) for body in (one, two, one)]
    calls = client.calls()

    assert [answer.status_code for answer in answers[1:]] == [200, 200]
    assert [call["message"]["content"] for call in calls[2:]] == ["again", "its own"]
    assert [len(call["deliveries"]) for call in calls[2:]] == [2, 1]
    assert [call["parent"]["call_id"] for call in calls[2:]] == [call["call_id"] for call in calls[:2]]


def in_api(path: str, said: Json | None = None) -> Json:
    """The task in an API's own form; with a reply, what a harness that keeps no thoughts asks after it."""
    if path == "/messages":
        tool = {"name": "add", "input_schema": ADD["function"]["parameters"]}
        body: Json = {"model": "policy", "max_tokens": 200, "tools": [tool], "messages": [TASK]}
        if said is None:
            return body
        (use,) = (block for block in said["content"] if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "3"}
        talk = [TASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return {**body, "messages": talk}
    body = {"model": "policy", "tools": [{"type": "function", **ADD["function"]}], "input": [TASK]}
    if said is None:
        return body
    (call,) = (item for item in said["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
    told = {name: call[name] for name in ("type", "call_id", "name", "arguments")}
    return {**body, "input": [TASK, told, output]}
