"""`rollpin export`: what a trainer's files hold, and how they go on."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from proxy.trajectory.export import COLUMNS
from tests.commands.conftest import Run
from tests.fakes import FakeEngine
from tests.served import READER, RolloutClient, ServedProxy, served, settings_for


@pytest.fixture
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy in front of a simulated engine."""
    with FakeEngine("vllm") as engine, served(settings_for(tmp_path_factory.mktemp("proxy"), engine.url)) as running:
        yield running


def played(proxy: ServedProxy, group: str, samples: int = 2, *, finish: bool = True, **fields: Any) -> list[str]:
    """A group whose every sample asked once."""
    clients: list[RolloutClient] = []
    for sample in range(samples):
        clients.append(proxy.rollout(rollout_id=f"{group}-{sample}", group=group, sample=sample, **fields))
        assert clients[-1].chat(f"{group}?").status_code == 200
        proxy.control.put(f"/rollouts/{group}-{sample}/outcome", json={"reward": sample})
    for client in clients if finish else []:
        client.calls()
        proxy.control.post(f"/rollouts/{client.rollout_id}/finish")
    return [client.rollout_id for client in clients]


def where(proxy: ServedProxy) -> tuple[str, ...]:
    return "--url", proxy.url, "--token", READER


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_closed_groups_become_rows_in_either_format(proxy: ServedProxy, run: Run) -> None:
    """The same rows, with the columns of the page; open groups stay out."""
    told = played(proxy, "one") + played(proxy, "two")
    played(proxy, "open", finish=False)

    lines, table = run("export", "a.jsonl", *where(proxy)), run("export", "a.parquet", *where(proxy))

    assert (lines.status, table.status, lines.out) == (0, 0, "")
    assert [row["rollout_id"] for row in rows("a.jsonl")] == told
    assert [row["reward"] for row in rows("a.jsonl")] == [0, 1, 0, 1]
    read = import_module("pyarrow.parquet").read_table("a.parquet")
    assert read.column_names == list(COLUMNS)
    assert read.to_pylist() == rows("a.jsonl")
    assert lines.err.startswith("a.jsonl: 4 rows of 4 rollouts, ")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["a.jsonl", "a.parquet"]


def test_an_export_goes_on_where_the_one_before_it_ended(proxy: ServedProxy, run: Run) -> None:
    """By the cursor that it printed, or by a file that keeps it."""
    first = played(proxy, "one")
    said = run("export", "1.jsonl", *where(proxy), "--cursor-file", "cursor")
    printed = run("export", "again.jsonl", *where(proxy)).err.rpartition("--since ")[2].strip()
    second = played(proxy, "two")

    run("export", "2.jsonl", *where(proxy), "--cursor-file", "cursor")
    run("export", "by-hand.jsonl", *where(proxy), "--since", printed)
    empty = run("export", "3.parquet", *where(proxy), "--cursor-file", "cursor")

    assert "--since" not in said.err
    assert [row["rollout_id"] for row in rows("1.jsonl")] == first
    assert [row["rollout_id"] for row in rows("2.jsonl")] == second
    assert rows("by-hand.jsonl") == rows("2.jsonl")
    assert (empty.status, import_module("pyarrow.parquet").read_table("3.parquet").num_rows) == (0, 0)


def test_an_export_is_narrowed_by_run_group_and_outcome(proxy: ServedProxy, run: Run) -> None:
    """By the words of the route."""
    played(proxy, "one", run="monday")
    both = played(proxy, "two", run="monday")
    played(proxy, "three", run="tuesday")
    proxy.rollout(rollout_id="unjudged", run="monday")
    proxy.control.post("/rollouts/unjudged/finish")

    run("export", "a.jsonl", *where(proxy), "--run", "monday", "--group", "two")
    judged = run("export", "b.jsonl", *where(proxy), "--run", "monday", "--require-outcome")

    assert [row["rollout_id"] for row in rows("a.jsonl")] == both
    assert "of 4 rollouts" in judged.err


def test_where_no_group_is_closed_it_says_when_one_is_told(proxy: ServedProxy, run: Run) -> None:
    """An empty file alone would not tell why it is empty."""
    proxy.rollout(rollout_id="open", run="monday")

    done = run("export", "a.jsonl", *where(proxy), "--run", "monday")

    assert (done.status, rows("a.jsonl")) == (0, [])
    assert "once all its rollouts are closed" in done.err.splitlines()[1]


