"""`rollpin rescore`: today's logprobs of recorded tokens, and how far they lie from the recorded ones."""

import json
from typing import Annotated

import typer
from rich.console import Console

from proxy.commands.control import Json, find_control
from proxy.commands.flags import AdminToken, AsLines, Url
from proxy.commands.replay import Call, Group, Run, chosen, told
from proxy.counted import counted
from proxy.replay.mismatch import RESCORE_WORDS

FAILED = 1


def rescore(
    rollouts: Annotated[list[str] | None, typer.Argument(metavar="ROLLOUT_ID", help="Ids of rollouts.")] = None,
    run: Run = None,
    group: Group = None,
    call: Call = None,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="With --json: tell the logprobs themselves.")] = False,
    url: Url = None,
    token: AdminToken = None,
    as_json: AsLines = False,
) -> None:
    """Score recorded tokens under the engines' weights of now: the mismatch of trainer and engine.

    Status 0 where at least one call was rescored and none failed, else 1.
    """
    control = find_control(url, token, "admin")
    body: Json = {name: value for name, value in (("calls", call), ("logprobs", logprobs)) if value}
    results = list[Json]()
    for line in told(control, "rescore", chosen(control, rollouts, run, group, call), body):
        if as_json:
            typer.echo(json.dumps(line))
        if "rescore" in line:
            results.append(line["rescore"])
    if not as_json:
        show(results)
    words = [one["result"] for one in results]
    raise typer.Exit(0 if "rescored" in words and "failed" not in words else FAILED)


def show(results: list[Json]) -> None:
    """Counts, then the mismatch over all that was compared."""
    console = Console(highlight=False, markup=False)
    words = [one["result"] for one in results]
    counts = [f"{words.count(word)} {word.replace('_', ' ')}" for word in RESCORE_WORDS if word in words]
    console.print(f"{counted(len(words), 'call')}: {', '.join(counts)}" if counts else "no calls")
    compared = [one for one in results if one["compared"]]
    tokens = sum(one["compared"] for one in compared)
    apart = sum(1 for one in results if one["not_comparable"])
    if apart:
        console.print(f"{apart} not compared: recorded logprobs are of another distribution")
    if not tokens:
        console.print("nothing to compare")
        return

    def mean(name: str) -> float:
        return float(sum(one[name] * one["compared"] for one in compared) / tokens)

    largest = max(one["largest_difference"] for one in compared)
    console.print(f"{counted(tokens, 'token')}, logprobs of now less the recorded ones:")
    console.print(f"  mean {mean('mean_difference'):+.2e}, absolute {mean('mean_absolute_difference'):.2e}")
    console.print(f"  largest {largest:.2e}, estimated KL {mean('kl_k3'):.2e} (k3)")
