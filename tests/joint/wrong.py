"""Joints as others find them. Each is wrong somewhere, and the oracle must say so."""

from collections.abc import Generator
from typing import Any

from proxy.request.joint_turn import Habits, Refused, Render, Tail, Turn, Unrendered

Steps = Generator[tuple[Render, ...], tuple[Any, ...], Tail | Refused]


def plain_difference(turn: Turn, habits: Habits) -> Steps:
    """What the whole render has more than the render up to the parent's turn."""
    shorter, longer = yield _up_to_the_turn(turn), Render(turn.messages)
    if isinstance(shorter, Unrendered) or isinstance(longer, Unrendered):
        return Refused("template_refuses")
    if longer[: len(shorter)] != shorter:
        return Refused("not_a_prefix")
    return _tail(longer[len(shorter) :], longer)


def counted_ends(turn: Turn, habits: Habits) -> Steps:
    """Behind as many end tokens as the render up to the parent's turn has."""
    shorter, longer = yield _up_to_the_turn(turn), Render(turn.messages)
    if isinstance(shorter, Unrendered) or isinstance(longer, Unrendered):
        return Refused("template_refuses")
    places = [place for place, token in enumerate(longer) if token == turn.sampled[-1]]
    count = shorter.count(turn.sampled[-1])
    if not 0 < count <= len(places):
        return Refused("no_end")
    return _tail(longer[places[count - 1] + 1 :], longer)


def common_end(turn: Turn, habits: Habits) -> Steps:
    """What stands behind the parent's turn in two renders that differ in its text, without a single check."""
    told = [{**turn.told[-1], "content": word} for word in ("wxjvk", "wxjvp")]
    head = turn.messages[: turn.start]
    one, other = yield tuple(Render((*head, said, *turn.new)) for said in told)
    if isinstance(one, Unrendered) or isinstance(other, Unrendered):
        return Refused("template_refuses")
    shared = next((n for n, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b), 0)
    common = one[len(one) - shared :]
    place = common.index(turn.sampled[-1]) + 1 if turn.sampled[-1] in common else 0
    return _tail(common[place:], one)


def _up_to_the_turn(turn: Turn) -> Render:
    return Render(turn.messages[: turn.stop], generation_prompt=False)


def _tail(ids: tuple[int, ...], rendered: tuple[int, ...]) -> Tail:
    return Tail(ids, "exact", rendered)


WRONG_JOINTS = (plain_difference, counted_ends, common_end)
