"""Parents are found by meaning: the conversations of real harnesses in their own spelling, and what must not match."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.api.messages.blocks import Talk
from proxy.model import CallId, Parent, ParentCandidate, ParentSearch
from proxy.request.parent import echoes, resolve_parent, told_apart
from proxy.request.volatile import settle_volatile
from tests import make

HARNESSES = Path(__file__).parent / "harnesses"
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
SYSTEM, TASK = {"role": "system", "content": "You are an agent."}, make.user("make a file")
SAID = {
    "role": "assistant",
    "content": "  I will.\n",
    "reasoning_content": "Need a shell.\n ",
    "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "bash", "arguments": '{"n": 1.0, "c": "é"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_a", "content": "done"}
KNOWN = {"call_a": "engine-a", "call_b": "engine-b"}


def conversation(name: str) -> list[tuple[list[Any], dict[str, Any] | None, str | None]]:
    """(messages, reply, id of the reply that the next request goes on from) for each request of a harness."""
    told = json.loads((HARNESSES / name).read_text())
    in_chat_form = CHAT_FORM[told["api"]]
    replies = [in_chat_form([{"role": "assistant", **reply}])[0] for reply in told.get("responses", [])]
    requests = told["requests"]
    return [
        (
            list(settle_volatile(in_chat_form(request["messages"], request.get("system")))[0]),
            replies[i] if i < len(replies) else None,
            request["expect_parent_response"],
        )
        for i, request in enumerate(requests)
    ]


def from_chat(messages: list[Any], _system: Any = None) -> list[Any]:
    return [message.get("message", message) for message in messages]


def from_messages(messages: list[Any], system: Any = None) -> list[Any]:
    return Talk(media_hosts=()).read(system, messages)


CHAT_FORM = {"chat.completions": from_chat, "anthropic.messages": from_messages}


def candidate(name: str, history: str, message: Any, **changes: Any) -> ParentCandidate:
    made = ParentCandidate(CallId(name), history, message, ids_hash=name, is_delivered=True)
    return replace(made, **changes)


def resolve(*messages: Any, candidates: tuple[ParentCandidate, ...] = (), known: bool = True) -> Parent:
    return resolve_parent(make.ask(*messages), ParentSearch(candidates, knows_history=known))


def after(*messages: Any) -> str:
    """The chain hash of a request of these messages."""
    return make.ask(*messages).conversation.history[-1]


def answered(*messages: Any, said: Any = SAID, name: str = "call-1", **changes: Any) -> ParentCandidate:
    return candidate(name, after(*messages), said, **changes)


@pytest.mark.parametrize("name", sorted(path.name for path in HARNESSES.glob("*") if "malformed" not in path.name))
def test_each_request_of_a_real_harness_finds_its_parent(name: str) -> None:
    """However it spells what it echoes; greetings and worked examples that no model said are foreign."""
    earlier: list[ParentCandidate] = []
    for number, (messages, reply, expected) in enumerate(conversation(name)):
        ask = make.ask(*messages)
        known = any(call.history in ask.conversation.history for call in earlier)
        parent = resolve_parent(ask, ParentSearch(tuple(earlier), knows_history=known))

        assert parent.call_id == expected, (number, parent)
        assert parent.outcome == ("resolved" if expected else "root")
        earlier.append(candidate(f"r{number + 1}", ask.conversation.history[-1], reply))


MALFORMED = json.loads((HARNESSES / "malformed_arguments.json").read_text())


@pytest.mark.parametrize("harness", [name for name, echo in MALFORMED["echoes"].items() if not echo.get("absent")])
def test_a_call_whose_arguments_do_not_parse_is_known_by_its_id(harness: str) -> None:
    """Repaired, wrapped, renamed or emptied by the harness."""
    echo = MALFORMED["echoes"][harness]
    arguments = echo.get("arguments") or json.dumps(echo.get("input"))
    broken = {"name": "bash", "arguments": MALFORMED["sent_arguments"]}
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_a", "type": "function", "function": broken}],
    }
    told = {"name": echo.get("name", "bash"), "arguments": arguments}
    echoed = {**said, "tool_calls": [{"id": "call_a", "type": "function", "function": told}]}

    assert resolve(TASK, echoed, RESULT, candidates=(answered(TASK, said=said),)).outcome == "resolved"


@pytest.mark.parametrize(
    "change",
    [
        {"content": "I will not."},
        {"tool_calls": []},
        {"tool_calls": [{**SAID["tool_calls"][0], "function": {"name": "bash", "arguments": '{"n": 2, "c": "é"}'}}]},
        {"tool_calls": [{**SAID["tool_calls"][0], "function": {"name": "sh", "arguments": '{"n": 1, "c": "é"}'}}]},
        {"tool_calls": SAID["tool_calls"] * 2},
    ],
    ids=["other text", "no call", "other value", "other tool", "two calls"],
)
def test_a_turn_that_means_something_else_has_no_parent(change: dict[str, Any]) -> None:
    """An id alone decides nothing where the arguments parse."""
    parent = resolve(TASK, {**SAID, **change}, RESULT, candidates=(answered(TASK),))

    assert (parent.outcome, parent.reason) == ("unresolved", "no_match")


def test_another_history_is_another_thread() -> None:
    """The same reply behind another system text is not the parent."""
    other = {**SYSTEM, "content": "You extract memories."}

    assert resolve(other, TASK, SAID, RESULT, candidates=(answered(SYSTEM, TASK),)).outcome == "unresolved"


def test_replies_that_differ_in_tokens_only_are_ambiguous() -> None:
    """Never a guess."""
    two = (answered(TASK, name="call-1"), answered(TASK, name="call-2"))

    assert resolve(TASK, SAID, RESULT, candidates=two) == Parent("unresolved", "ambiguous")


def test_replies_equal_in_every_token_are_one() -> None:
    """The delivered one stands for both."""
    first = answered(TASK, name="call-1", ids_hash="same", is_delivered=False)
    second = answered(TASK, name="call-2", ids_hash="same")

    assert resolve(TASK, SAID, RESULT, candidates=(first, second)) == Parent(
        "resolved", "same_tokens", CallId("call-2"), told_from=1
    )


def test_reasoning_breaks_a_tie() -> None:
    """Where the client kept it, trimmed or renamed."""
    other = {**SAID, "reasoning_content": "Use the tool."}
    two = (answered(TASK, name="call-1"), answered(TASK, name="call-2", said=other))
    echo = {key: value for key, value in SAID.items() if key != "reasoning_content"} | {"reasoning": "Use the tool."}

    assert resolve(TASK, echo, RESULT, candidates=two).call_id == "call-2"


def test_call_ids_tell_identical_sub_agents_apart() -> None:
    """Two children that said the same each get their own turn."""
    other = {**SAID, "tool_calls": [{**SAID["tool_calls"][0], "id": "call_b"}]}
    two = (answered(TASK, name="call-1"), answered(TASK, name="call-2", said=other))
    parent = resolve(TASK, other, {**RESULT, "tool_call_id": "call_b"}, candidates=two)

    assert parent.call_id == "call-2"


def test_the_torso_of_a_broken_reply_may_stand_before_the_retry() -> None:
    """One client keeps the part that had come, without text or calls, in front of the turn that came after it."""
    torso = {"role": "assistant", "content": "", "reasoning_content": "Need a"}

    assert resolve(TASK, torso, SAID, RESULT, candidates=(answered(TASK),)).outcome == "resolved"


def test_what_the_last_message_alone_tells_is_no_reply_to_the_one_before() -> None:
    """Two turns in a row, both the policy's own: the later one is the parent, whatever the earlier one thought."""
    first = answered(TASK, said={"role": "assistant", "content": "Done.", "reasoning_content": "so"}, name="call-1")
    second = answered(TASK, DONE, said={"role": "assistant", "content": "Done."}, name="call-2")
    parent = resolve(TASK, DONE, make.assistant("Done."), make.user(), candidates=(first, second))

    assert (parent.call_id, parent.told_from) == ("call-2", 2)


