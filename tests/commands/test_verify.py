"""`rollpin verify`: its status, its lines, its JSON."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.commands.conftest import Run
from tests.fakes import FakeEngine
from tests.postgres import PostgresServer
from tests.served import served, settings_for


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two calls, its proxy gone."""
    folder = tmp_path_factory.mktemp("stopped")
    with FakeEngine("sglang") as engine, served(settings_for(folder, engine.url)) as proxy:
        client = proxy.rollout(rollout_id="task-0")
        client.chat("hello")
        client.chat("hello")
        client.calls()
    return folder / "rollpin.db"


def harm(store: Path) -> None:
    """Another seed than the identity gives, in both calls."""
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("update calls set seed = seed + 1")


def test_a_whole_store_is_told_in_two_lines(store: Path, run: Run) -> None:
    """With status 0."""
    done = run("verify", str(store))

    assert (done.status, done.err) == (0, "")
    assert "1 rollout, 2 calls" in done.out.replace("\n", " ")
    assert done.out.splitlines()[-1] == "no fault"


def test_faults_name_their_calls_and_the_remedy_once(store: Path, run: Run) -> None:
    """With status 1, and nothing wider than the terminal."""
    harm(store)
    done = run("verify", str(store))

    assert done.status == 1
    assert "seeds: 2" in done.out.splitlines()
    assert done.out.count("remedy:") == 1
    assert done.out.splitlines()[-1] == "2 faults"
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_json_holds_each_fault_with_its_remedy(store: Path, run: Run) -> None:
    """One document."""
    harm(store)
    told = json.loads(run("verify", str(store), "--json").out)

    assert told["schema"] == "rollpin.verification/1"
    assert [fault["check"] for fault in told["faults"]] == ["seeds", "seeds"]
    assert all(fault["call_id"] and fault["remedy"] for fault in told["faults"])


def test_the_store_of_the_settings_is_taken_where_none_is_named(store: Path, run: Run) -> None:
    """As `rollpin serve` would take it."""
    Path("rollpin.toml").write_text(f'store = "sqlite:///{store}"\n')

    assert run("verify").status == 0


def test_what_cannot_be_looked_at_is_one_line_and_status_2(tmp_path: Path, run: Run) -> None:
    """Which is no verdict about the store."""
    done = run("verify", "nothing.db")

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("rollpin: store nothing.db: no such file; name that of a store")
    assert done.err.count("\n") == 1


def test_a_store_in_use_says_how_to_look_all_the_same(tmp_path: Path, run: Run) -> None:
    """And then it is looked at."""
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        refused, looked = run("verify", "rollpin.db"), run("verify", "rollpin.db", "--read-only")

    assert (refused.status, looked.status) == (2, 0)
    assert "--read-only" in refused.err


def test_a_store_in_postgresql_is_verified_beside_its_proxies(
    postgres: PostgresServer, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one of the settings; its name is shown without options."""
    url = postgres.new_schema()
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url, store=url)) as proxy:
        proxy.rollout().chat("hello")
        monkeypatch.setenv("ROLLPIN_STORE", url)
        whole = run("verify")
        proxy.do(
            proxy.wiring.store._writer.write(lambda db: db.execute("update calls set seed = seed + 1"), durable=True)
        )
        harmed = run("verify", "--json")

    assert (whole.status, harmed.status) == (0, 1)
    assert whole.out.startswith("postgresql://rollpin@/postgres: 1 rollout, 1 call,")
    assert {fault["check"] for fault in json.loads(harmed.out)["faults"]} == {"seeds"}
