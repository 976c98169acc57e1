"""Starts a harness in a folder of its own, headless and cut off, and sees to it that nothing of it stays behind."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harnesses.kit.outside import Outside
from tests.harnesses.kit.places import node_folder

MARK = "ROLLPIN_HARNESS_RUN"
"""In the environment of every process of a run, also of those that leave its process group."""
GONE_WITHIN_S = 60.0
TOLD = 4000


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a harness."""

    status: int | None
    """Its exit status; None when it was still running at its time limit."""
    output: str
    errors: str
    wanted_outside: tuple[str, ...]
    """What it asked the proxy for that leads nowhere."""
    took_s: float

    def __str__(self) -> str:
        told = f"{self.output[-TOLD:]}\n-- stderr --\n{self.errors[-TOLD:]}"
        return f"status {self.status} after {self.took_s:.1f} s\n{told}"


def run_harness(
    command: Sequence[str], folder: Path, *, env: Mapping[str, str], files: Mapping[str, str], limit_s: float
) -> Run:
    """Run to the end or the limit. HOME is `folder`/home, where `files` go; the working folder is `folder`/work."""
    home, work = folder / "home", folder / "work"
    for place, text in files.items():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(text)
    for made in (home, work, folder / "tmp"):
        made.mkdir(exist_ok=True)
    with Outside() as outside:
        own = outside.environment | environment(home, folder / "tmp") | {MARK: uuid.uuid4().hex} | env
        began = time.monotonic()
        status = until_end(command, folder, own, limit_s)
        took_s = time.monotonic() - began
    return Run(status, read(folder / "stdout"), read(folder / "stderr"), tuple(outside.wanted), took_s)


def environment(home: Path, scratch: Path) -> dict[str, str]:
    """Nothing of our own environment but the system's folders."""
    return {
        "PATH": os.pathsep.join([str(node_folder()), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "CI": "1",
        "DO_NOT_TRACK": "1",
    }


def until_end(command: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float) -> int | None:
    """Start the command, wait for it, and end all that it started."""
    # Files and no pipes: a daemon that was left behind would hold a pipe open.
    with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder / "work",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_all(process, env[MARK])
            process.wait()


def end_all(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """Kill the process group, and whatever else carries this run's mark, until nothing is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    give_up_at = time.monotonic() + GONE_WITHIN_S
    while left := marked(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        assert time.monotonic() < give_up_at, f"could not end {left}"
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """The processes that have this run's mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def read(path: Path) -> str:
    return path.read_text(errors="replace")
