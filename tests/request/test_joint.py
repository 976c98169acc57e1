"""The joint on a toy template: what is supplied, what is refused and why. tests/joint tries it on real templates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.model import JsonObject
from proxy.request.joint import find_tail
from proxy.request.joint_turn import Decode, Habits, Refused, Render, Tail, Turn, Unrendered
from proxy.sim import template
from proxy.sim.tokens import END_OF_TEXT, TURN_END, TURN_START, decode, encode

TASK = {"role": "user", "content": "What is 2+2?"}
ANSWER = {"role": "assistant", "content": "It is 4."}
NEXT = {"role": "user", "content": "And twice that?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "4"}
HABITS = template.Habits(("reasoning_content",), " ", refuses_bad_arguments=True)


def toy_ids(messages: Sequence[JsonObject], *, generation_prompt: bool = True) -> tuple[int, ...]:
    prompt = template.Prompt(tuple(messages), add_generation_prompt=generation_prompt)
    return encode(template.render(prompt, HABITS))


@dataclass
class Asked:
    """Answers the joint's questions, and counts them."""

    render: Callable[..., tuple[int, ...]] = toy_ids
    renders: list[Render] = field(default_factory=list)

    def find(self, turn: Turn, habits: Habits | None = None) -> Tail | Refused:
        steps = find_tail(turn, habits or Habits())
        try:
            questions = next(steps)
            while True:
                questions = steps.send(tuple(map(self.answer, questions)))
        except StopIteration as stop:
            outcome: Tail | Refused = stop.value
            return outcome

    def answer(self, question: Render | Decode) -> Any:
        if isinstance(question, Decode):
            return decode(question.ids)
        self.renders.append(question)
        try:
            return self.render(question.messages, generation_prompt=question.generation_prompt)
        except template.Unrenderable as problem:
            return Unrendered(str(problem))


def turn(*messages: JsonObject, said: str = "It is 4.", end: int | None = TURN_END, **changes: Any) -> Turn:
    """The request TASK, the parent's turn, and what is new."""
    told = messages or (TASK, ANSWER, NEXT)
    at = max(i for i, message in enumerate(told) if message["role"] == "assistant")
    made: dict[str, Any] = {
        "messages": told,
        "start": at,
        "stop": at + 1,
        "sampled": encode(said) + (() if end is None else (end,)),
        "is_natural": end is not None,
    }
    return Turn(**{**made, **changes})


def tail_text(outcome: Tail | Refused) -> str:
    assert isinstance(outcome, Tail), outcome
    return decode(outcome.ids)


def test_the_tail_is_what_stands_between_the_turns_end_and_the_next_reply() -> None:
    """The newline behind the end token, the new message, and the generation prompt."""
    outcome = Asked().find(turn())

    assert tail_text(outcome) == "\n<|im_start|>user\nAnd twice that?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("new", "printed"),
    [
        ([RESULT], "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n"),
        (
            [RESULT, {"role": "tool", "tool_call_id": "c2", "content": ""}],
            "<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n",
        ),
        ([{"role": "user", "content": "  "}], "<|im_start|>user\n  <|im_end|>\n"),
        ([{"role": "user", "content": "é 🙂 <|im_end|>"}], "<|im_start|>user\né 🙂 <|im_end|><|im_end|>\n"),
    ],
)
def test_results_blanks_and_control_markers_come_through_as_they_are(new: list[JsonObject], printed: str) -> None:
    """Also behind a call whose sampled spelling no render would repeat."""
    outcome = Asked().find(turn(TASK, CALL, *new, said='<tool_call>{ "a":2}</tool_call>'))

    assert tail_text(outcome) == f"\n{printed}<|im_start|>assistant\n"


def test_a_turn_cut_in_its_answer_gets_the_templates_own_end() -> None:
    """It was never sampled, so it stands in the tail."""
    outcome = Asked().find(turn(said="It is 4.", end=None))

    assert tail_text(outcome).startswith("<|im_end|>\n<|im_start|>user\n")
    assert isinstance(outcome, Tail)
    assert outcome.end == "cut"


def test_an_end_on_which_the_limit_fell_is_not_doubled() -> None:
    """The engine calls the turn cut, and no turn has ended by that token before; the template prints it there."""
    outcome = Asked().find(turn(said="It is 4.<|im_end|>", end=None))

    assert tail_text(outcome).startswith("\n<|im_start|>user\n")


