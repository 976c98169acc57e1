"""docs/trajectories.md lists the fields and reasons that there are, no more and no less."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.trajectory.assemble import assemble as assembled
from proxy.trajectory.documents import trajectory_document
from proxy.trajectory.glossary import REASONS, Place, find_reason
from proxy.trajectory.rules import TrajectoryRules
from tests import make
from tests.trajectory.tape import Tape, failed
from tests.trajectory.trees import rollouts, rules, tapes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trajectories.md").read_text("utf-8")
SOURCES = tuple(ROOT / room for room in ("proxy/trajectory", "proxy/request", "proxy/model", "proxy"))
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


@settings(max_examples=100)
@given(rollouts, tapes(), rules, st.booleans())
def test_every_reason_is_explained(rollout: Any, calls: Any, ruled: Any, include_all: Any) -> None:
    """By its word or its pattern, for the place where it stands; a trajectory gives those of its parts."""
    document = trajectory_document(assembled(rollout, calls, ruled), include_all=include_all)
    places: dict[str, tuple[Place, ...]] = {
        "trajectory": ("trajectory", "branch", "excluded", "failure"),
        "excluded": ("excluded", "failure"),
        "branch": ("branch",),
        "link": ("link", "parent"),
    }

    for place, word in reasons(document):
        is_early = place == "link" and word == "no_outcome_yet"
        assert is_early or find_reason(word, *places[place]), (place, word)


def test_every_explained_reason_exists() -> None:
    """Each is a word of the source, in assembly or in the steps whose reasons records hold."""
    source = "".join(path.read_text() for folder in SOURCES for path in sorted(folder.glob("*.py")))
    patterns = {"side_rule_NAME", "unresolved_REASON", "parent_REASON", "rollout_expired"}

    for reason in {one.word for one in REASONS if one.places != ("failure",)} - patterns:
        assert f'"{reason}"' in source.replace("'", '"'), reason
    for pattern in patterns:
        assert f"{re.split('NAME|REASON|expired', pattern)[0]}{{" in source, pattern


def test_every_refusal_of_a_prefix_is_explained() -> None:
    """Whatever the joint and the supply can say."""
    sources = "\n".join((ROOT / "proxy" / name).read_text() for name in ("supply.py", "request/joint.py"))
    found = re.findall(r'(?:Refused|unsupplied)\(\s*"(\w+)"|(?:return|reason=) "(\w+_\w+)"', sources)
    said = {one or other for one, other in found} - {"tool_calls"}

    assert len(said) > 20
    assert {word for word in said if not find_reason(word, "prefix")} == set()


def test_the_page_tells_every_reason_as_the_glossary_does() -> None:
    """Word for word, and failures on the page of records."""
    section = PAGE.split("\n### Reasons\n")[1].split("\n## ")[0]
    told = re.findall(r"^\| (.+) \| `(\w+)` \| (.+) \| (.+) \|$", section, re.MULTILINE)

    assert told == [
        (", ".join(one.places), one.word, one.meaning, one.remedy)
        for one in REASONS
        if one.places not in {("failure",), ("prefix",)}
    ]


def test_the_page_of_prefixes_tells_every_reason_as_the_glossary_does() -> None:
    """Word for word."""
    section = (ROOT / "docs" / "prefixes.md").read_text().partition("\n## Reasons\n")[2]
    told = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", section, re.MULTILINE)

    assert told == [(one.word, one.meaning, one.remedy) for one in REASONS if one.places == ("prefix",)]
