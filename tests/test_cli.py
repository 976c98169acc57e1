"""The command line, as a person or a script meets it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
from typer.main import get_command
from typer.testing import CliRunner

from proxy.cli import app
from proxy.settings_page import flag_rows
from tests.patience import PATIENCE_S
from tests.served import ADMIN, READER, ServedProxy, served, settings_for

NO_ENGINE = "http://127.0.0.1:1"
WIDTH = 80


@pytest.fixture(autouse=True)
def bare_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A running proxy with one rollout of each kind."""
    with served(settings_for(tmp_path_factory.mktemp("proxy"), NO_ENGINE)) as running:
        control = running.control
        running.rollout(rollout_id="task-0", group="task", run="first", metadata={"n": 1})
        running.rollout(rollout_id="task-1-a1", group="task", run="first", sample=1, attempt=1, sampling={"top_k": 5})
        running.rollout(rollout_id="ro_" + "0" * 32, group="a rather long name of a group")
        control.put("/rollouts/task-0/outcome", json={"reward": 0.25})
        control.post("/rollouts/task-0/finish")
        yield running


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    result = CliRunner().invoke(app, list(arguments), prog_name="rollpin")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own."""
    command = [sys.executable, "-m", "proxy", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_version_is_that_of_the_distribution() -> None:
    """By --version."""
    assert run("--version") == (0, "rollpin 0.1.0\n", "")


def test_help_lists_only_what_there_is() -> None:
    """A command that is promised and missing wastes a person's time."""
    _, text, _ = run("--help")

    listed = [line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == ["serve", "check", "sim", "demo", "export", "replay", "rescore", "verify", "rollouts"]


def test_the_help_of_serve_shows_every_setting_within_80_columns() -> None:
    """With its default and what it is for."""
    status, text, _ = run("serve", "--help")

    assert status == 0
    assert all(row.flag in text for row in flag_rows())
    assert all(f"  {flag}" in text for flag in ("--config", "--print-config"))
    assert all(len(line) <= WIDTH for line in text.splitlines())


def commands(command: Any, *names: str) -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    yield names
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, *names, name)


@pytest.mark.parametrize("names", list(commands(get_command(app))), ids=" ".join)
def test_the_help_of_every_command_is_for_people(names: tuple[str, ...]) -> None:
    """Within 80 columns, and without a placeholder's braces."""
    status, text, _ = run(*names, "--help")

    assert status == 0
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert not {"{", "}"} & set(text)


def test_a_usage_names_arguments_as_people_write_them() -> None:
    """Also where one is missing."""
    _, _, told = run("rollouts", "why")

    assert told.splitlines()[0] == "Usage: rollpin rollouts why [OPTIONS] ROLLOUT_ID"
    assert "Missing argument 'ROLLOUT_ID'" in told


def test_wrong_settings_end_with_a_line_each_and_status_2() -> None:
    """On standard error, before anything is opened or asked."""
    done = process("serve", "--pin-mode", "lenient", ROLLPIN_TYPO="1", ROLLPIN_PORT="99999")

    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[:2] for line in done.stderr.splitlines()] == [
        ["rollpin", "ROLLPIN_TYPO"],
        ["rollpin", "port"],
        ["rollpin", "engines"],
        ["rollpin", "pin_mode"],
    ]
    assert not list(Path.cwd().iterdir())


def test_the_settings_are_printed_and_nothing_is_started() -> None:
    """Without secrets, and without an answer from any engine."""
    status, text, _ = run("serve", "--engines", NO_ENGINE, "--admin-token", ADMIN, "--print-config", "--port", "7")

    assert status == 0
    assert "port = 7" in text.splitlines()
    assert ADMIN not in text
    assert not list(Path.cwd().iterdir())


def test_a_settings_file_is_named_by_config(tmp_path: Path) -> None:
    """Flags may stand before and after it."""
    (tmp_path / "mine.toml").write_text(f'engines = ["{NO_ENGINE}"]\nport = 7\nrun_seed = 1\n')

    _, text, _ = run("serve", "--run-seed", "5", "--config", "mine.toml", "--print-config", "--host", "127.0.0.2")

    assert {"port = 7", "run_seed = 5", 'host = "127.0.0.2"'} <= set(text.splitlines())
    assert run("serve", "--config", "missing.toml", "--engines", NO_ENGINE)[::2] == (
        2,
        "rollpin: config: no file 'missing.toml'\n",
    )