def test_named_rollouts_are_exported_as_they_stand(proxy: ServedProxy, run: Run) -> None:
    """Open ones too; their state is a column."""
    opened = played(proxy, "open", finish=False)

    done = run("export", "a.jsonl", *where(proxy), "--rollout", opened[1], "--rollout", opened[0])

    assert done.status == 0
    assert [(row["rollout_id"], row["state"]) for row in rows("a.jsonl")] == [(opened[1], "open"), (opened[0], "open")]


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (("rows.csv",), "name a file ending in .jsonl, .ndjson, .parquet", 2),
        (("here.jsonl",), "is there already", 2),
        (("no/such/folder.jsonl",), "cannot write", 2),
        (("a.jsonl", "--rollout", "r", "--run", "x"), "--rollout", 2),
        (("a.jsonl", "--since", "x", "--cursor-file", "c"), "--since", 2),
        (("a.jsonl", "--since", "x"), "not a cursor", 1),
        (("a.parquet", "--rollout", "nope"), "no rollout has the id 'nope'", 1),
        (("a.jsonl", "--group", "nope"), "no rollout is in group 'nope': `rollpin rollouts list` tells", 1),
        (
            ("a.jsonl", "--run", "x", "--group", "y", "--cursor-file", "c"),
            "no rollout is in run 'x' and group 'y': ",
            1,
        ),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    proxy: ServedProxy, run: Run, arguments: tuple[str, ...], words: str, status: int
) -> None:
    """What was there stays as it was."""
    Path("here.jsonl").write_text("mine\n")

    done = run("export", *arguments, *where(proxy))

    assert (done.status, done.out, len(done.err.splitlines())) == (status, "", 1)
    assert words in done.err
    assert Path("here.jsonl").read_text() == "mine\n"
    assert [path.name for path in Path.cwd().iterdir()] == ["here.jsonl"]


def test_a_file_is_replaced_only_where_that_is_said(proxy: ServedProxy, run: Run) -> None:
    """And a format may be named where the suffix says nothing."""
    played(proxy, "one")
    Path("here").write_text("old")

    done = run("export", "here", "--format", "jsonl", "--overwrite", *where(proxy))

    assert done.status == 0
    assert len(rows("here")) == 2


class Cut(BaseHTTPRequestHandler):
    """Answers with a whole group and half of another, and is gone."""

    groups: tuple[tuple[str, str], ...] = (("one", "start"), ("one", "c1"), ("two", "c1"))

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for group, cursor in self.groups:
            branch = {"health": {"trained_tokens": 0, "complete": True}, "branches": []}
            told = {"rollout_id": group, "run": "r", "group": group, **branch, "trainable": {"value": False}}
            told |= {"sample": 0, "attempt": 0, "profile": "train", "state": "finished", "revision": 0}
            line = json.dumps({"cursor": cursor, "trajectory": {**told, "outcome": None, "metadata": {}}}) + "\n"
            self.wfile.write(f"{len(line):x}\r\n{line}\r\n".encode())
        self.wfile.write(b'40\r\n{"cursor": "c2", "traj')
        self.close_connection = True

    def log_message(self, *_said: Any) -> None:
        pass


def test_an_answer_that_breaks_off_leaves_whole_groups_and_the_way_on(run: Run) -> None:
    """Status 1, and no half of anything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = run("export", "a.jsonl", "--url", f"http://127.0.0.1:{server.server_port}", "--token", READER)
        server.shutdown()

    assert done.status == 1
    assert "0 rows of 2 rollouts" in done.err
    assert "broke off" in done.err
    assert done.err.splitlines()[-1] == "go on with --since c1"
    assert [path.name for path in Path.cwd().iterdir()] == ["a.jsonl"]


def test_an_answer_that_breaks_off_at_once_leaves_no_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would look like an export of nothing."""
    monkeypatch.setattr(Cut, "groups", (("one", "start"),))
    with ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where_it_is = ("--url", f"http://127.0.0.1:{server.server_port}", "--token", READER)
        done = run("export", "a.parquet", *where_it_is, "--cursor-file", "cursor")
        server.shutdown()

    assert (done.status, len(done.err.splitlines())) == (1, 1)
    assert "nothing had come whole" in done.err
    assert list(Path.cwd().iterdir()) == []


def test_the_progress_is_told_on_a_terminal_only(proxy: ServedProxy, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log gets the last line alone."""
    played(proxy, "one")
    plain = run("export", "a.jsonl", *where(proxy))
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = run("export", "b.jsonl", *where(proxy))

    assert "\x1b" not in plain.err
    assert len(plain.err.splitlines()) == 2
    assert "2 rollouts" in shown.err.partition("b.jsonl")[0]
