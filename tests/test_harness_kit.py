"""The kit that runs real harnesses, tried on small programs: nothing of a run stays behind, and nothing gets out."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harnesses.kit import places, running
from tests.harnesses.kit.install import COMPLETE, InstallError, ensure_installed, is_installed
from tests.harnesses.kit.places import PythonPackages
from tests.harnesses.kit.running import Run, run_harness
from tests.harnesses.page import AIM, page
from tests.harnesses.roster import IN_CI, ROSTER
from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).parents[1]
DAEMON = "import os, time; os.setsid(); open('daemon', 'w').write(str(os.getpid())); time.sleep(600)"
LEAVES_A_DAEMON = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DAEMON!r}])
while not (os.path.exists("daemon") and open("daemon").read()):
    time.sleep(0.01)
"""


def run_python(folder: Path, program: str, limit_s: float = PATIENCE_S) -> Run:
    return run_harness([sys.executable, "-c", program], folder, env={}, files={}, limit_s=limit_s)


def is_running(pid: str) -> bool:
    """It exists, and is more than an entry that nobody has collected yet."""
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_time_limit_is_set_where_the_page_says() -> None:
    """The last part of the setting's name stands in what the harness is given for it, and not else."""
    for harness in (one for one in ROSTER if one.time_setting):
        name = harness.time_setting.rpartition(".")[2]
        timed, usual = (str(harness.prepare(replace(AIM, timeout_s=limit), "TASK")) for limit in (7, None))

        assert re.search(rf"{name}\W+7", timed), harness.name
        assert not re.search(rf"{name}\W+7", usual), harness.name


def test_the_page_is_what_the_tests_assert() -> None:
    """`python -m tests.harnesses page > docs/harnesses.md` makes it anew."""
    assert (ROOT / "docs" / "harnesses.md").read_text() == page()


def test_each_harness_has_a_name_of_its_own_and_a_pinned_version() -> None:
    """Also those that CI runs are there."""
    names = [harness.name for harness in ROSTER]

    assert len(set(names)) == len(names)
    assert set(names) >= IN_CI
    assert all(harness.version[0].isdigit() for harness in ROSTER)


def test_a_harness_has_a_home_of_its_own_and_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key of whoever runs the tests can leak into a harness."""
    monkeypatch.setenv("OPENAI_API_KEY", "a real one")
    told = run_python(tmp_path, "import os; print(os.environ['HOME'], os.environ.get('OPENAI_API_KEY'), os.getcwd())")

    assert told.output.split() == [str(tmp_path / "home"), "None", str(tmp_path / "work")]


def test_a_daemon_does_not_outlive_its_harness(tmp_path: Path) -> None:
    """Also where it has left the process group."""
    told = run_python(tmp_path, LEAVES_A_DAEMON)

    daemon = (tmp_path / "work" / "daemon").read_text()

    assert told.status == 0, told
    until(lambda: not is_running(daemon))


def test_a_harness_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its limit, with what it had printed; it is slow to begin, and its time is counted from there."""

    class SlowToBegin(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            until((tmp_path / "stdout").read_bytes)
            return super().wait(timeout)

    monkeypatch.setattr(running.subprocess, "Popen", SlowToBegin)
    told = run_python(tmp_path, "import time; print('begun', flush=True); time.sleep(600)", limit_s=0.1)

    assert (told.status, told.output) == (None, "begun\n")


def test_the_way_out_is_barred_and_watched(tmp_path: Path) -> None:
    """A request to any host but this one goes to a socket that notes it and hangs up."""
    reach = (
        "import urllib.request\ntry: urllib.request.urlopen('https://rollpin.invalid/x')\nexcept OSError: print('no')"
    )
    told = run_python(tmp_path, reach)

    assert told.output == "no\n"
    assert [line.split()[:2] for line in told.wanted_outside] == [["CONNECT", "rollpin.invalid:443"]]


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PythonPackages:
    """An environment of no packages, to be installed below a fresh home."""
    monkeypatch.setenv("HARNESSES_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(places, "LOCKS", tmp_path)
    # pip refuses an empty list; what is there already needs no index.
    (tmp_path / "nothing.txt").write_text("pip\n")
    return PythonPackages("nothing")


def test_an_interrupted_installation_is_made_anew(nothing: PythonPackages) -> None:
    """What is there without the mark of completion is thrown away; what has it is kept."""
    (nothing.folder / "bin").mkdir(parents=True)
    (nothing.folder / "bin" / "half").touch()
    ensure_installed(nothing)
    assert not (nothing.folder / "bin" / "half").exists()
    assert (
        subprocess.run([nothing.program, "-c", "print('whole')"], capture_output=True, check=True).stdout == b"whole\n"
    )

    (nothing.folder / "kept").touch()
    ensure_installed(nothing)
    assert (nothing.folder / "kept").exists()


def test_a_changed_lock_is_installed_anew(nothing: PythonPackages) -> None:
    """The mark holds what was installed."""
    nothing.folder.mkdir(parents=True)
    (nothing.folder / COMPLETE).write_text(nothing.lock.read_text())
    assert is_installed(nothing)

    nothing.lock.write_text("pip\nsetuptools\n")
    assert not is_installed(nothing)


def test_an_installation_that_fails_says_why_and_is_not_taken_for_done(nothing: PythonPackages) -> None:
    """With the words of whatever failed."""
    nothing.lock.write_text("rollpin-no-such-package @ file:///nowhere\n")

    with pytest.raises(InstallError, match="nowhere"):
        ensure_installed(nothing)
    assert not is_installed(nothing)


def test_a_python_that_is_too_old_is_refused_by_name(nothing: PythonPackages) -> None:
    """No later traceback out of some package."""
    with pytest.raises(InstallError, match=r"needs Python 3\.99"):
        ensure_installed(PythonPackages(nothing.name, needs=(3, 99)))
