"""The counts of docs/joint.md. `python -m tests.joint.table` makes them anew, in a few minutes, and writes them in.

Two batteries, the same cases every time: `slice`, which `make test` runs, and `whole`, which `make test-long` runs.
"""

import argparse
import multiprocessing
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.request.joint_turn import Refused
from tests.joint.families import family_of, templates
from tests.joint.oracle import MustRefuse
from tests.joint.trial import Trial, trials

PAGE = Path(__file__).parents[2] / "docs" / "joint.md"
# Cases of each template.
SIZES = {"slice": 20, "whole": 200}
HEAD = "| {} | cases | right | must refuse | refused | needlessly | wrong | supplied of those with a tail |"
NO_TAIL = "-"


@dataclass(frozen=True, slots=True)
class Tally:
    """What is counted of a trial."""

    family: str
    is_training: bool
    verdict: str
    must_refuse: str
    """Why no tail is right; empty where one is."""
    reason: str
    """The joint's, where it refused."""


def tally(trial: Trial) -> Tally:
    expected, outcome = trial.expected, trial.outcome
    return Tally(
        family=family_of(trial.case.template).name,
        is_training=trial.case.template.endswith("_training"),
        verdict=trial.verdict,
        must_refuse=expected.why if isinstance(expected, MustRefuse) else "",
        reason=outcome.reason if isinstance(outcome, Refused) else "",
    )


def tallies_of(template: str, size: int) -> list[Tally]:
    return [tally(trial) for trial in trials(template, size)]


def all_tallies(size: int) -> list[Tally]:
    """Every template's, on two processes: the cases share nothing."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(tallies_of, [(template, size) for template in templates()], chunksize=1)
    return [each for of_one in found for each in of_one]


def tables(tallies: Sequence[Tally]) -> str:
    """Both tables: by family, and by reason."""
    names = sorted({(each.family.startswith("own"), each.family, each.is_training) for each in tallies})
    rows = [HEAD.format("family"), "|--|--|--|--|--|--|--|--|"]
    for _, family, is_training in names:
        of_one = [each for each in tallies if (each.family, each.is_training) == (family, is_training)]
        rows.append(_row(family + (", training" if is_training else ""), of_one))
    rows.append(_row("**all**", tallies))
    return "\n".join([*rows, "", *_reasons(tallies)])


def _row(name: str, tallies: Sequence[Tally]) -> str:
    verdicts = Counter(each.verdict for each in tallies)
    must = sum(bool(each.must_refuse) for each in tallies)
    needless = sum(each.verdict == "refused" and not each.must_refuse for each in tallies)
    able = len(tallies) - must
    share = f"{verdicts['right'] / able:.1%}" if able else NO_TAIL
    cells = (len(tallies), verdicts["right"], must, verdicts["refused"], needless, verdicts["wrong"], share)
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"


def _reasons(tallies: Iterable[Tally]) -> list[str]:
    refused = Counter((each.reason, each.must_refuse) for each in tallies if each.verdict == "refused")
    rows = sorted(refused.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    head = ["| the joint's reason | what the oracle says | cases |", "|--|--|--|"]
    return head + [f"| `{reason}` | {why or '**there is a right tail**'} | {count} |" for (reason, why), count in rows]


def published(mark: str) -> str:
    """What the page says between its comments."""
    found = re.search(rf"<!-- {mark} -->\n(.*?)\n<!-- /{mark} -->", PAGE.read_text(), re.DOTALL)
    if not found:
        raise LookupError(f"{PAGE.name} has no place for the battery {mark!r}")
    return found[1].strip()


def publish(mark: str, text: str) -> None:
    old = f"<!-- {mark} -->\n{published(mark)}\n<!-- /{mark} -->"
    PAGE.write_text(PAGE.read_text().replace(old, f"<!-- {mark} -->\n{text}\n<!-- /{mark} -->"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.joint.table", description=__doc__)
    parser.add_argument("batteries", nargs="*", choices=[*SIZES, []], help="all if none is named")
    for mark in parser.parse_args().batteries or SIZES:
        publish(mark, tables(all_tallies(SIZES[mark])))


if __name__ == "__main__":
    main()
