"""The table of harnesses: what each is expected to do in every column, and what was seen of it."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from tests.harnesses.harness import TROUBLES, Harness, Trouble

Column = Literal[
    "finished",
    "recorded",
    "parents",
    "prefixes",
    "500",
    "529",
    "cut",
    "cut in text",
    "cut, held",
    "timeout",
    "side calls",
    "sub-agents",
    "direct",
]
COLUMNS: tuple[Column, ...] = get_args(Column)
MEANINGS: Mapping[Column, str] = {
    "finished": "it did the task: ran commands, read what they printed, and told what only the note says",
    "recorded": "calls on record, done, with whole ids and logprobs, of those that the engine was asked",
    "parents": "calls whose parent was found, of those that go on from an earlier reply",
    "prefixes": "of these, calls that were given their exact prefix, proven by the ids that came back",
    "500": "the engine answers 500 to the second call of the task: `once` says that the harness asked again, that the "
    "retry claimed the same draw, and that it counts once",
    "529": "the same with 529",
    "cut": "the same where the engine's connection breaks while the model thinks; `ends when told` says that the "
    "harness ends the task because Rollpin tells of the break, and would have taken a wordless one for the reply's end",
    "cut in text": "the same where it breaks in the middle of what the model says; `goes on` says that the harness "
    "kept the half and asked for the rest: the half is left out as a failed call, and the rest counts once",
    "cut, held": "the same with [`hold_streams`](apis.md#held-streams), and signs of life before the break",
    "timeout": "the same where the engine falls silent for longer than the harness waits; `no such setting` says that "
    "how long it waits cannot be set",
    "side calls": "calls besides the task's own, and what they are for; they are not trained on",
    "sub-agents": "the task handed to another agent: `own lane` says that its calls are recorded, their parents found, "
    "and that they stand in branches of kind `subagent`",
    "direct": "the same answer with as many model calls, in which the model heard the same, as straight at the engine, "
    "without Rollpin",
}
Cells = Mapping[Column, str]


def expected(harness: Harness) -> Cells:
    """The cells of a harness, by what is known of it."""
    followers = harness.turns - 1
    found = followers - harness.rewrites
    calls = harness.turns + len(harness.side_calls)
    return {
        "finished": "yes",
        "recorded": f"{calls} of {calls}",
        "parents": f"{found} of {followers}",
        "prefixes": f"{found} of {found}" if found else "none to give",
        **{trouble: expected_after(harness, trouble) for trouble in TROUBLES},
        "cut, held": "once" if harness.streams else "not streamed",
        "side calls": ", ".join(dict.fromkeys(harness.side_calls + harness.afterwards)) or "makes none",
        "sub-agents": "own lane" if harness.delegate else "has none",
        "direct": "same",
    }


def expected_after(harness: Harness, trouble: Trouble) -> str:
    """What it does about an engine in trouble."""
    if trouble == "timeout" and harness.time_limit == "none":
        return "no such setting"
    known = {"ends when told": harness.ends_when_told, "goes on": harness.goes_on}
    return next((cell for cell, troubles in known.items() if trouble in troubles), "once")


def rows(cells: Mapping[str, Cells], headers: Sequence[str] = ("harness", *COLUMNS)) -> list[list[str]]:
    """The table with its header; what was not seen is empty."""
    return [list(headers), *([name, *(seen.get(column, "") for column in COLUMNS)] for name, seen in cells.items())]


def in_columns(table: Sequence[Sequence[str]]) -> str:
    """The table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
