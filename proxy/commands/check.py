"""`rollpin check`: what each engine is fit for, by experiment, with the flag that mends what is not."""

import asyncio
import json
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from proxy.check.bench import Verdict
from proxy.check.report import Line, Report, check_all, document, status_of
from proxy.settings import Settings

STYLES: dict[Verdict, str] = {"pass": "green", "skip": "dim", "warn": "yellow", "fail": "bold red"}


def check_engines(settings: Settings, console: Console, *, as_json: bool) -> int:
    """Check, tell, and return the exit status."""
    with Console(stderr=True).status(f"asking {', '.join(engine.url for engine in settings.engines)}"):
        reports = asyncio.run(check_all(settings))
    if as_json:
        typer.echo(json.dumps(document(reports), indent=2, ensure_ascii=False))
    else:
        show(reports, console)
    return status_of(reports)


def show(reports: Sequence[Report], console: Console) -> None:
    """A table for each engine, then what each line that did not pass means, and what mends it."""
    for place, report in enumerate(reports):
        if place:
            console.print()
        if report.problem is not None:
            console.print(f"{report.url}  not checked: {report.problem}", style="bold red", markup=False)
            continue
        console.print(_heading(report), style="bold", markup=False)
        console.print(_table(report.lines))
        for line in report.lines:
            if line.seen.verdict in {"warn", "fail"}:
                _tell(console, line.check.name, line.seen.verdict, line.check.means, line.remedy)
        for finding in report.findings:
            verdict: Verdict = "fail" if finding.severity == "refuse" else "warn"
            name = f"profile {finding.profile}, {finding.setting}"
            _tell(console, name, verdict, finding.message, finding.remedy)


def _heading(report: Report) -> str:
    counts = dict.fromkeys(STYLES, 0)
    for line in report.lines:
        counts[line.seen.verdict] += 1
    return f"{report.url}  {', '.join(f'{count} {verdict}' for verdict, count in counts.items() if count)}"


def _table(lines: Sequence[Line]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        verdict = line.seen.verdict
        table.add_row(line.check.name, f"[{STYLES[verdict]}]{verdict}[/]", escape(line.seen.what))
    return table


def _tell(console: Console, name: str, verdict: Verdict, means: str, remedy: str) -> None:
    console.print(f"\n[{STYLES[verdict]}]{verdict}[/] {escape(name)}: {escape(means)}")
    console.print(Padding(f"-> {escape(remedy)}", (0, 0, 0, 5)))
