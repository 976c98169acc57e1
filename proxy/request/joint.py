"""The joint: which ids follow a turn that the engine sampled, found without trusting the chat template.

The next prompt is to be: the parent's prompt ids, the ids that it sampled, and a tail: whatever the template prints
between the end of that turn and the end of the prompt. The parent's turn itself is never rendered (templates strip its
reasoning, re-spell its arguments, drop it when it is empty). A stand-in takes its place, whose texts are sentinel
words, and the request is rendered three times:

* with the real history, and with a dummy one, the stand-ins differing in their last letter: the common end of both id
  lists is what follows the turn, and the end token in it marks the joint;
* with every new text replaced by a word of its own, which shows what the template prints of itself. The real tail must
  be exactly that, with each word replaced by its text.

Where any of it does not hold there is no tail but a reason. Nothing here does I/O: `find_tail` is a generator that asks
its questions in batches and is sent the answers.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from proxy.model import JsonObject
from proxy.request.joint_turn import (
    Asking,
    Decode,
    Form,
    Habits,
    Refused,
    Render,
    Steps,
    Tail,
    Turn,
    Unrendered,
    calls_of,
    is_text,
    parts_of,
    plain_text,
    texts_of,
)
from proxy.request.joint_words import Words, filled, text_forms

# Ids before the common end in which the last sentinel lies, spelt letter by letter at worst, unless what follows it
# depends on the history: then the common end begins later, and all is asked again behind the real history.
LOOK_BACK = 16
# Texts of one turn's new messages; to fill in more takes longer than a render.
MOST_TEXTS = 1000
# How families spell their control tokens.
MARKER = re.compile(r"<.*>|\[.*\]")
# What a model writes around a thought that it leaves empty.
NO_THOUGHT = re.compile(r"(?:\s|</?think(?:ing)?>)*")
ANYTHING = re.compile(r".*", re.DOTALL)


def find_tail(turn: Turn, habits: Habits) -> Steps:
    """Ask for renders and texts until the tail is certain or is refused."""
    words = Words.unused_in(turn.messages)
    if words is None:
        return Refused("sentinel_in_request")
    if refused := unfit(turn):
        return refused
    if not turn.is_natural:
        ended = yield from _ended(turn, words)
        if isinstance(ended, Refused):
            return ended
        turn = ended
    outcome: Tail | Refused = Refused("turn_not_rendered")
    for form in forms(turn):
        outcome = yield from _tail_in_form(turn, words, form, habits)
        if isinstance(outcome, Tail) or outcome.reason != "turn_not_rendered":
            return outcome
    return outcome


def unfit(turn: Turn) -> Refused | None:
    """What no render can mend."""
    if not turn.new:
        return Refused("nothing_new")
    if any(message.get("role") == "assistant" for message in turn.new):
        return Refused("assistant_after_parent")
    if not turn.sampled:
        return Refused("nothing_sampled")
    if any(not is_text(part) for message in turn.messages for part in parts_of(message.get("content"))):
        return Refused("media")
    if len(texts_of(turn.new)) > MOST_TEXTS:
        return Refused("too_many_texts")
    return None


def _ended(turn: Turn, words: Words) -> Asking[Turn | Refused]:
    """The turn with what its text tells of its end, or why nothing may follow one that was cut there."""
    told = turn.sampled[:-1] if turn.is_at_stop_id else turn.sampled
    text, last = yield (Decode(told), Decode(turn.sampled[-1:]))
    is_named = turn.is_at_stop_id or last in turn.stops
    turn = replace(turn, is_natural=is_ended(turn, text, last), is_end_named=is_named)
    refused = None if turn.is_natural else cut_elsewhere(turn, text)
    if refused is None or refused.reason != "cut_not_in_answer":
        return refused or turn
    header, close = yield from _around_an_answer(turn, words)
    is_closed = MARKER.fullmatch(last) and close.startswith(last)
    if is_closed and cut_elsewhere(turn, text.removesuffix(last), header) is None:
        return replace(turn, is_natural=True, is_end_named=True)
    return cut_elsewhere(turn, text, header) or turn


def _around_an_answer(turn: Turn, words: Words) -> Asking[tuple[str, str]]:
    """What the template prints in front of an answer and behind it, between two messages of a user's; if it does."""
    asked, sentinel = {"role": "user", "content": words.text(0)}, words.sentinel("content", 0)
    said = {"role": "assistant", "content": sentinel}
    (render,) = yield (Render((*dummy(turn.messages[: turn.start])[:-1], asked, said, asked)),)
    if isinstance(render, Unrendered):
        return "", ""
    (text,) = yield (Decode(render),)
    before, _, behind = str(text).partition(sentinel)
    return before.rpartition(words.text(0))[2], behind.partition(words.text(0))[0].lstrip()