DONE = {"role": "assistant", "content": "Done.", "reasoning_content": "so"}


@pytest.mark.parametrize("stranger", [make.assistant("By the way."), make.assistant("By the way. ") | {"name": "x"}])
def test_text_that_no_reply_holds_makes_another_reply_of_it(stranger: Any) -> None:
    """A prompt made of the reply's ids would lose it without a word."""
    assert resolve(TASK, stranger, SAID, RESULT, candidates=(answered(TASK),)).reason == "no_match"


@pytest.mark.parametrize("more", ["", "\nObservation: 7", "]"])
def test_calls_told_as_text_are_all_that_is_told(more: str) -> None:
    """What a harness puts behind them, a result or a summary, the policy has not seen yet."""
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": "bash", "arguments": {"c": "é", "n": 1}}}
        for call in SAID["tool_calls"]
    ]
    echo = {"role": "assistant", "content": f"I will.\nCalling tools:\n{calls}{more}"}
    parent = resolve(TASK, echo, make.user("7"), candidates=(answered(TASK),))

    assert parent.outcome == ("unresolved" if more else "resolved")


def test_assistant_turns_that_nobody_here_said_are_foreign() -> None:
    """Worked examples on a first request make it a root; in a known conversation they are a riddle."""
    assert resolve(TASK, make.assistant("Ok."), make.user(), known=False) == Parent("root", "foreign_history")
    assert resolve(TASK, make.assistant("Ok."), make.user()) == Parent("unresolved", "no_match")


