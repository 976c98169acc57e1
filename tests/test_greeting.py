"""What a started proxy says of itself: a page for people on a terminal, an event for whoever collects the log."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from proxy.greeting import Greeting, lines_of
from tests.fakes import FakeEngine
from tests.patience import PATIENCE_S

NO_ENGINE = "http://127.0.0.1:1"
WIDTH = 80
LAST_LINE = "Ctrl-C stops."
TOLD = Greeting(
    base_url="http://127.0.0.1:8080/rollouts/ROLLOUT_ID/v1",
    control="http://127.0.0.1:8080",
    engines=("engine-0 http://127.0.0.1:30000: sglang 0.5.23, tiny",),
    waiting_for=(),
    secrets="admin_token in /data/rollpin.secrets.json",
    create="curl http://127.0.0.1:8080/rollouts",
)


@contextmanager
def started(folder: Path, stderr: int, *flags: str) -> Iterator[None]:
    """`rollpin serve` as a process in a folder of its own, until the block ends."""
    command = [sys.executable, "-m", "proxy", "serve", "--port", "0", *flags]
    with subprocess.Popen(
        command, cwd=folder, stderr=stderr, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    ) as running:
        os.close(stderr)
        try:
            yield
        finally:
            running.send_signal(signal.SIGINT)
    assert running.returncode == 0


def lines_until(stream: IO[str], last: str) -> list[str]:
    """Up to the line that ends so."""
    lines = list[str]()
    for line in stream:
        lines.append(line.rstrip())
        if lines[-1].endswith(last):
            break
    return lines


def test_a_person_is_told_how_to_go_on_and_can_copy_it(tmp_path: Path) -> None:
    """On a terminal: where it listens, where the token is, and the line that opens the first rollout, which does."""
    ours, theirs = os.openpty()
    with FakeEngine("sglang") as engine, os.fdopen(ours) as screen, started(tmp_path, theirs, "--engines", engine.url):
        page = lines_until(screen, LAST_LINE)
        curl = shlex.split(next(line for line in page if "curl" in line))
        token = json.loads((tmp_path / "rollpin.secrets.json").read_text())["admin_token"]
        name, _, value = curl[curl.index("-H") + 1].replace("$ADMIN", token).partition(": ")
        created = httpx.post(curl[-1], content=curl[curl.index("-d") + 1], headers={name: value}, timeout=PATIENCE_S)

    assert "Rollpin is ready." in page
    assert any(engine.url in line for line in page)
    assert f"ADMIN admin_token in {tmp_path / 'rollpin.secrets.json'}" in " ".join(" ".join(page).split())
    assert created.status_code == 201
    template = next(line.split()[-1] for line in page if "base URL" in line)
    assert created.json()["base_url"] == template.replace("ROLLOUT_ID", created.json()["rollout_id"])


def test_a_program_is_told_the_same_in_one_event(tmp_path: Path) -> None:
    """Where nobody looks; without an engine it does not say that it is ready, but what it waits for and what to do."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as stream, started(tmp_path, theirs, "--engines", NO_ENGINE, "--log-format", "json"):
        events: list[dict[str, Any]] = []
        while not events or not events[-1]["event"].startswith(("ready", "listening")):
            events.append(json.loads(stream.readline()))

    unwell = next(event for event in events if event["event"].startswith("engine not well"))
    assert unwell["problem"] == "the engine cannot be reached: Connection refused; start it, or mend its url"
    assert events[-1]["event"] == "listening, and no engine is ready yet"
    assert events[-1]["waiting_for"] == [f"engine-0 {NO_ENGINE}: {unwell['problem']}"]
    assert {"base_url", "control", "secrets", "next", "pages"} <= set(events[-1])


def test_a_start_that_fails_is_a_sentence_on_a_terminal(tmp_path: Path) -> None:
    """Without the log's columns, and with what to do."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "proxy", "serve", "--engines", NO_ENGINE, "--store", "sqlite:///no/folder.db"]
    paths = {"PYTHONPATH": str(Path.cwd())}
    with os.fdopen(ours) as screen:
        done = subprocess.run(command, cwd=tmp_path, stderr=theirs, env={**os.environ, **paths}, check=False)
        os.write(theirs, b"\nend\n")
        os.close(theirs)
        told = " ".join(" ".join(lines_until(screen, "end")).split())

    assert done.returncode == 2
    assert "rollpin: cannot start: store no/folder.db: No such file or directory" in told
    assert told.endswith("make its folder one that this user may write to, or name another store end")


@pytest.mark.parametrize("waiting_for", [(), ("engine-0 http://127.0.0.1:1: " + "words " * 20,)])
def test_the_page_stays_within_80_columns(waiting_for: tuple[str, ...]) -> None:
    """However long the reason."""
    lines = list(lines_of(replace(TOLD, engines=() if waiting_for else TOLD.engines, waiting_for=waiting_for)))

    assert all(len(line) <= WIDTH for line in lines)
    assert ("Rollpin is ready." in lines) is not bool(waiting_for)


def test_the_pages_that_are_named_are_there() -> None:
    """In the checkout."""
    named = [word.strip(".") for line in lines_of(TOLD) for word in line.split() if word.startswith("docs/")]

    assert named
    assert all(Path(page).is_file() for page in named)