def is_ended(turn: Turn, text: str, last: str) -> bool:
    """Whether the last token is an end token after all, by the texts of the turn and of that token.

    A control token that the request named is taken for one: SGLang tells the end itself as a stop string if it is named
    so, and to close that turn once more would put a second end into it. Where no named string was said, none ended it.
    """
    if turn.is_at_stop_id or last in turn.stops:
        return MARKER.fullmatch(last) is not None
    return turn.is_over and not any(stop in text for stop in turn.stops)


def cut_elsewhere(turn: Turn, text: str, header: str = "") -> Refused | None:
    """A turn without an end goes on only where it was cut in its answer: nothing sampled may be missing in the echo.

    `text` is what the sampled ids say: reasoning or what the template prints in front of an answer, then the echoed
    answer, then at most a stop string. The answer is looked for from the front: behind it half a call may repeat it.
    """
    answer = plain_text(turn.told[-1].get("content")).strip().rstrip("\ufffd")
    if calls_of(turn.told):
        return Refused("cut_in_call")
    if not answer:
        return Refused("cut_in_reasoning")
    if _ends_with(answer, _behind_header(text, header), turn.stops, before=NO_THOUGHT):
        return None
    thought = turn.reasoning.strip()
    if thought and _ends_with(answer, text.partition(thought)[2], turn.stops):
        return None
    return Refused("cut_not_in_answer", f"{text[-80:]!r} was sampled, {answer[-80:]!r} came back")


def _behind_header(text: str, header: str) -> str:
    """A text without its longest beginning that is an end of the header: the rest of it stood in the prompt."""
    longest = min(len(text), len(header))
    return text[next((size for size in range(longest, 0, -1) if header.endswith(text[:size])), 0) :]


def _ends_with(answer: str, text: str, stops: Sequence[str], before: re.Pattern[str] = ANYTHING) -> bool:
    """Whether the first such answer in a text is the last that it says, but for a stop string and what ran past it."""
    head, found, after = text.partition(answer)
    rest = after.strip().strip("\ufffd")
    is_last = not rest or any(stop.strip() and rest.startswith(stop.strip()) for stop in stops)
    return bool(found) and is_last and before.fullmatch(head) is not None


def forms(turn: Turn) -> tuple[Form, ...]:
    """Where the last sentinel goes: some templates never print calls."""
    return ("arguments", "content") if calls_of(turn.told) else ("content",)


def _tail_in_form(turn: Turn, words: Words, form: Form, habits: Habits) -> Steps:
    """Behind a dummy history where that serves, else behind the real one thrice.

    A turn that is not found behind the dummy may only lie too far before the common end, where headers differ by what
    stands before them; but calls may be printed nowhere, which the other form is cheaper to tell.
    """
    history = turn.messages[: turn.start]
    if not habits.depends_on_history:
        outcome = yield from _tail_behind(turn, words, form, habits, dummy(history))
        if isinstance(outcome, Tail) or (form == "arguments" and outcome.reason == "turn_not_rendered"):
            return outcome
    real = yield from _tail_behind(turn, words, form, habits, history)
    if isinstance(real, Tail) and real.end != "substituted":
        habits.depends_on_history = True
    return real


