"""`rollpin rollouts why`: a `rollpin.why/1` document, to be read by people at 80 columns and more.

Calls of which the same is to be said stand together; tokens are laid side by side where a prompt leaves its parent.
"""

import json
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proxy.commands.control import Json
from proxy.counted import counted

INDENT = 2
# Calls named in a heading before the rest are only counted.
MOST_NAMED = 8
FINE = "nothing:"
STYLES = {
    "excluded": "yellow",
    "untrained": "red",
    "masked": "yellow",
    "fork": "magenta",
    "prefix": "cyan",
    "unresolved": "red",
    "doubtful": "yellow",
}


def show_why(document: Json, console: Console) -> None:
    """All of it."""
    console.print(_summary(document))
    for reason in document["trainable"]["reasons"]:
        console.print(_told("rollout", f"not trained on, since {reason['meaning']}", reason["remedy"]))
    for calls in _alike(document["calls"]):
        console.print()
        _show_calls(calls, console)
    if not document["trainable"]["reasons"] and not any(call["findings"] for call in document["calls"]):
        console.print("\nnothing to explain: no fork, no exclusion, no refused prefix")


def _summary(document: Json) -> Text:
    health = document["health"]
    trainable = document["trainable"]["value"]
    text = Text(document["rollout_id"], style="bold", overflow="fold")
    text.append(f"  {document['state']}, ", style="not bold")
    text.append("trainable" if trainable else "not trainable", style="not bold green" if trainable else "not bold red")
    trained = f"{health['trained_tokens']} of {counted(health['generated_tokens'], 'generated token')}"
    prefixes = f"{health['prefix_supplied']} of {counted(health['prefix_eligible'], 'prefix', 'prefixes')} supplied"
    text.append(f"\n{counted(health['calls'], 'call')}; {trained} trained on; {prefixes}", style="not bold")
    return text


def _alike(calls: Sequence[Json]) -> Iterator[list[Json]]:
    """Calls with equal findings and no tokens to show, together; each other one alone."""
    groups = dict[str, list[Json]]()
    for call in calls:
        shown = call["call_id"] if _differs(call) else call["branch"] and call["branch"]["kind"]
        groups.setdefault(json.dumps([call["findings"], shown]), []).append(call)
    yield from groups.values()


def _differs(call: Json) -> bool:
    return bool(call["difference"] and call["difference"]["differs"])


def _show_calls(calls: Sequence[Json], console: Console) -> None:
    console.print(_heading(calls))
    for finding in calls[0]["findings"]:
        console.print(_told(finding["what"], finding["sentence"], finding["remedy"]))
    if len(calls) == 1 and (difference := calls[0]["difference"]):
        _show_difference(difference, console)


def _heading(calls: Sequence[Json]) -> Text:
    numbers = [str(call["number"]) for call in calls]
    rest = len(numbers) - MOST_NAMED
    named = ", ".join(numbers[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    branch = calls[0]["branch"]
    text = Text(f"call {named}" if len(calls) == 1 else f"calls {named}", style="bold", overflow="fold")
    text.append(f"  {calls[0]['call_id']}" if len(calls) == 1 else f"  ({len(calls)} calls)", style="not bold")
    text.append(f"  {branch['kind'] if branch else calls[0]['state']}", style="not bold dim")
    if len(calls) == 1 and (parent := calls[0]["parent"]["number"]) is not None:
        text.append(f", after call {parent}", style="not bold dim")
    return text


def _told(what: str, sentence: str, remedy: str) -> Padding:
    """What it is in a narrow column, the sentence beside it, and what to do below."""
    table = Table.grid(padding=(0, 1), pad_edge=False)
    table.add_column(width=10, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(what, style=STYLES.get(what, "red")), Text(sentence))
    if not remedy.startswith(FINE):
        table.add_row("", Text(f"-> {remedy}", style="dim"))
    return Padding(table, (0, 0, 0, INDENT), expand=False)


def _show_difference(difference: Json, console: Console) -> None:
    shared, parent = difference["shared"], difference["parent_tokens"]
    if not difference["differs"]:
        sentence = f"the prompt of {difference['prompt_tokens']} begins with all {parent} tokens of its parent"
        console.print(_told("tokens", sentence, FINE))
        return
    sentence = f"{shared} of the parent's {parent} are shared; the prompt has {difference['prompt_tokens']}"
    console.print(_told("tokens", sentence, FINE))
    console.print(Padding(_side_by_side(difference), (0, 0, 0, INDENT + 11), expand=False))
    if difference["texts_missing"]:
        console.print(_told("", f"ids alone: {difference['texts_missing']}", FINE))


def _side_by_side(difference: Json) -> Table:
    """Both windows, place by place; a mark stands at the first difference."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("place", justify="right", no_wrap=True)
    for name in ("parent", "prompt"):
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True)
    parent, prompt = ({one["place"]: one for one in difference[side]} for side in ("parent", "prompt"))
    for place in sorted(parent | prompt):
        is_shared = place < difference["shared"]
        mark = f"> {place}" if place == difference["shared"] else str(place)
        cells = (*_cells(parent.get(place), is_shared, "red"), *_cells(prompt.get(place), is_shared, "green"))
        table.add_row(Text(mark, style="dim" if is_shared else "bold"), *cells)
    return table


def _cells(token: Json | None, is_shared: bool, colour: str) -> tuple[Text, Text]:  # noqa: FBT001
    """An id and what it says, as JSON would spell it."""
    if token is None:
        return Text(""), Text("")
    style = "dim" if is_shared else colour
    text = "" if token["text"] is None else json.dumps(token["text"], ensure_ascii=False)
    return Text(str(token["id"]), style=style), Text(text, style=style)
