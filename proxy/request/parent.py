"""The parent of a call: the earlier call of the rollout whose reply this request goes on from, found by meaning.

Clients rewrite what they echo: other argument spelling, dropped or renamed reasoning, trimmed text, calls told as text.
So a reply is recognised by what it says, after the very history, tools and template arguments that it answered.
Nothing is guessed: replies that mean the same but differ in tokens are ambiguous, and then there is no parent.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.canonical import canonical_json
from proxy.model import PLAIN_PROMPT, Ask, JsonObject, Parent, ParentCandidate, ParentSearch
from proxy.request.conversation import canonical_arguments, canonical_content

# Clients were seen to tell one reply in two messages; a long run of assistant turns is somebody's worked example.
MOST_ECHO_MESSAGES = 4
# How smolagents opens the calls that it prints into a message's text.
CALLS_IN_PRINT = "Calling tools:"
THOUGHT_IN_TAGS = re.compile(r"<think>(.*)</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Echo:
    """The last assistant messages of a request, and the chain hash of what stood before them."""

    start: int
    """Place of the first of them in the request."""
    history: str
    messages: tuple[JsonObject, ...]


def echoes(ask: Ask) -> tuple[Echo, ...]:
    """How the last reply may be told: as one message, or as several in a row."""
    roles = [message.get("role") for message in ask.messages]
    if "assistant" not in roles:
        return ()
    last = len(roles) - 1 - roles[::-1].index("assistant")
    first = last
    while first and roles[first - 1] == "assistant" and last - first + 1 < MOST_ECHO_MESSAGES:
        first -= 1
    chain = ask.conversation.history
    return tuple(Echo(start, chain[start], ask.messages[start : last + 1]) for start in range(last, first - 1, -1))


def resolve_parent(ask: Ask, search: ParentSearch) -> Parent:
    """The parent among the earlier calls that answered what stands before the last reply, with the reason."""
    told = echoes(ask)
    if not told:
        return Parent("root", PLAIN_PROMPT if ask.api == "completions" else "first_turn")
    # The shortest first: where the last message alone tells a reply, what stands before it is another's.
    for echo in told:
        matches = [
            candidate
            for candidate in search.candidates
            if candidate.history == echo.history and means_the_same(echo.messages, candidate.message)
        ]
        if matches:
            return among(matches, echo)
    return Parent("unresolved", "no_match") if search.knows_history else Parent("root", "foreign_history")


def among(matches: Sequence[ParentCandidate], echo: Echo) -> Parent:
    """The one of several replies that the echo tells; by ids, then by reasoning, and by nothing else."""
    ties = (matches, _with_these_ids(matches, echo), _with_this_reasoning(matches, echo))
    best = next(filter(None, map(choose, ties)), None)
    if best is None:
        return Parent("unresolved", "ambiguous")
    return Parent("resolved", "one_match" if len(matches) == 1 else "same_tokens", best.call_id, echo.start)


def choose(matches: Sequence[ParentCandidate]) -> ParentCandidate | None:
    """The one that all matches are, by their tokens: the delivered one of equals, else the earliest."""
    if not matches or len({match.ids_hash for match in matches}) > 1:
        return None
    return next((match for match in matches if match.is_delivered), matches[0])


def means_the_same(echo: Sequence[JsonObject], said: JsonObject) -> bool:
    """Whether the echoed messages tell the reply, in whatever spelling."""
    echoed_calls = [call for message in echo for call in message.get("tool_calls") or ()]
    said_calls = said.get("tool_calls") or ()
    if echoed_calls or not said_calls:
        return _same_text(echo, said) and _same_calls(echoed_calls, said_calls)
    return _tells_calls_as_text(_text(echo[-1]), said)


def echoed_call_ids(ask: Ask) -> tuple[str, ...]:
    """Every tool-call id that the request's messages name, in order."""
    named = [call.get("id") for message in ask.messages for call in message.get("tool_calls") or ()]
    named += [message.get("tool_call_id") for message in ask.messages]
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str)))


