"""`rollpin rollouts`: the rollouts of a running proxy as a list, one by one, and why their calls are as they are."""

import json
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from proxy.commands.control import ASSEMBLY_S, Json, find_control
from proxy.commands.flags import AsDocument, Command, Token, Url
from proxy.counted import counted

# A minted id; longer ones are folded so that the line stays within 80 columns.
WIDEST_ID = 35
RolloutName = Annotated[str, typer.Argument(metavar="ROLLOUT_ID", help="Id of the rollout.")]

rollouts = typer.Typer(no_args_is_help=True, help="Look at the rollouts of a running proxy.")


@rollouts.command("list")
def list_rollouts(
    url: Url = None,
    token: Token = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this group.")] = None,
    state: Annotated[str | None, typer.Option(help="open, finished, expired or deleted.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most lines shown.")] = 50,
    as_json: AsDocument = False,
) -> None:
    """Rollouts in order of creation."""
    query = {"run": run, "group": group, "state": state, "limit": limit}
    page = find_control(url, token).ask(
        "/rollouts", {name: value for name, value in query.items() if value is not None}
    )
    if as_json:
        _tell(page)
        return
    table = Table(box=None, pad_edge=False)
    longest = max((len(rollout["rollout_id"]) for rollout in page["rollouts"]), default=0)
    table.add_column("rollout", overflow="fold", no_wrap=longest <= WIDEST_ID)
    table.add_column("group", overflow="fold")
    for name in ("sample", "state", "reward"):
        table.add_column(name, no_wrap=True)
    for rollout in page["rollouts"]:
        table.add_row(*_cells(rollout))
    console = Console()
    if not page["rollouts"]:
        is_narrowed = run or group or state
        console.print(
            "no such rollout: narrow less" if is_narrowed else "no rollout: a trainer opens them, POST /rollouts"
        )
        return
    console.print(table)
    if page["cursor"]:
        console.print("there are more: raise --limit, or narrow by --run, --group, --state")


@rollouts.command("show", cls=Command, short_help="One rollout: where it stands, and its counts.")
def show_rollout(rollout_id: RolloutName, url: Url = None, token: Token = None, as_json: AsDocument = False) -> None:
    """One rollout: where it stands, its counts, and whether everything was captured."""
    rollout = find_control(url, token).ask(f"/rollouts/{quote(rollout_id, safe='')}")
    if as_json:
        _tell(rollout)
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(rollout):
        table.add_row(name, value)
    Console().print(table)


@rollouts.command("why", cls=Command, short_help="Why calls fork, are left out, or lack their prefix.")
def show_why(
    rollout_id: RolloutName,
    url: Url = None,
    token: Token = None,
    call: Annotated[str | None, typer.Option(help="All that there is to say of this call.")] = None,
    as_json: AsDocument = False,
) -> None:
    """Why calls fork, are left out, or lack their exact prefix, and what to do about it."""
    from proxy.commands import why  # noqa: PLC0415  the other commands start faster without it

    query = {} if call is None else {"call": call}
    path = f"/rollouts/{quote(rollout_id, safe='')}/why"
    document = find_control(url, token).ask(path, query, patience_s=ASSEMBLY_S)
    if as_json:
        _tell(document)
    else:
        why.show_why(document, Console(highlight=False))


def _tell(document: Json) -> None:
    """As it came."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _cells(rollout: Json) -> list[str]:
    sample = f"{rollout['sample']} a{rollout['attempt']}" if rollout["attempt"] else str(rollout["sample"])
    reward = (rollout["outcome"] or {}).get("reward")
    shown = "" if reward is None else f"{reward:g}"
    return [rollout["rollout_id"], rollout["group"], sample, rollout["state"], shown]


def _prefixes(counts: Json) -> str:
    missing = ", ".join(f"{number} {reason}" for reason, number in counts["unsupplied"].items())
    told = f"{counts['supplied']} supplied of {counts['eligible']} eligible, of {counted(counts['total'], 'call')}"
    return f"{told}; not supplied: {missing}" if missing else told


def _facts(rollout: Json) -> Iterator[tuple[str, str]]:
    counts, health = rollout["counts"], rollout["health"]
    yield "rollout", rollout["rollout_id"]
    yield "state", rollout["state"]
    yield "run", rollout["run"]
    yield "group", f"{rollout['group']}, sample {rollout['sample']}, attempt {rollout['attempt']}"
    yield "profile", " ".join([rollout["profile"], *(f"{name}={value}" for name, value in rollout["sampling"].items())])
    for name in ("created_at", "expires_at", "finished_at"):
        yield name.removesuffix("_at"), rollout[name] or "-"
    yield "calls", f"{counts['completed']} completed, {counts['failed']} failed, {counts['reserved']} without outcome"
    if counts["failures"]:
        yield "failures", ", ".join(f"{number} {kind}" for kind, number in counts["failures"].items())
    yield "tokens", f"{counts['prompt_tokens']} in prompts, {counts['completion_tokens']} generated"
    yield "prefixes", _prefixes(rollout["prefixes"])
    yield "late", f"{counted(counts['late'], 'result')} after the end"
    yield "capture", "complete" if health["complete"] else f"incomplete: {', '.join(health['reasons'])}"
    if flags := [flag["flag"] for flag in rollout["group_flags"]]:
        yield "group", f"ALARM: {', '.join(flags)}"
    yield "outcome", "-" if rollout["outcome"] is None else json.dumps(rollout["outcome"], ensure_ascii=False)
    yield "revision", str(rollout["revision"])
    if rollout["metadata"]:
        yield "metadata", json.dumps(rollout["metadata"], ensure_ascii=False)
