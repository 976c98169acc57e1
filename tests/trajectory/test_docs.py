"""docs/trajectories.md lists the fields and reasons that there are, no more and no less."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.trajectory.assemble import assemble as assembled
from proxy.trajectory.documents import trajectory_document
from proxy.trajectory.rules import TITLE_CALL, SideRule, TrajectoryRules
from tests import make
from tests.trajectory.tape import Tape, failed
from tests.trajectory.trees import rollouts, rules, tapes

PAGE = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text("utf-8")
PACKAGE = Path(__file__).parents[2] / "proxy" / "trajectory"
RULES = (TITLE_CALL, SideRule("small"))
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


def first_cells(heading: str) -> set[str]:
    """First cells of the table under a heading."""
    section = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_every_field_is_documented_and_every_documented_field_exists() -> None:
    """Of a rollout in which every field is in use."""
    tape = Tape()
    start = tape.root([1], [10], outcome={"reward": 1}, sampling={"constrained": ["tool_choice"]})
    tape.child(start, [2], [11])
    tape.child(start, [3], [12])
    tape.root([1], [10], **failed())
    rollout = make.rollout(outcome={"reward": 1}, metadata={"task": 1})
    document = trajectory_document(assembled(rollout, tape.calls, TrajectoryRules()))

    names = set(fields(document))
    empty = {name for name in names if any(other.startswith(f"{name}[].") for other in names)}
    assert names - empty == first_cells("## The trajectory: `rollpin.trajectory/1`")


def reasons(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every reason of a document, and where it stands."""
    yield from (("trajectory", reason) for reason in document["trainable"]["reasons"])
    yield from (("excluded", one["reason"]) for one in document["excluded"])
    for branch in document["branches"]:
        yield from (("branch", reason) for reason in branch["trainable"]["reasons"])
        yield from (("link", link["reason"]) for link in branch["links"])


@settings(max_examples=100, deadline=None)
@given(rollouts, tapes(), rules, st.booleans())
def test_every_reason_is_documented(rollout: Any, calls: Any, ruled: Any, include_all: Any) -> None:
    """By its word or its pattern, and for the place where it stands; a trajectory gives those of its parts."""
    document = trajectory_document(assembled(rollout, calls, ruled), include_all=include_all)
    kinds = {"engine_cut", "proxy_died"}
    parents = {"first_turn", "no_match", "ambiguous", "no_outcome_yet"}
    known = {place: DOCUMENTED[place] | (kinds if place == "excluded" else set()) for place in DOCUMENTED}
    known["link"] |= parents
    known["branch"] |= {f"unresolved_{reason}" for reason in parents} | {f"side_rule_{one.name}" for one in RULES}
    known["link"] |= {f"parent_{reason}" for reason in known["excluded"]}
    known["excluded"] |= known["branch"]
    known["trajectory"] |= known["branch"] | known["excluded"]

    for place, reason in reasons(document):
        assert reason in known[place], (place, reason)


def test_every_documented_reason_exists() -> None:
    """Each is a word of the source."""
    source = "".join(path.read_text() for path in PACKAGE.glob("*.py"))
    patterns = {"side_rule_NAME", "unresolved_REASON", "parent_REASON", "rollout_expired"}

    for reason in set().union(*DOCUMENTED.values()) - patterns:
        assert f'"{reason}"' in source, reason
    for pattern in patterns:
        assert f"{re.split('NAME|REASON|expired', pattern)[0]}{{" in source, pattern


def documented_reasons() -> dict[str, set[str]]:
    """Reasons of the page by where they may stand."""
    found: dict[str, set[str]] = {"excluded": set(), "branch": set(), "trajectory": set(), "link": set()}
    for places, word in re.findall(r"^\| ([a-z, ]+) \| `(\w+)` \|", PAGE.split("\n### Reasons\n")[1], re.MULTILINE):
        for place in places.split(", "):
            found[place].add(word)
    return found


DOCUMENTED = documented_reasons()
