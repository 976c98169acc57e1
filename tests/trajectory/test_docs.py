"""docs/trajectories.md lists the fields and reasons that there are, no more and no less."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.trajectory import assemble, branches, standing
from proxy.trajectory.assemble import assemble as assembled
from proxy.trajectory.documents import trajectory_document
from proxy.trajectory.rules import TrajectoryRules
from tests import make
from tests.trajectory.tape import Tape, failed

PAGE = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text("utf-8")
# Values of other people's making.
OPAQUE = {"metadata", "outcome", "branches[].call_outcomes[].outcome"}


def fields(value: Any, name: str = "") -> Iterator[str]:
    """Names of a document's leaves, in the notation of the page; of a list every item counts."""
    if isinstance(value, dict) and name not in OPAQUE:
        for key, item in value.items():
            yield from fields(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            yield from fields(item, f"{name}[]")
    elif not (name.endswith("forked_from") and value is None):
        yield name


def first_cells(heading: str, cell: int = 1) -> set[str]:
    """The cells of a column of the table under a heading."""
    section = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    rows = (line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| "))
    return {found[1] for row in rows if (found := re.match(r"`([^`]+)`", row[cell - 1].strip()))}


def test_every_field_is_documented_and_every_documented_field_exists() -> None:
    """Of a rollout in which every field is in use."""
    tape = Tape()
    start = tape.root([1], [10], outcome={"reward": 1}, sampling={"constrained": ["tool_choice"]})
    tape.child(start, [2], [11])
    tape.child(start, [3], [12])
    tape.root([1], [10], **failed())
    rollout = make.rollout(outcome={"reward": 1}, metadata={"task": 1})
    document = trajectory_document(assembled(rollout, tape.calls, TrajectoryRules()))

    assert set(fields(document)) == first_cells("## The trajectory: `rollpin.trajectory/1`")


def test_every_reason_of_the_program_is_documented() -> None:
    """Those that stand in its source as words."""
    told = first_cells("### Reasons", cell=2) | set(re.findall(r"`([a-z_]+)`", PAGE))
    sources = "".join(Path(str(module.__file__)).read_text() for module in (assemble, branches, standing))
    words = set(re.findall(r'"((?:side|no|not|maybe|by|parent|unused|retried|extends|constrained)_?[a-z_]*)"', sources))

    assert len(words) > 8
    assert words - told - {"side", "unused", "not_kept", "parent", "no_outcome_yet"} <= {"constrained"}
