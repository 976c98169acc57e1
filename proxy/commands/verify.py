"""`rollpin verify`: a store held against its own promises, with a line for each fault and what to do."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from proxy.commands.ending import end, settings_or_end
from proxy.commands.flags import AsDocument
from proxy.commands.lines import indented
from proxy.counted import counted
from proxy.errors import ProxyError
from proxy.store_url import SQLITE, shown_store_url
from proxy.verify.audit import Auditor
from proxy.verify.faults import CHECKS, REMEDIES, Fault
from proxy.verify.story import Looking, Report, verify_store

HAS_FAULTS = 1
NOT_LOOKED_AT = 2
FAULTS_A_CHECK = 10


def verify(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="SQLite file of a store; by default that of the settings.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Look also where a proxy serves from the file, at one moment's state.")
    ] = False,
    run_seed: Annotated[
        int | None, typer.Option(min=0, help="Root of seeds, for records that do not name theirs.")
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Also recompute every draw whose candidates are on record.")
    ] = False,
    as_json: AsDocument = False,
) -> None:
    """Hold a store against its own promises, offline: no proxy, no engine, nothing is written.

    Status 0 where all hold, 1 where one does not, 2 where the store could not be looked at.
    """
    settings = settings_or_end([], None, to_serve=False)
    place, root = file or settings.store, settings.run_seed if run_seed is None else run_seed
    auditor = Auditor() if audit else None
    try:
        with progress() as tell:
            looking = Looking(run_seed=root, tell=tell, **({"also": auditor} if auditor else {}))
            report = verify_store(place, looking, beside=read_only)
    except ProxyError as error:
        end(error.message, NOT_LOOKED_AT)
    if as_json:
        typer.echo(json.dumps(report_document(report, auditor)))
    else:
        show(str(place if file else shown_store_url(settings.store).removeprefix(SQLITE)), report, auditor)
    raise typer.Exit(HAS_FAULTS if report.faults else 0)


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A bar over rollouts, where a person looks."""
    console = Console(stderr=True)
    columns = (TextColumn("rollouts"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def report_document(report: Report, auditor: Auditor | None = None) -> dict[str, object]:
    """A report as JSON; `audit` is null where it was not asked for."""
    return {
        "schema": "rollpin.verification/1",
        "rollouts": report.rollouts,
        "calls": report.calls,
        "tokens": report.tokens,
        "calls_without_outcome": report.unended,
        "seeds_not_checked": report.unseeded,
        "audit": auditor
        and {
            "calls": auditor.calls,
            "tokens": auditor.tokens,
            "probability_outside": auditor.mean_outside,
            "not_audited": dict(auditor.left_out),
        },
        "faults": [{**asdict(fault), "remedy": fault.remedy} for fault in report.faults],
    }


def show(name: str, report: Report, auditor: Auditor | None = None) -> None:
    """What was looked at, then the faults by check, the remedy once for each."""
    console = Console(highlight=False, markup=False)
    rollouts, calls = counted(report.rollouts, "rollout"), counted(report.calls, "call")
    console.print(f"{name}: {rollouts}, {calls}, {counted(report.tokens, 'generated token')}")
    if report.unended:
        have = counted(report.unended, "call has", "calls have")
        console.print(f"{have} no outcome: running now, or left by a proxy that died")
    if report.unseeded:
        were = counted(report.unseeded, "seed was", "seeds were")
        console.print(f"{were} not checked: the run seed is not known, give --run-seed")
    if auditor is not None:
        _show_audit(console, auditor)
    counts = Counter(fault.check for fault in report.faults)
    for check in CHECKS:
        if counts[check]:
            _show_check(console, check, [fault for fault in report.faults if fault.check == check])
    number = len(report.faults)
    console.print(f"\n{counted(number, 'fault')}" if number else "no fault")


def _show_audit(console: Console, auditor: Auditor) -> None:
    """How much was recomputed, how much probability it could not see, and what was left out."""
    console.print(f"audit: {counted(auditor.tokens, 'draw')} of {counted(auditor.calls, 'call')} recomputed")
    if auditor.tokens:
        console.print(f"  {auditor.mean_outside:.2%} of the probability lay outside the recorded candidates")
    for reason, count in auditor.left_out.most_common():
        console.print(f"  {counted(count, 'call')} not audited: {reason}")
    if auditor.left_out:
        console.print("  what each reason means: docs/verify.md")


def _show_check(console: Console, check: str, faults: Sequence[Fault]) -> None:
    console.print(f"\n{check}: {len(faults)}")
    for fault in faults[:FAULTS_A_CHECK]:
        where = fault.call_id or fault.rollout_id
        indented(console, f"{where}: {fault.message}" if where else fault.message)
    if len(faults) > FAULTS_A_CHECK:
        console.print(f"  … and {len(faults) - FAULTS_A_CHECK} more: --json tells all")
    indented(console, f"remedy: {REMEDIES[faults[0].check]}")