def test_a_proxy_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """And ends with status 0."""
    command = [sys.executable, "-m", "proxy", "serve", "--engines", NO_ENGINE, "--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr
        url = next(event["url"] for event in map(json.loads, running.stderr) if event["event"] == "data plane")
        answer = httpx.get(f"{url}/healthz", timeout=PATIENCE_S)
        running.send_signal(signal.SIGTERM)
        running.stderr.read()
        status = running.wait(PATIENCE_S)

    assert (answer.status_code, status) == (200, 0)
    assert (tmp_path / "rollpin.secrets.json").stat().st_mode & 0o777 == 0o600


def test_a_signal_ends_a_start_that_waits_for_an_engine() -> None:
    """A pod that is deleted early must not sit out its grace, though the engine never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        engine = f"http://127.0.0.1:{mute.getsockname()[1]}"
        command = [sys.executable, "-m", "proxy", "serve", "--engines", engine, "--port", "0", "--log-format", "json"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
            assert starting.stderr
            # Held, since one that is closed is an answer too: the start would go on without the engine.
            with mute.accept()[0]:
                starting.send_signal(signal.SIGTERM)
                told = [json.loads(line)["event"] for line in starting.stderr]
                status = starting.wait(PATIENCE_S)

    assert (status, told[-1]) == (0, "stopped before it had started")


def test_rollouts_are_listed_within_80_columns(proxy: ServedProxy) -> None:
    """With ids whole, so that they can be copied."""
    status, text, _ = run("rollouts", "list", "--url", proxy.url, "--token", READER)

    lines = text.splitlines()
    assert status == 0
    assert all(len(line) <= WIDTH for line in lines)
    assert any(line.startswith("ro_" + "0" * 32) for line in lines)
    assert lines[0].split() == ["rollout", "group", "sample", "state", "reward"]
    assert lines[1].split() == ["task-0", "task", "0", "finished", "0.25"]


def test_a_list_is_narrowed_and_says_when_there_is_more(proxy: ServedProxy) -> None:
    """By the same words as the route."""
    where = ("--url", proxy.url, "--token", READER)

    _, narrowed, _ = run("rollouts", "list", *where, "--state", "finished", "--group", "task", "--run", "first")
    _, cut, _ = run("rollouts", "list", *where, "--limit", "1")

    assert len(narrowed.splitlines()) == 2
    assert "there are more" in cut


def test_a_list_of_nothing_says_so(proxy: ServedProxy) -> None:
    """Instead of a head without a table."""
    told = run("rollouts", "list", "--group", "nope", "--url", proxy.url, "--token", READER)

    assert told == (0, "no such rollout: narrow less\n", "")


def test_a_rollout_is_shown_with_its_counts_and_health(proxy: ServedProxy) -> None:
    """All that one asks when a number looks odd."""
    _, text, _ = run("rollouts", "show", "task-1-a1", "--url", proxy.url, "--token", READER)
    _, finished, _ = run("rollouts", "show", "task-0", "--url", proxy.url, "--token", READER)

    shown = dict(line.strip().split(maxsplit=1) for line in text.splitlines())
    assert (shown["state"], shown["capture"], shown["profile"]) == ("open", "complete", "train top_k=5")
    assert shown["group"] == "task, sample 1, attempt 1"
    assert '{"reward": 0.25}' in finished
    assert all(len(line) <= WIDTH for line in (text + finished).splitlines())


@pytest.mark.parametrize(
    ("arguments", "route"),
    [
        (("list", "--group", "task", "--limit", "1"), "/rollouts?group=task&limit=1"),
        (("show", "task-0"), "/rollouts/task-0"),
        (("why", "task-0"), "/rollouts/task-0/why"),
    ],
    ids=["list", "show", "why"],
)
def test_scripts_get_the_document_that_the_route_answers(
    proxy: ServedProxy, arguments: tuple[str, ...], route: str
) -> None:
    """Every look at a rollout has --json, and its names are the ones of the control plane."""
    status, text, _ = run("rollouts", *arguments, "--json", "--url", proxy.url, "--token", READER)

    assert status == 0
    assert json.loads(text) == proxy.control.get(route).json()


def test_address_and_token_are_those_of_the_settings(
    proxy: ServedProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside a proxy's own rollpin.toml nothing has to be told; a minted token stands in the secrets file."""
    monkeypatch.setenv("ROLLPIN_PORT", str(proxy.wiring.data_port))
    without = run("rollouts", "list")
    (tmp_path / "rollpin.secrets.json").write_text(json.dumps({"read_token": READER}))
    by_file = run("rollouts", "list")
    monkeypatch.setenv("ROLLPIN_READ_TOKEN", "another-token-for-tests")
    by_variable = run("rollouts", "list")

    assert (without[0], by_file[0], by_variable[0]) == (1, 0, 1)
    assert without[2].startswith("rollpin: no token: there is no rollpin.secrets.json here; give --token or")
    assert "neither" in by_variable[2]


@pytest.mark.parametrize("kept", [None, "{", "[]", "{}"])
def test_a_secrets_file_of_no_use_is_told(kept: str | None, tmp_path: Path) -> None:
    """As what it is, to whoever looks for a token in it; None stands for a folder."""
    secrets = tmp_path / "rollpin.secrets.json"
    secrets.mkdir() if kept is None else secrets.write_text(kept)
    status, _, told = run("rollouts", "list")

    why = "cannot be read (Is a directory)" if kept is None else "holds none"
    remedy = "give --token or ROLLPIN_READ_TOKEN, or run this where the proxy's is"
    assert (status, told) == (1, f"rollpin: no token: rollpin.secrets.json {why}; {remedy}\n")


@pytest.mark.parametrize(
    ("arguments", "below", "words"),
    [
        (("replay", "--group", "nope"), "", "no rollout is in group 'nope'"),
        (("rollouts", "list"), "/v1", "the routes of the control plane have no /v1"),
    ],
    ids=["a group", "a url"],
)
def test_what_leads_nowhere_is_told_with_what_to_do(
    proxy: ServedProxy, arguments: tuple[str, ...], below: str, words: str
) -> None:
    """Not as a run over nothing, nor as a route that there is."""
    status, out, err = run(*arguments, "--url", proxy.url + below, "--token", ADMIN)

    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert words in err


def test_a_control_socket_is_found_by_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And opened to nobody else."""
    socket = tmp_path / "control.sock"
    monkeypatch.setenv("ROLLPIN_CONTROL_SOCKET", str(socket))
    monkeypatch.setenv("ROLLPIN_READ_TOKEN", READER)
    with served(settings_for(tmp_path, NO_ENGINE, control_socket=socket)):
        status, _, stderr = run("rollouts", "list")

    assert (status, stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "nope"), "no rollout has the id 'nope'"),
        (("show", "a/../b c"), "no"),
        (("list", "--state", "closed"), "state"),
    ],
)
def test_what_the_proxy_refuses_is_one_line_and_status_1(
    proxy: ServedProxy, arguments: tuple[str, ...], words: str
) -> None:
    """In the proxy's own words."""
    status, out, err = run("rollouts", *arguments, "--url", proxy.url, "--token", READER)

    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert words in err


def test_a_proxy_that_is_not_there_is_one_line() -> None:
    """Nor is what nobody could send."""
    absent = run("rollouts", "list", "--url", NO_ENGINE, "--token", READER)
    unsendable = run("rollouts", "list", "--url", NO_ENGINE, "--token", "tökén")

    for status, _, err in (absent, unsendable):
        assert (status, len(err.splitlines())) == (1, 1)
        assert err.startswith(f"rollpin: no answer from {NO_ENGINE}: ")
        assert "[Errno" not in err
        assert err.endswith("; start `rollpin serve`, or name another by --url\n")


def test_an_address_without_its_scheme_is_told_so() -> None:
    """Before anything is asked."""
    told = run("rollouts", "list", "--url", "127.0.0.1:8080", "--token", READER)

    assert told == (2, "", "rollpin: --url: '127.0.0.1:8080' is not an http(s) URL\n")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(502, html="<h1>Bad Gateway</h1>"), "does not answer as Rollpin does (status 502)"),
        (httpx.Response(503, json=["busy"]), "not an answer of Rollpin"),
        (httpx.ConnectTimeout("too slow"), "no answer from http://proxy.test"),
    ],
    ids=["html", "a list", "silence"],
)
def test_something_else_at_the_address_is_one_line(answer: httpx.Response | Exception, words: str) -> None:
    """A gateway in between, say."""
    with respx.mock(assert_all_called=True) as network:
        route = network.get("http://proxy.test/rollouts")
        route.mock(side_effect=answer) if isinstance(answer, Exception) else route.mock(return_value=answer)
        status, _, told = run("rollouts", "list", "--url", "http://proxy.test", "--token", READER)

    assert (status, len(told.splitlines())) == (1, 1)
    assert words in told
