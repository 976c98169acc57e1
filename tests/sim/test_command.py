"""`rollpin sim` as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.patience import PATIENCE_S

SIM = [sys.executable, "-m", "proxy", "sim"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, and what it printed up to its ready line."""
    with subprocess.Popen([*SIM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or not lines[-1].startswith("ready "):
                lines.append(process.stdout.readline())
                assert lines[-1], process.stderr and process.stderr.read()
            yield process, lines
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_what_it_is_and_ends_cleanly(number: int) -> None:
    """Status 0 by either signal."""
    with running("--kind", "vllm", "--scenario", "calculator", "--fault", "503") as (process, lines):
        url = lines[-1].split()[1]
        answers = [
            httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
            for _ in range(2)
        ]
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=PATIENCE_S)

    assert lines[0] == "A SIMULATION of vLLM 0.32.0: no model and no GPU, the tokens are toys.\n"
    assert "calculator" in lines[1]
    assert "503" in lines[2]
    assert [a.status_code for a in answers] == [503, 200]
    assert (process.returncode, errors) == (0, "")


def test_it_can_be_interrupted_where_a_script_put_it_in_the_background() -> None:
    """A shell without job control has `&` ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with running("--kind", "vllm") as (process, _):
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, before)

    assert (process.returncode, errors) == (0, "")


def test_a_request_that_kills_the_real_one_kills_it() -> None:
    """With status 1 and a word about it."""
    with running("--kind", "sglang") as (process, lines):
        url = lines[-1].split()[1]
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user"}], "input_ids": [-1]})
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (1, "dead: a request killed it, as it would have killed SGLang 0.5.23\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fault", "nothing"], "rollpin: fault: 'nothing' is none of"),
        (["--scenario", "nothing"], "rollpin: scenario: no file 'nothing'"),
        (["--host", "192.0.2.1"], "rollpin: cannot listen on 192.0.2.1:0: Cannot assign requested address; name an "),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments: list[str], words: str) -> None:
    """On stderr, with status 2."""
    done = subprocess.run([*SIM, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(words)