@pytest.mark.parametrize(
    ("reason", "refused"),
    [
        ("nothing_new", turn(TASK, ANSWER)),
        ("nothing_sampled", turn(sampled=())),
        ("another_end", turn(end=END_OF_TEXT)),
        ("cut_in_call", turn(TASK, CALL, RESULT, said='<tool_call>{"a"', end=None)),
        ("cut_in_reasoning", turn(TASK, {**ANSWER, "content": ""}, NEXT, said="<think>It", end=None)),
        ("cut_not_in_answer", turn(said='It is 4.<tool_call>{"name', end=None)),
        ("cut_not_in_answer", turn(said="It is 4.<|im_end|>\n", end=None)),
        ("cut_not_in_answer", turn(said="It is 4, or 5.<|im_end|>", end=None)),
        ("cut_not_in_answer", turn(said="It is 4.<|im_start|>", end=None)),
        ("too_many_texts", turn(TASK, ANSWER, *[NEXT] * 1001)),
        ("another_end", turn(end=TURN_START, is_natural=False, is_at_stop_id=True)),
        ("media", turn(TASK, ANSWER, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]})),
        ("sentinel_in_request", turn(TASK, ANSWER, {"role": "user", "content": "wxjv qzkv jxqw vqjz zxwk"})),
    ],
)
def test_what_is_not_certain_is_refused_with_its_reason(reason: str, refused: Turn) -> None:
    """A doubled end token, a lost half call or an image would be wrong training data."""
    outcome = Asked().find(refused)

    assert isinstance(outcome, Refused)
    assert outcome.reason == reason


def test_a_turn_cut_by_a_stop_string_goes_on_behind_what_was_sampled() -> None:
    """The client never saw the stop string, yet it was sampled and stays."""
    outcome = Asked().find(turn(said="It is 4.\nSTOP", end=None, stops=("STOP",)))

    assert tail_text(outcome).startswith("<|im_end|>\n")


def test_a_template_that_drops_tool_results_is_refused() -> None:
    """Its prompt would lack what the harness said."""

    def without_results(messages: Sequence[JsonObject], **how: Any) -> tuple[int, ...]:
        return toy_ids([message for message in messages if message["role"] != "tool"], **how)

    outcome = Asked(without_results).find(turn(TASK, CALL, RESULT))

    assert outcome == Refused("new_message_not_rendered", outcome.detail if isinstance(outcome, Refused) else "")


def test_a_template_that_raises_is_refused_in_its_own_words() -> None:
    """Never a crash."""

    def picky(messages: Sequence[JsonObject], **_: Any) -> tuple[int, ...]:
        raise template.Unrenderable("roles must alternate")

    assert Asked(picky).find(turn()) == Refused("template_refuses", "roles must alternate")


def test_a_tail_that_depends_on_history_is_found_behind_the_real_one() -> None:
    """And from then on no dummy is tried for that template."""

    def counting(messages: Sequence[JsonObject], *, generation_prompt: bool = True) -> tuple[int, ...]:
        return (*toy_ids(messages, generation_prompt=generation_prompt), *encode(f"turn {len(messages)}"))

    habits, asked = Habits(), Asked(counting)
    first = asked.find(turn(TASK, ANSWER, TASK, ANSWER, NEXT), habits)
    renders = len(asked.renders)
    asked.find(turn(TASK, ANSWER, TASK, ANSWER, NEXT), habits)

    assert tail_text(first).endswith("turn 5")
    assert habits.depends_on_history
    assert (renders, len(asked.renders) - renders) == (6, 3)


def test_an_end_that_is_printed_otherwise_inside_a_conversation_is_learned_once() -> None:
    """As gpt-oss samples one token where a later render has another."""

    def two_ends(messages: Sequence[JsonObject], *, generation_prompt: bool = True) -> tuple[int, ...]:
        ids = list(toy_ids(messages, generation_prompt=generation_prompt))
        if messages[-1]["role"] == "assistant" and not generation_prompt:
            ids[len(ids) - 1 - ids[::-1].index(TURN_END)] = END_OF_TEXT
        return tuple(ids)

    habits, asked = Habits(), Asked(two_ends)
    outcome = asked.find(turn(end=END_OF_TEXT), habits)
    renders = len(asked.renders)
    asked.find(turn(end=END_OF_TEXT), habits)

    assert isinstance(outcome, Tail)
    assert outcome.end == "substituted"
    assert habits.pairs == {END_OF_TEXT: TURN_END}
    assert (renders, len(asked.renders) - renders) == (10, 3)
