"""The image: its Dockerfile reads well, and its steps, run in a clean folder, make a Rollpin that runs."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.deploy.building import CHANGES_USERS, Image, context_of, steps_of
from tests.deploy.processes import probe, process, rollpin, stop, wait_for
from tests.patience import PATIENCE_S
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
STEPS = steps_of(ROOT / "Dockerfile")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
HASH = re.compile(r"^([a-z0-9._-]+)==|--hash=(sha256:[0-9a-f]{64})", re.MULTILINE)
# Behind a marker: neither tested nor in an image.
FOR_WINDOWS = ("colorama", "tzdata")
LIST_INSTALLED = """
from importlib.metadata import distributions
for one in distributions():
    print(one.metadata["Name"].lower().replace("_", "-"), one.version)
"""


def pins(lock: str) -> dict[str, str]:
    """Name and version of everything in a lock file."""
    return dict(PIN.findall((ROOT / lock).read_text()))


def hashes(lock: str) -> dict[str, set[str]]:
    """Name and hashes of everything in a lock file."""
    found: dict[str, set[str]] = {}
    for name, digest in HASH.findall((ROOT / lock).read_text()):
        if name:
            current = found.setdefault(name, set())
        else:
            current.add(digest)
    return found


# --- as it is written -------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing() -> None:
    """Every rule, none ignored."""
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint, "no hadolint: make setup"
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert "hadolint ignore" not in (ROOT / "Dockerfile").read_text()


def test_it_runs_as_a_user_of_fixed_number_and_not_as_root() -> None:
    """Volumes and security contexts name the number."""
    final = {step.name: step for step in STEPS if step.stage == STEPS[-1].stage}
    (users,) = [step.text for step in STEPS if step.name == "RUN" and CHANGES_USERS.search(step.text)]

    assert final["USER"].text == "10001:10001"
    assert "groupadd --gid 10001 rollpin" in users
    assert "useradd --uid 10001 --gid 10001" in users
    assert "--owner=10001 --group=10001 --mode=0700 /data" in users


def test_it_says_how_it_is_run() -> None:
    """By orchestrators and by people."""
    final = {step.name: step for step in STEPS if step.stage == STEPS[-1].stage}

    assert final["ENTRYPOINT"].words() == ["rollpin"]
    assert final["CMD"].words() == ["serve"]
    assert final["STOPSIGNAL"].text == "SIGTERM"
    assert final["VOLUME"].words() == ["/data"]
    assert final["WORKDIR"].text == "/data"
    assert final["EXPOSE"].words() == ["8080", "8081"]
    assert "curl" not in (ROOT / "Dockerfile").read_text()


def test_only_what_is_copied_goes_to_the_builder() -> None:
    """No store, no secret, no test, no cache."""
    copied = [
        source
        for step in STEPS
        if step.name == "COPY" and "--from=" not in step.text
        for source in [word for word in step.words() if not word.startswith("--")][:-1]
    ]

    for file in context_of(ROOT):
        assert any(file == Path(source) or Path(source) in file.parents for source in copied), file
        assert "__pycache__" not in file.parts


@pytest.mark.parametrize("secret", ["rollpin.db", "rollpin.secrets.json", ".env", "proxy/__pycache__/x.pyc"])
def test_files_that_must_stay_are_ignored(secret: str, tmp_path: Path) -> None:
    """Wherever they lie about."""
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    for name in (secret, "proxy/app.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert context_of(tmp_path) == [Path("proxy/app.py")]


def test_the_image_runs_the_versions_that_were_tested() -> None:
    """Its locks pin what requirements.lock pins, by the same hashes, and name no index and no address."""
    tested, tested_hashes = pins("requirements.lock"), hashes("requirements.lock")

    for lock in ("deploy/requirements.lock", "deploy/build.lock"):
        for name, version in pins(lock).items():
            if name in FOR_WINDOWS:
                continue
            assert version == tested[name], f"{lock}: {name} is stale, run make lock"
            assert hashes(lock)[name] == tested_hashes[name], name
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host", (ROOT / lock).read_text())


def test_the_runtime_lock_holds_the_dependencies_and_no_tools() -> None:
    """What pyproject.toml asks for at run time."""
    names = {re.split(r"[\[><=~! ]", need)[0] for need in PROJECT["project"]["dependencies"]}

    assert names <= set(pins("deploy/requirements.lock"))
    assert not {"pytest", "ruff", "mypy", "hatchling", "openai"} & set(pins("deploy/requirements.lock"))


def test_the_build_lock_is_for_the_build_system_of_the_project() -> None:
    """Nothing is fetched while the wheel is built."""
    assert (ROOT / "deploy" / "build.in").read_text().split() == PROJECT["build-system"]["requires"]


# --- as it runs -------------------------------------------------------------------------------------------------


def test_what_is_installed_is_the_lock_and_rollpin_and_nothing_else(image: Image) -> None:
    """Not even pip."""
    listed = image.run(["python", "-c", LIST_INSTALLED])
    installed = dict(line.split() for line in listed.stdout.splitlines())

    expected = {name.replace("_", "-"): version for name, version in pins("deploy/requirements.lock").items()}
    for name in FOR_WINDOWS:
        expected.pop(name)
    assert installed == expected | {"rollpin": PROJECT["project"]["version"]}


def test_the_wheel_holds_every_file_of_the_package(image: Image) -> None:
    """Migrations and the like among them."""
    (wheel,) = (image.root / "opt" / "wheels").glob("rollpin-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())

    package = [file.as_posix() for file in context_of(ROOT) if file.parts[0] == "proxy"]
    assert set(package) <= held
    assert any(name.endswith(".sql") for name in held)
    assert "proxy/py.typed" in held


def test_the_command_runs_outside_the_checkout(image: Image) -> None:
    """From the virtual environment of the image, in its own working folder."""
    done = image.run(rollpin(image, "--version"))
    where = image.run(["python", "-c", "import proxy; print(proxy.__file__)"])

    assert done.stdout == f"rollpin {PROJECT['project']['version']}\n", done.stderr
    assert where.stdout.startswith(f"{image.root}/opt/rollpin/"), where.stderr


def test_without_an_engine_it_says_so_and_does_not_start(image: Image) -> None:
    """One line, exit status 2."""
    done = image.run(rollpin(image))

    assert (done.returncode, done.stderr) == (
        2,
        "rollpin: engines: name at least one, by --engines URL, or in rollpin.toml\n",
    )


def test_it_serves_is_found_healthy_and_stops_on_sigterm(image: Image) -> None:
    """By the HEALTHCHECK of the image; ready it is not, without an engine, and the probe tells why."""
    ports = {name: str(free_port()) for name in ("ROLLPIN_PORT", "ROLLPIN_CONTROL_PORT")}
    before = files_outside_volumes(image)
    with process(image, *rollpin(image), ROLLPIN_ENGINES="http://127.0.0.1:1", **ports) as running:
        check = json.loads(image.last["HEALTHCHECK"].text.partition(" CMD ")[2])
        assert check == ["rollpin-probe", "/healthz"]
        wait_for(image, check[1], running, **ports)

        not_ready = probe(image, "/readyz", **ports)
        assert not_ready.returncode == 1
        assert "none of 1 engines is known to be well" in not_ready.stdout
        asked = [httpx.get(f"http://127.0.0.1:{port}/rollouts", timeout=PATIENCE_S) for port in ports.values()]
        assert [answer.status_code for answer in asked] == [404, 401]
        with pytest.raises(httpx.ConnectError):  # the control plane is on loopback, whatever the data plane is on
            httpx.get(f"http://{outer_address()}:{ports['ROLLPIN_CONTROL_PORT']}/healthz", timeout=PATIENCE_S)
        assert {file.name for file in image.working_folder().iterdir()} >= {"rollpin.db", "rollpin.secrets.json"}
        assert stop(running) == 0
    assert files_outside_volumes(image) == before  # so that the root may be read-only


def files_outside_volumes(image: Image) -> set[Path]:
    """All but the store and what lies beside it."""
    return {file for file in image.root.rglob("*") if image.root / "data" not in (file, *file.parents)}


def outer_address() -> str:
    """An address of this machine that is not loopback; loopback's second where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe_socket.getsockname()[0])


def test_the_probe_fails_where_nothing_answers(image: Image) -> None:
    """With one line."""
    done = probe(image, f"http://127.0.0.1:{free_port()}/")

    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert image.run(["rollpin-probe"]).returncode == 2