def test_a_long_run_of_assistant_turns_costs_no_more_than_a_short_one() -> None:
    """Only the last few can be one reply."""
    told = echoes(make.ask(TASK, *[make.assistant("a")] * 5000))

    assert [len(echo.messages) for echo in told] == [1, 2, 3, 4]


def test_a_first_turn_is_a_root() -> None:
    """Nothing was said yet."""
    assert resolve(SYSTEM, TASK, known=False) == Parent("root", "first_turn")
    assert echoes(make.ask(SYSTEM, TASK)) == ()


RESPELT = SAID | {"reasoning_content": "Need a shell.", "content": "I will."}
OTHERS = {
    "another id": SAID | {"tool_calls": [SAID["tool_calls"][0] | {"id": "call_b"}]},
    "another thought": SAID | {"reasoning_content": "Need a file."},
    "no thought": {name: SAID[name] for name in ("role", "content", "tool_calls")},
}


@pytest.mark.parametrize("echo", OTHERS.values(), ids=OTHERS)
def test_replies_that_mean_the_same_are_told_apart_by_ids_and_thoughts(echo: Any) -> None:
    """The context of what goes on from them is one."""
    one, other = (
        make.ask(TASK, said, RESULT | {"tool_call_id": said["tool_calls"][0]["id"]}, engine_call_ids=KNOWN)
        for said in (SAID, echo)
    )

    assert one.conversation.context == other.conversation.context
    assert told_apart(one) != told_apart(other)


def test_what_clients_do_to_what_they_echo_tells_nothing_apart() -> None:
    """Trimmed text and thoughts are the same reply; an id that no call of this rollout has may be anybody's."""
    strange = RESPELT | {"tool_calls": [SAID["tool_calls"][0] | {"id": "made-up"}]}
    own, foreign = (make.ask(TASK, said, RESULT, engine_call_ids=KNOWN) for said in (RESPELT, strange))

    assert told_apart(own) == told_apart(make.ask(TASK, SAID, RESULT, engine_call_ids=KNOWN))
    assert told_apart(foreign) == ((RESULT["tool_call_id"],), ("Need a shell.",))
    assert told_apart(make.ask(TASK)) == ((), ())
