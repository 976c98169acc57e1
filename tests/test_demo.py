"""The demo as a newcomer meets it: `rollpin demo` and `example.py` as processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.demo.agent import calculate
from proxy.demo.group import SampleRun, compare, digest_of
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent
DEMO = [sys.executable, "-m", "proxy", "demo", "--port", "0"]
# As on a machine where the package was installed without its development extras.
HIDE_THE_SDK = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "openai" else find(name, *rest)
sys.argv = {["rollpin", *DEMO[3:], "--exit"]!r}
from proxy.cli import main
main()
"""
WIDTH = 80


def surroundings(**variables: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": str(WIDTH), **variables}


def shown(command: list[str], folder: Path, **variables: str) -> str:
    """What a command prints that ends well."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=surroundings(PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo's whole output, run to its end."""
    return shown([*DEMO, "--exit"], tmp_path_factory.mktemp("first"))


def digest_in(page: str) -> str:
    found = re.search(r"digest of all sampled ids: ([0-9a-f]{16})", page)
    assert found, page
    return found[1]


def test_it_is_readable_at_80_columns(page: str) -> None:
    """No line is longer."""
    assert [line for line in page.splitlines() if len(line) > WIDTH] == []


def test_it_says_first_that_the_engine_is_simulated(page: str) -> None:
    """Nobody shall take these tokens for a model's."""
    assert "SIMULATION" in page.splitlines()[0]


def test_it_shows_what_was_asked_and_what_was_told(page: str) -> None:
    """The agent's temperature gave way to the profile's."""
    assert re.search(r"temperature +0\.2 +1\.0 +overridden", page)
    assert re.search(r"seed +1234 +\d+ +minted", page)


def test_it_shows_four_different_samples_with_their_seeds(page: str) -> None:
    """Two calls each, none with the seed of another."""
    rows = re.findall(r"^  (\d| ) +([12]) +(\d+)  ", page, re.MULTILINE)

    assert [(sample, call) for sample, call, _ in rows] == [
        (head, call) for sample in "0123" for head, call in ((sample, "1"), (" ", "2"))
    ]
    assert len({seed for *_, seed in rows}) == 8
    assert "4 of 4 differ" in page


def test_it_shows_calls_with_their_tokens(page: str) -> None:
    """Prompt and generated tokens apart."""
    assert re.search(r"call 2: \d+ prompt tokens, \d+ generated", page)
    assert re.search(r"mask 1 +<think>.*</think>", page)


def test_its_second_run_is_its_first(page: str) -> None:
    """By the recorded ids of all calls."""
    told = re.search(r"REPRODUCED: run second drew 8 of 8 calls again, (\d+) of (\d+) tokens", page)

    assert told
    assert told[1] == told[2] != "0"


def test_another_process_draws_the_same(page: str, tmp_path: Path) -> None:
    """Whatever settings and variables lie about."""
    (tmp_path / "rollpin.toml").write_text("run_seed = 99\n[profiles.train]\ntemperature = 0.5\n")

    assert digest_in(shown([*DEMO, "--exit"], tmp_path, ROLLPIN_RUN_SEED="5")) == digest_in(page)


def test_without_the_sdk_the_agent_speaks_plain_http(page: str, tmp_path: Path) -> None:
    """And draws the same tokens."""
    plain = shown([sys.executable, "-c", HIDE_THE_SDK], tmp_path)

    assert "plain HTTP" in plain
    assert "OpenAI SDK" in page
    assert digest_in(plain) == digest_in(page)


@contextmanager
def staying() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo that goes on, and what it printed up to its last line."""
    with subprocess.Popen(
        DEMO, env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or "python example.py" not in lines[-1]:
                lines.append(process.stdout.readline())
                assert lines[-1], "".join(lines)
            yield process, "".join(lines)
        finally:
            process.kill()


def test_it_stays_for_the_readers_own_harness() -> None:
    """The curl line and example.py work as they stand there; Ctrl-C ends it cleanly, and nothing is left over."""
    with staying() as (process, page):
        base = re.search(r"base URL +(\S+)", page)
        url = re.search(r"ROLLPIN_URL=(\S+)", page)
        assert base
        assert url
        asked = {"model": "x", "messages": [{"role": "user", "content": "Hi"}]}
        key = {"authorization": "Bearer anything"}
        answer = httpx.post(f"{base[1]}/chat/completions", json=asked, headers=key, timeout=PATIENCE_S)
        example = shown([sys.executable, str(ROOT / "example.py")], ROOT, ROLLPIN_URL=url[1])
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert answer.json()["choices"][0]["message"]["content"]
    assert "'temperature': 0.2" in example
    assert "'temperature': 1.0" in example
    assert re.search(r"token +\d+  logprob +-?\d", example)
    assert (process.returncode, said) == (0, "")
    assert max(len(line) for line in page.splitlines()) <= WIDTH


def test_the_example_says_what_to_start_where_nothing_runs() -> None:
    """A few lines instead of a traceback, for whoever runs it first."""
    example = [sys.executable, str(ROOT / "example.py")]
    nowhere = surroundings(ROLLPIN_URL="http://127.0.0.1:1")
    done = subprocess.run(example, env=nowhere, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("No rollout could be opened at http://127.0.0.1:1:\n")
    assert "Start `make demo`" in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= WIDTH


def test_sigterm_ends_it_cleanly() -> None:
    """As a supervisor sends it."""
    with staying() as (process, _):
        process.terminate()
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (0, "")


# --- the verdict ---


def sample(*ids: list[int]) -> SampleRun:
    calls: tuple[dict[str, Any], ...] = tuple({"completion_token_ids": one} for one in ids)
    return SampleRun(0, "r", "391", 1.0, calls)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ([sample([1, 2], [3])], [sample([1, 2], [3])], True),
        ([sample([1, 2], [3])], [sample([1, 2], [4])], False),
        ([sample([1, 2], [3])], [sample([1, 2])], False),
        ([sample([1, 2])], [sample([1, 2, 3])], False),
        ([sample([1]), sample([2])], [sample([2]), sample([1])], False),
        ([], [], False),
    ],
)
def test_a_run_is_reproduced_only_to_the_last_token(
    first: list[SampleRun], second: list[SampleRun], *, same: bool
) -> None:
    """Fewer, more or other tokens are not the same, and nothing is no proof."""
    assert compare(first, second).is_reproduced is same
    assert not first or (digest_of(first) == digest_of(second)) is same


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"expression": "17 * 23"}', "391"),
        ('{"expression": "1-3"}', "-2"),
        ('{"expression": "__import__(1)"}', "this is no sum of two whole numbers"),
        ("{bad", "this is no sum of two whole numbers"),
        ("[]", "this is no sum of two whole numbers"),
        ('{"expression": 3}', "this is no sum of two whole numbers"),
    ],
)
def test_the_calculator_does_sums_and_nothing_else(arguments: str, result: str) -> None:
    """It is fed by a model."""
    assert calculate({"function": {"arguments": arguments}}) == result


def test_the_demo_shows_one_unbroken_sequence_and_its_proof(page: str) -> None:
    """A later call goes on from the ids before it, and the records are drawn again."""
    assert "supplied, and proven" in page
    assert re.search(r"main: 2 calls are one sequence of \d+ tokens, \d+ trained", page)
    assert re.search(r"PROVEN: (\d+) of \1 calls drawn again are the same", page)
