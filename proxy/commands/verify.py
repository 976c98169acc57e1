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
from proxy.errors import ProxyError
from proxy.verify.faults import CHECKS, REMEDIES, Fault
from proxy.verify.story import Looking, Report, verify_store

HAS_FAULTS = 1
NOT_LOOKED_AT = 2
FAULTS_A_CHECK = 10


def verify(
    file: Annotated[
        Path | None, typer.Argument(help="SQLite file of a store; by default that of the settings.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Look also where a proxy serves from it, at one moment's state.")
    ] = False,
    run_seed: Annotated[
        int | None, typer.Option(min=0, help="Root of seeds, for records that do not name theirs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output instead.")] = False,
) -> None:
    """Hold a store against its own promises, offline: no proxy, no engine, nothing is written.

    Status 0 where all hold, 1 where one does not, 2 where the store could not be looked at.
    """
    settings = settings_or_end([], None, to_serve=False)
    path, root = file or settings.store_path, settings.run_seed if run_seed is None else run_seed
    try:
        with progress() as tell:
            report = verify_store(path, Looking(run_seed=root, tell=tell), beside=read_only)
    except ProxyError as error:
        end(error.message, NOT_LOOKED_AT)
    if as_json:
        typer.echo(json.dumps(report_document(report)))
    else:
        show(path, report)
    raise typer.Exit(HAS_FAULTS if report.faults else 0)


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A bar over rollouts, where a person looks."""
    console = Console(stderr=True)
    columns = (TextColumn("rollouts"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def report_document(report: Report) -> dict[str, object]:
    """A report as JSON."""
    return {
        "schema": "rollpin.verification/1",
        "rollouts": report.rollouts,
        "calls": report.calls,
        "tokens": report.tokens,
        "calls_without_outcome": report.unended,
        "seeds_not_checked": report.unseeded,
        "faults": [{**asdict(fault), "remedy": fault.remedy} for fault in report.faults],
    }


def show(path: Path, report: Report) -> None:
    """What was looked at, then the faults by check, the remedy once for each."""
    console = Console(highlight=False, markup=False)
    looked = f"{report.rollouts} rollouts, {report.calls} calls, {report.tokens} generated tokens"
    console.print(f"{path}: {looked}")
    if report.unended:
        console.print(f"{report.unended} calls have no outcome: running now, or left by a proxy that died")
    if report.unseeded:
        console.print(f"{report.unseeded} seeds were not checked: their run seed is not known, give --run-seed")
    counts = Counter(fault.check for fault in report.faults)
    for check in CHECKS:
        if counts[check]:
            _show_check(console, check, [fault for fault in report.faults if fault.check == check])
    number = len(report.faults)
    console.print("no fault" if not number else "\n1 fault" if number == 1 else f"\n{number} faults")


def _show_check(console: Console, check: str, faults: Sequence[Fault]) -> None:
    console.print(f"\n{check}: {len(faults)}")
    for fault in faults[:FAULTS_A_CHECK]:
        where = fault.call_id or fault.rollout_id
        console.print(f"  {where}: {fault.message}" if where else f"  {fault.message}")
    if len(faults) > FAULTS_A_CHECK:
        console.print(f"  … and {len(faults) - FAULTS_A_CHECK} more: --json tells all")
    console.print(f"  remedy: {REMEDIES[faults[0].check]}")