def dummy(history: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """A history of the least messages that templates ask for."""
    system = [{"role": "system", "content": "Help."}] if history and history[0].get("role") == "system" else []
    return (*system, {"role": "user", "content": "Go on."})


def _tail_behind(turn: Turn, words: Words, form: Form, habits: Habits, head: tuple[JsonObject, ...]) -> Steps:
    """One round: three renders, their texts, and every check."""
    first, second, third = yield (
        Render((*turn.messages[: turn.start], stand_in(turn, words, form, 0), *turn.new)),
        Render((*head, stand_in(turn, words, form, 1), *turn.new)),
        Render((*head, stand_in(turn, words, form, 1), *words.replaced(turn.new))),
    )
    for render in (first, second, third):
        if isinstance(render, Unrendered):
            return Refused("template_refuses", render.message)
    common = first[len(first) - _shared_end(first, second) :]
    end = None
    if turn.is_natural:
        if head == turn.messages[: turn.start]:
            yield from _learn_pair(turn, common, words, habits)
        end = _end_in(common, turn, habits)
        if end is None:
            return Refused(
                "another_end", f"the turn ended with token {turn.sampled[-1]}, and the template ends it otherwise"
            )
    tail = common if end is None else common[end + 1 :]
    start, small_start = (max(0, len(ids) - len(common) - LOOK_BACK) for ids in (first, second))
    texts = yield (
        Decode(first[start:]),
        Decode(first[start : len(first) - len(tail)]),
        Decode(second[small_start:]),
        Decode(third[small_start:]),
        Decode(() if end is None else (common[end],)),
    )
    if refused := check_texts(turn, words, texts):
        return refused
    if end is None:
        return Tail(tail, "cut", first)
    return Tail(tail, "exact" if common[end] == turn.sampled[-1] else "substituted", first)


def check_texts(turn: Turn, words: Words, texts: tuple[str, ...]) -> Refused | None:
    """Whether the tail is all of, and nothing but, what the template prints between that turn and the next."""
    whole, before, second, third, marker = texts
    behind = [words.behind_last(text, letter) for text, letter in ((whole, 0), (second, 1), (third, 1))]
    real, other, pattern = behind
    if real is None or other is None or pattern is None:
        return Refused("turn_not_rendered")
    if real != other:
        return Refused("tail_depends_on_history", f"{real[:80]!r} behind the history, {other[:80]!r} elsewhere")
    pieces = words.pieces(pattern, turn.new)
    if pieces is None:
        return Refused("new_message_not_rendered", f"the template prints {pattern[:200]!r}")
    if not filled(real, pieces, [text_forms(text) for text in texts_of(turn.new)]):
        return Refused("new_message_altered", f"{real[:200]!r} is not {pattern[:200]!r} filled in")
    if not whole.startswith(before):
        return Refused("text_not_split", "the tail's text is not to be told from what stands before it")
    expected = real
    if turn.is_natural:
        if pieces[0].count(marker) != 1 or (turn.is_end_named and pieces[0].partition(marker)[0].strip()):
            return Refused("another_end", f"{marker!r} does not end the turn once in {pieces[0]!r}")
        expected = real[pieces[0].index(marker) + len(marker) :]
    if whole[len(before) :] != expected:
        return Refused("text_not_split", f"the tail would say {whole[len(before) :][:80]!r}")
    return None


def _end_in(common: tuple[int, ...], turn: Turn, habits: Habits) -> int | None:
    """Where the turn's end stands in what follows it: the sampled token, or the one printed in its place."""
    last = turn.sampled[-1]
    ends = {last, habits.pairs.get(last, last)}
    return next((place for place, token in enumerate(common) if token in ends), None)


def _learn_pair(turn: Turn, common: tuple[int, ...], words: Words, habits: Habits) -> Asking[None]:
    """Whether the template ends a turn differently when it is the last: four small renders, once for each end."""
    last = turn.sampled[-1]
    if last in common or last in habits.pairs or last in habits.unpaired:
        return
    asked = {"role": "user", "content": "Go on."}
    turns = [{"role": "assistant", "content": words.sentinel("content", letter)} for letter in (0, 1)]
    closing = tuple(Render((asked, said), generation_prompt=False) for said in turns)
    going_on = tuple(Render((asked, said, asked)) for said in turns)
    renders = yield (*closing, *going_on)
    if not any(isinstance(render, Unrendered) for render in renders):
        one, other, inner, inner_other = renders
        final = one[len(one) - _shared_end(one, other) :]
        middle = inner[len(inner) - _shared_end(inner, inner_other) :]
        if final and middle and final[0] == last != middle[0]:
            habits.pairs[last] = middle[0]
            return
    habits.unpaired.add(last)


def stand_in(turn: Turn, words: Words, form: Form, letter: int) -> JsonObject:
    """The parent's turn as echoed, sentinels in place of its texts; what is blank stays blank."""
    message = dict(turn.told[-1])
    calls = calls_of(turn.told)
    if str(message.get(turn.reasoning_key) or "").strip():
        message[turn.reasoning_key] = words.sentinel("reasoning", letter)
    if form == "content" or plain_text(message.get("content")).strip():
        message["content"] = words.sentinel("content", letter)
    if calls:
        message["tool_calls"] = [_with_sentinel(call, words.sentinel("arguments", letter)) for call in calls]
    return message


def _with_sentinel(call: JsonObject, sentinel: str) -> JsonObject:
    function = call["function"]
    key = next(iter(json.loads(function["arguments"])), "value")
    return {**call, "function": {**function, "arguments": json.dumps({key: sentinel})}}


def _shared_end(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