def told_apart(ask: Ask) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What tells the replies in a request from others that mean the same: ids of the rollout's own calls, and thoughts.

    Two requests that agree in meaning and in this go on from the same replies, as far as their client can tell.
    """
    own = (name for name in echoed_call_ids(ask) if name in ask.engine_call_ids)
    thoughts = _reasonings([message for message in ask.messages if message.get("role") == "assistant"])
    return tuple(own), tuple(thoughts)


def _same_text(echo: Sequence[JsonObject], said: JsonObject) -> bool:
    """A reply in one message or cut into several, also behind the wordless torso of a reply that broke off.

    Whatever text stands beside it was said by somebody else, and would be lost from a prompt made of the reply's ids.
    """
    thoughts = set(_reasonings([said]))
    return _text(said) == "".join(_spoken(message, thoughts) for message in echo)


def _spoken(message: JsonObject, thoughts: set[str]) -> str:
    """The message's text; nothing where it is one of the thoughts, which pydantic-ai tells in a message of its own."""
    text = _text(message)
    told = THOUGHT_IN_TAGS.fullmatch(text)
    return "" if told and told.group(1).strip() in thoughts else text


def _same_calls(echoed: Sequence[Any], said: Sequence[Any]) -> bool:
    if len(echoed) != len(said):
        return False
    by_id = {call["id"]: call for call in said}
    if {_id(call) for call in echoed} == set(by_id):
        return all(_same_call(call, by_id[_id(call)], same_id=True) for call in echoed)
    return all(_same_call(one, other, same_id=False) for one, other in zip(echoed, said, strict=True))


def _same_call(echoed: JsonObject, said: JsonObject, *, same_id: bool) -> bool:
    """By name and argument values; by its id alone where the model's arguments do not parse."""
    arguments = canonical_arguments(said["function"]["arguments"])
    if "raw" in arguments and same_id:
        return True
    if echoed["function"].get("name") != said["function"]["name"]:
        return False
    return canonical_json(canonical_arguments(echoed["function"].get("arguments"))) == canonical_json(arguments)


def _tells_calls_as_text(text: str, said: JsonObject) -> bool:
    """smolagents prints calls behind the reply's own text, as Python prints a list; nothing may stand behind it."""
    head, found, printed = text.partition(CALLS_IN_PRINT)
    if not found or head.strip() != _text(said):
        return False
    try:
        calls = ast.literal_eval(printed.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    is_told = isinstance(calls, list) and all(isinstance(call, dict) and _is_function(call) for call in calls)
    return is_told and _same_calls(calls, said["tool_calls"])


def _is_function(call: JsonObject) -> bool:
    return isinstance(call.get("function"), dict)


def _with_these_ids(matches: Sequence[ParentCandidate], echo: Echo) -> list[ParentCandidate]:
    """Every client keeps the ids of calls, and no two calls of this proxy share one."""
    echoed = {_id(call) for message in echo.messages for call in message.get("tool_calls") or ()}
    return [
        match
        for match in matches
        if echoed and echoed >= {call["id"] for call in match.message.get("tool_calls") or ()}
    ]


def _with_this_reasoning(matches: Sequence[ParentCandidate], echo: Echo) -> list[ParentCandidate]:
    """Reasoning only breaks ties: most clients drop or trim it."""
    echoed = set(_reasonings(echo.messages))
    return [match for match in matches if echoed & set(_reasonings([match.message]))]


def _reasonings(messages: Sequence[JsonObject]) -> Iterator[str]:
    for message in messages:
        for name, value in message.items():
            if name not in {"role", "content", "refusal", "name"} and isinstance(value, str) and value.strip():
                yield value.strip()


def _text(message: JsonObject) -> str:
    content = canonical_content(message.get("content"))
    if isinstance(content, str):
        return content.strip()
    return "".join(part for part in content if isinstance(part, str)).strip()


def _id(call: Any) -> object:
    return call.get("id")
