"""What the demo prints; readable at 80 columns, with and without colours."""

import json
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proxy.demo.agent import ASKED, TASK, TOOLS, client_name
from proxy.demo.group import GROUP, SampleRun, Verdict
from proxy.model import JsonObject
from proxy.sim.tokens import TURN_START, decode

WIDEST = 80
# Turns at the end of a prompt that are shown before what was generated: the newest message and the open reply.
TURNS_SHOWN = 2
SIMULATION = "the engine is a SIMULATION: no model, no GPU, toy tokens"


class Page:
    """One demo on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def opening(self, engine: str, proxy: str) -> None:
        """What runs where."""
        self._console.print(Text(f"Rollpin demo: {SIMULATION}", style="bold"))
        table = _grid(2)
        table.add_row("engine", f"{engine} (a simulated SGLang, deterministic)")
        table.add_row("proxy", f"{proxy} (pins, seeds and records)")
        table.add_row("agent", f"{client_name()}, with one tool, {TOOLS[0]['function']['name']}")
        table.add_row("task", TASK)
        self._indented(table)

    def sampling(self, call: JsonObject) -> None:
        """Asked against effective."""
        self._heading("1. What the agent asked for, and what the engine was told")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("setting", "asked", "effective", ""):
            table.add_column(name, no_wrap=True)
        effective, overridden = call["sampling"]["effective"], call["sampling"]["overridden"]
        for name, value in effective.items():
            note = "overridden: the profile pins it" if name in overridden else ""
            table.add_row(name, _told(call["sampling"]["asked"].get(name)), _told(value), note)
        table.add_row("seed", _told(ASKED["seed"]), str(call["seed"]["value"]), "minted for this very call")
        self._indented(table)

    def samples(self, runs: Sequence[SampleRun]) -> None:
        """The group."""
        self._heading(f"2. One task, {len(runs)} samples, each with seeds of its own (group {GROUP})")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("sample", no_wrap=True)
        table.add_column("call", no_wrap=True)
        table.add_column("seed", no_wrap=True, justify="right")
        table.add_column("said", overflow="fold")
        for run in runs:
            for place, call in enumerate(run.calls):
                head = str(run.sample) if place == 0 else ""
                table.add_row(head, str(place + 1), str(call["seed"]["value"]), _said(call))
        self._indented(table)
        good = sum(run.reward for run in runs)
        different = len({run.sampled_ids() for run in runs})
        self._console.print(
            f"  {different} of {len(runs)} differ, {good:g} are right and get reward 1.", highlight=False
        )

    def calls(self, run: SampleRun) -> None:
        """One rollout's calls, with generated tokens marked."""
        self._heading(f"3. Sample {run.sample} as one training row: prompt (mask 0) and generated tokens (mask 1)")
        for place, call in enumerate(run.calls):
            prompt, sampled = call["prompt_token_ids"], call["completion_token_ids"]
            told = f"call {place + 1}: {len(prompt)} prompt tokens, {len(sampled)} generated,"
            mean = sum(call["logprobs"]) / len(call["logprobs"])
            self._console.print(f"  {told} mean logprob {mean:.2f}", highlight=False)
            if call["prefix"]["supplied"]:
                self._console.print(
                    "    goes on from the very ids of the call before: supplied, and proven", style="dim"
                )
            table = _grid(2)
            table.add_row("mask 0", _shown("…" + decode(last_turns(prompt)), "dim"))
            table.add_row("mask 1", _shown(decode(sampled), "bold green"))
            self._indented(table, 4)
        for branch in run.branches:
            ids, trained = len(branch["token_ids"]), sum(branch["loss_mask"])
            told = f"{len(branch['call_ids'])} calls are one sequence of {ids} tokens, {trained} trained"
            self._console.print(f"  {branch['kind']}: {told}", highlight=False)

    def replayed(self, verdicts: Sequence[JsonObject]) -> None:
        """What came of asking the engine again for what is on record."""
        self._heading("5. The first run replayed from its records: exact ids, seeds and sampling")
        same = [verdict for verdict in verdicts if verdict["verdict"] == "same"]
        is_proven = len(same) == len(verdicts) > 0
        word, style = ("PROVEN", "bold green") if is_proven else ("NOT PROVEN", "bold red")
        told = f": {len(same)} of {len(verdicts)} calls drawn again are the same, token for token."
        self._console.print(Text.assemble("  ", (word, style), told))

    def verdict(self, run: str, verdict: Verdict, digest: str) -> None:
        """Whether the second run drew the first one's tokens."""
        self._heading("4. The same group again, as another run")
        word, style = ("REPRODUCED", "bold green") if verdict.is_reproduced else ("NOT REPRODUCED", "bold red")
        self._console.print(
            Text.assemble(
                "  ",
                (word, style),
                f": run {run} drew {verdict.same_calls} of {verdict.calls} calls again, "
                f"{verdict.same_ids} of {verdict.ids} tokens.\n",
                f"  digest of all sampled ids: {digest} (the same in every process)",
            )
        )

    def next_steps(self, proxy: str, token: str) -> None:
        """How to go on by oneself."""
        self._heading("6. Your turn: proxy and engine go on running until Ctrl-C")
        for line in _next_steps(proxy, token):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _indented(self, table: Table, columns: int = 2) -> None:
        self._console.print(Padding.indent(table, columns), highlight=False)

    def failed(self, reason: str) -> None:
        """The demo could not be run to its end."""
        self._console.print(Text(f"\nThe demo broke off: {reason}", style="bold red"))

    def _heading(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, style="bold cyan"))


def console_for(console: Console) -> Console:
    """The same console, no wider than lines are pleasant to read."""
    console.width = min(console.width, WIDEST)
    return console


def last_turns(prompt: Sequence[int]) -> Sequence[int]:
    """The end of a prompt that is worth showing."""
    starts = [place for place, token_id in enumerate(prompt) if token_id == TURN_START]
    return prompt[starts[-TURNS_SHOWN] :] if len(starts) >= TURNS_SHOWN else prompt


def _grid(columns: int) -> Table:
    """A table without a head; its last column takes what is long."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(columns - 1):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _told(value: object) -> str:
    return "-" if value is None else json.dumps(value)


def _said(call: JsonObject) -> Text:
    """The message of a call: its thought, its words and its tool calls."""
    message, parts = call["message"], list[tuple[str, str]]()
    if thought := message.get("reasoning_content"):
        parts.append((f"({thought}) ", "dim"))
    parts.append((message.get("content") or "", ""))
    for made in message.get("tool_calls") or ():
        given = json.loads(made["function"]["arguments"])
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        parts.append((f" -> {made['function']['name']}({shown})", "yellow"))
    return Text.assemble(*parts)


def _shown(text: str, style: str) -> Text:
    """Tokens as text on one line: line breaks are shown as signs."""
    return Text(text.replace("\n", "⏎"), style=style)


def _next_steps(proxy: str, token: str) -> Iterator[str]:
    base = f"{proxy}/rollouts/mine/v1"
    yield "  Any harness; unknown rollouts are opened as they come, with any key:"
    yield f"    base URL  {base}"
    yield "    key       anything"
    yield f"    curl {base}/chat/completions \\"
    yield "      -H 'authorization: Bearer anything' -H 'content-type: application/json' \\"
    yield """      -d '{"model": "x", "messages": [{"role": "user", "content": "Hi"}]}'"""
    yield "  What is on record:"
    yield f"    .venv/bin/rollpin rollouts list --url {proxy} \\"
    yield f"      --token {token}"
    yield "  A harness and its record in 30 lines of Python:"
    yield f"    ROLLPIN_URL={proxy} .venv/bin/python example.py"
