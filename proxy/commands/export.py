"""`rollpin export`: trajectories of a running proxy as one file of training rows.

The file is there whole or not at all. What was cut short holds the groups that came whole, and the cursor says where
the next export goes on.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from proxy.commands.control import ASSEMBLY_S, BrokenOff, Control, Json, none_such
from proxy.commands.ending import NO_ANSWER, WRONG_SETTINGS, end
from proxy.counted import counted
from proxy.screen import say, tell
from proxy.trajectory.export import ParquetMissing, write_json_lines, write_parquet

Format: TypeAlias = Literal["jsonl", "parquet"]
SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
NARROWED = ("run", "group")
EMPTY = (
    "no new group: one is told once all its rollouts are closed (POST /rollouts/ID/finish), with --require-outcome "
    "once all have an outcome; --rollout tells one that is still open"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be exported, and where to."""

    out: Path
    format: Format
    rollouts: tuple[str, ...]
    """These alone, as they stand; else what `query` lists."""
    query: Json
    cursor_file: Path | None
    overwrite: bool


@dataclass(slots=True)
class Take:
    """Trajectories of whole groups as they come, and how far they reach."""

    control: Control
    wanted: Wanted
    tell: Callable[["Take"], None]
    cursor: str | None = None
    """Where the next export goes on: behind the last group that came whole."""
    fault: str | None = None
    """What cut it short."""
    rollouts: int = 0
    tokens: int = 0
    trained: int = 0

    def trajectories(self) -> Iterator[Json]:
        """Each counted as it passes."""
        for one in self._named() if self.wanted.rollouts else self._listed():
            self.rollouts += 1
            self.tokens += sum(len(branch["token_ids"]) for branch in one["branches"])
            self.trained += one["health"]["trained_tokens"]
            self.tell(self)
            yield one

    def _named(self) -> Iterator[Json]:
        for rollout_id in self.wanted.rollouts:
            path = f"/rollouts/{quote(rollout_id, safe='')}/trajectory"
            yield self.control.ask(path, patience_s=ASSEMBLY_S)

    def _listed(self) -> Iterator[Json]:
        """A group is held until the next one begins: only then has it come whole."""
        self.cursor, held = self.wanted.query.get("since"), list[Json]()
        try:
            for line in self.control.lines("/trajectories", self.wanted.query):
                if held and _group(line) != _group(held[-1]):
                    yield from self._released(held)
                    held = []
                held.append(line)
        except (BrokenOff, KeyboardInterrupt) as error:
            self.fault = str(error) or "stopped"
            return
        yield from self._released(held)

    def _released(self, held: list[Json]) -> Iterator[Json]:
        if held:
            self.cursor = held[-1]["cursor"]
        return (line["trajectory"] for line in held)


def export(control: Control, wanted: Wanted) -> int:
    """Write the file; the exit status. Ends with one line where nothing could be written."""
    if wanted.out.exists() and not wanted.overwrite:
        end(f"{wanted.out} is there already: name another file, or give --overwrite", WRONG_SETTINGS)
    narrow = {name: wanted.query[name] for name in NARROWED if name in wanted.query}
    if narrow and not control.ask("/rollouts", {**narrow, "limit": 1})["rollouts"]:
        end(none_such(narrow))
    with _progress() as progress:
        take = Take(control, wanted, progress)
        try:
            rows = _written(wanted, take)
            if wanted.cursor_file is not None and take.cursor is not None:
                with replacing(wanted.cursor_file) as part:
                    part.write_text(take.cursor + "\n")
        except ParquetMissing as error:
            end(str(error), WRONG_SETTINGS)
        except BrokenOff as error:
            end(f"{error}; nothing had come whole")
        except OSError as error:
            end(f"cannot write: {error}", WRONG_SETTINGS)
    _tell(take, rows)
    return NO_ANSWER if take.fault else 0


def format_of(out: Path, named: Format | None) -> Format:
    """By name, else by the file's suffix; ends where neither tells."""
    found = named or SUFFIXES.get(out.suffix.lower())
    if found is None:
        end(f"{out}: name a file ending in {', '.join(SUFFIXES)}, or give --format", WRONG_SETTINGS)
    return found


def kept_cursor(path: Path | None) -> str | None:
    """The cursor that an earlier export left in a file."""
    try:
        return path.read_text().strip() or None if path and path.exists() else None
    except (OSError, ValueError) as error:
        end(f"cannot read the cursor: {error}", WRONG_SETTINGS)


def _written(wanted: Wanted, take: Take) -> int:
    """How many rows; raises BrokenOff where the answer broke off before anything had come whole."""
    with replacing(wanted.out) as part:
        rows = _write(wanted.format, take.trajectories(), part)
        if take.fault and not take.rollouts:
            raise BrokenOff(take.fault)
        return rows


def _write(format_: Format, trajectories: Iterable[Json], path: Path) -> int:
    if format_ == "parquet":
        return write_parquet(trajectories, path)
    with path.open("w", encoding="utf-8") as out:
        return write_json_lines(trajectories, out)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place once it is whole and on disk; else it is removed."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress() -> Iterator[Callable[[Take], None]]:
    """How far it is, on a terminal; nothing where there is none."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("waiting for the first group")
        yield lambda take: progress.update(task, description=_counts(take))


def _tell(take: Take, rows: int) -> None:
    """What was written, and how to go on."""
    tell(f"{take.wanted.out}: {counted(rows, 'row')} of {_counts(take)}, {take.trained} of them trained on")
    if take.fault:
        say(f"{take.fault}; the file holds the groups that had come whole")
    if not take.rollouts and not take.fault:
        tell(EMPTY)
    if take.cursor and take.wanted.cursor_file is None:
        tell(f"go on with --since {take.cursor}")


def _counts(take: Take) -> str:
    return f"{counted(take.rollouts, 'rollout')}, {counted(take.tokens, 'token')}"


def _group(line: Json) -> tuple[str, str]:
    return line["trajectory"]["run"], line["trajectory"]["group"]
