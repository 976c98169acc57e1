"""`rollpin replay`: recorded calls drawn again by a running proxy, with what differs, a rate and a status."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from proxy.commands.control import BrokenOff, Control, Json, find_control, none_such
from proxy.commands.ending import WRONG_SETTINGS, end
from proxy.commands.flags import TEXT, AdminToken, AsLines, Url
from proxy.commands.lines import indented
from proxy.counted import counted
from proxy.replay.verdict import REMEDIES, summary_document

PAGE = 1000
NOT_ALL_SAME = 1
# Verdicts of one word, in this order, have lines of their own; those that were not tried are told by reason.
TOLD = ("diverged", "failed", "weights_gone")
MOST_LINES = 20

Run = Annotated[str | None, typer.Option(help="Every rollout of this run.")]
Group = Annotated[str | None, typer.Option(help="Every rollout of this group.")]
Call = Annotated[
    list[str] | None, typer.Option(metavar=TEXT, help="Only this call of the one rollout; may be repeated.")
]


def replay(
    rollouts: Annotated[list[str] | None, typer.Argument(metavar="ROLLOUT_ID", help="Ids of rollouts.")] = None,
    run: Run = None,
    group: Group = None,
    call: Call = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="What logprobs may differ by, in nats; else as the settings say.")
    ] = None,
    url: Url = None,
    token: AdminToken = None,
    as_json: AsLines = False,
) -> None:
    """Draw recorded calls again and see whether the same tokens come.

    Status 0 where every call that was drawn again came out the same; 1 where one did not, or none was drawn.
    """
    control = find_control(url, token, "admin")
    asked = {"calls": call, "tolerance": tolerance}
    verdicts = list[Json]()
    for line in told(control, "replay", chosen(control, rollouts, run, group, call), _given(asked)):
        if (verdict := line.get("verdict")) is None:
            continue
        verdicts.append(verdict)
        if as_json:
            typer.echo(json.dumps(line))
    summary = summary_of(verdicts)
    if as_json:
        typer.echo(json.dumps({"summary": summary}))
    else:
        show(verdicts, summary)
    raise typer.Exit(0 if summary["rate"] == 1 and not summary["failed"] else NOT_ALL_SAME)


def chosen(
    control: Control, rollouts: list[str] | None, run: str | None, group: str | None, call: list[str] | None
) -> list[Json]:
    """The rollouts that are named, or those of a run or group, with their counts; ends where nothing is named."""
    if not rollouts and run is None and group is None:
        end("name rollouts, or give --group or --run", WRONG_SETTINGS)
    if rollouts and (run or group):
        end("rollouts are named: leave --run and --group out", WRONG_SETTINGS)
    if call and len(rollouts or ()) != 1:
        end("--call: name the one rollout that they belong to", WRONG_SETTINGS)
    narrow = {"run": run, "group": group}
    names = rollouts or [one["rollout_id"] for one in _listed(control, narrow)]
    if not names:
        end(none_such(narrow))
    return [control.ask(f"/rollouts/{quote(name, safe='')}") for name in names]


def told(control: Control, route: str, rollouts: Sequence[Json], body: Json) -> Iterator[Json]:
    """The lines that the proxy tells of each rollout, with a bar on a terminal; ends where they break off."""
    with progress_of(sum(len(body.get("calls") or ()) or one["counts"]["calls"] for one in rollouts)) as bar:
        for one in rollouts:
            path, line = f"/rollouts/{quote(one['rollout_id'], safe='')}/{route}", Json()
            try:
                for line in control.lines(path, body=body):
                    bar.advance(bar.task_ids[0], 0 if "summary" in line or "calls" in line else 1)
                    yield line
            except BrokenOff as broken:
                end(str(broken))
            if "summary" not in line:
                end(f"the proxy's answer broke off in rollout {one['rollout_id']}")


@contextmanager
def progress_of(calls: int) -> Iterator[Progress]:
    """A bar over so many calls; nothing where no person looks."""
    console = Console(stderr=True)
    columns = (TextColumn("calls"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task("", total=calls)
        yield bar


def summary_of(verdicts: Sequence[Json]) -> Json:
    """Over all rollouts, what the route tells of each."""
    largest = max((verdict["logprobs"]["largest_difference"] for verdict in verdicts), default=0.0)
    return summary_document([verdict["verdict"] for verdict in verdicts], largest)


def show(verdicts: Sequence[Json], summary: Json) -> None:
    """The counts, then a line for each call that needs looking at, then why others were not tried."""
    console = Console(highlight=False)
    counts = [
        f"{summary[word]} {word.replace('_', ' ')}" for word in ("same", *TOLD, "not_replayable") if summary[word]
    ]
    console.print(f"{counted(summary['calls'], 'call')}: {', '.join(counts)}" if counts else "no calls", markup=False)
    console.print(f"{_rate(summary)}", markup=False)
    odd = sorted((one for one in verdicts if one["verdict"] in TOLD), key=lambda one: TOLD.index(one["verdict"]))
    for one in odd[:MOST_LINES]:
        console.print(f"\n{one['call_id']}  {one['verdict'].replace('_', ' ')}", markup=False)
        indented(console, f"{one['rollout_id']}: {_why(one)}")
    if len(odd) > MOST_LINES:
        console.print(f"\n… and {len(odd) - MOST_LINES} more: --json tells all", markup=False)
    if reasons := _reasons(verdicts):
        console.print(reasons)
    told = [*(one["verdict"] for one in verdicts), *(reason for one in verdicts for reason in one["reasons"])]
    for word, remedy in REMEDIES.items():
        if word in told:
            indented(console, f"{word}: {remedy}")
    if reasons:
        indented(console, "what each reason means: docs/replay.md, docs/records.md")


def _rate(summary: Json) -> str:
    if summary["rate"] is None:
        return "no call was drawn again"
    drawn = summary["same"] + summary["diverged"]
    return (
        f"{summary['same']} of {drawn} drawn again are the same ({summary['rate']:.1%}); "
        f"logprobs differ by at most {summary['largest_difference']:.1e}"
    )


def _why(verdict: Json) -> str:
    found = verdict["diverged"]
    if found is None:
        return ", ".join(verdict["reasons"])
    recorded, drawn = _token(found["recorded"]), _token(found["drawn"])
    text = f"token {found['at']}: {recorded} on record, {drawn} drawn"
    gap = "" if found["gap"] is None else f", gap {found['gap']:+.2e}"
    return text + gap + ("" if found["score_gap"] is None else f", with noise {found['score_gap']:+.2e}")


def _token(token: Json | None) -> str:
    return "the end" if token is None else f"{token['token_id']} at {token['logprob']:.4f}"


def _reasons(verdicts: Sequence[Json]) -> Table | None:
    """Calls that were not tried, by reason."""
    counts: dict[str, int] = {}
    for verdict in verdicts:
        for reason in verdict["reasons"] if verdict["verdict"] == "not_replayable" else ():
            counts[reason] = counts.get(reason, 0) + 1
    if not counts:
        return None
    table = Table(box=None, pad_edge=False)
    table.add_column("\nnot replayable because", no_wrap=True)
    table.add_column("\ncalls", justify="right")
    for reason, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        table.add_row(reason, str(count))
    return table


def _listed(control: Control, narrow: Json) -> Iterator[Json]:
    query: Json = {**_given(narrow), "limit": PAGE}
    while True:
        page = control.ask("/rollouts", query)
        yield from page["rollouts"]
        if page["cursor"] is None:
            return
        query["cursor"] = page["cursor"]


def _given(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}
