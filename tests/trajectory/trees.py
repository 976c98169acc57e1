"""Random rollouts: everything that harnesses and engines do to a tree of calls, with ids that often agree by chance."""

from typing import Any

from hypothesis import strategies as st

from proxy.model import JsonObject, Rollout
from proxy.trajectory.rules import SideRule, TrajectoryRules
from tests import make
from tests.trajectory.tape import (
    Tape,
    choice,
    failed,
    ids_of,
    prefix,
    resolved,
    title_call,
    undelivered,
    without_ids,
)

ids = st.lists(st.integers(0, 2), max_size=3)
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=4)

# Plain ones are many, so that most calls live and trees grow deep and wide.
LANES: list[JsonObject] = [
    *[{}] * 5,
    {"thread-id": "main"},
    {"thread-id": "sub", "x-codex-parent-thread-id": "main"},
    {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a1"},
]
FATES: list[JsonObject] = [
    *[{}] * 10,
    failed(),
    failed("proxy_died"),
    {"state": "late"},
    {"state": "reserved", "parent": None, "messages": None, "request": None, "lane_signals": None, **without_ids()},
    {"deliveries": undelivered()},
]
ASKING: list[JsonObject] = [
    *[{}] * 6,
    {"has_tools": False, "request": {}},
    {"has_tools": False, "request": {}, "requested_model": "small"},
    {"requested_model": None},
    title_call(),
]


SUPPLIED = prefix("exact", eligible=True, requested=True, supplied=True)
NOT_SUPPLIED: list[JsonObject] = [
    prefix("template_refuses", eligible=True),
    prefix("other_ids_came_back", eligible=True, requested=True),
    prefix("off_in_profile"),
]
KINDS = ["root", *["child"] * 6, "broken", "cut", "lost", "lost_child"]


@st.composite
def fields(draw: Any) -> JsonObject:
    """What else is true of a call."""
    found = {**draw(st.sampled_from(ASKING)), **draw(st.sampled_from(FATES))}
    if "lane_signals" not in found:
        found["lane_signals"] = draw(st.sampled_from(LANES))
    if draw(st.integers(0, 4)) == 0:
        found["sampling"] = {"constrained": ["tool_choice"]}
    if draw(st.integers(0, 3)) == 0:
        found["context"] = draw(st.sampled_from(["one", "other"]))
    return found


@st.composite
def tapes(draw: Any, most: int = 12) -> list[JsonObject]:
    """The calls of a random rollout."""
    tape = Tape()
    for _ in range(draw(st.integers(0, most))):
        add_call(draw, tape)
    whole = [call for call in tape.calls if call["state"] == "done"]
    if whole and draw(st.integers(0, 7)) == 0:  # rare: it masks the whole rollout
        draw(st.sampled_from(whole)).update(without_ids())
    return tape.calls


def add_call(draw: Any, tape: Tape) -> None:
    """One more request, of one choice or of several."""
    said, more = draw(ids), draw(fields())
    known = [call for call in tape.calls if call["prompt_token_ids"] is not None]
    earlier = draw(st.sampled_from(known)) if known else None
    missing = st.sampled_from(NOT_SUPPLIED)
    match draw(st.sampled_from(KINDS)):
        case "child" if earlier:
            more["prefix"] = draw(st.one_of(st.just(SUPPLIED), missing))
            made = _like(tape, earlier, [*ids_of(earlier), *draw(ids)], said, more)
        case "broken" if earlier:
            more["prefix"] = draw(missing)
            made = _like(tape, earlier, draw(prompts), said, more)
        case "cut" if earlier:
            whole = ids_of(earlier)
            more["prefix"] = draw(missing)
            made = _like(tape, earlier, [*whole[: draw(st.integers(1, len(whole)))], *draw(ids)], said, more)
        case "lost_child" if earlier:
            made = tape.lost([*ids_of(earlier), *draw(ids)], said, **more)
        case "lost":
            made = tape.lost(draw(prompts), said, **more)
        case _:
            made = tape.root(draw(prompts), said, **more)
    if made["state"] == "done" and made["prompt_token_ids"] and draw(st.integers(0, 5)) == 0:
        _add_choices(draw, tape, made)


def _like(tape: Tape, earlier: JsonObject, prompt: list[int], said: list[int], more: JsonObject) -> JsonObject:
    """A child that mostly keeps its parent's lane."""
    signals = more["lane_signals"] or earlier["lane_signals"]
    parent = more.get("parent", resolved(earlier))
    return tape.call(prompt, said, **{**more, "lane_signals": signals, "parent": parent})


def _add_choices(draw: Any, tape: Tape, first: JsonObject) -> None:
    shared = {name: first[name] for name in ("parent", "requested_model", "has_tools", "messages", "request")}
    for number in range(1, draw(st.integers(2, 3))):
        tape.call(first["prompt_token_ids"], draw(ids), **shared, **choice(number, first))


SIDE_RULES: list[tuple[SideRule, ...]] = [
    (),
    TrajectoryRules().side_rules,
    (SideRule("small", requested_model="sm*"),),
    (SideRule("titles", "label", system_contains="title"), SideRule("small", requested_model="sm*")),
    (SideRule("toolless", "keep", has_tools=False), *TrajectoryRules().side_rules),
]
rules = st.builds(
    TrajectoryRules,
    side_rules=st.sampled_from(SIDE_RULES),
    other_model_is_side=st.booleans(),
    side_uncertain=st.sampled_from(["keep", "drop"]),
    constrained_training=st.sampled_from(["keep", "mask"]),
)

rollouts: st.SearchStrategy[Rollout] = st.sampled_from(["finished", "finished", "open", "expired"]).map(
    lambda state: make.rollout(state=state)
)
