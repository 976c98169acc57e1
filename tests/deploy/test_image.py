"""The image: its Dockerfile reads well, and its steps, run in a clean folder, make a Rollpin that runs."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.building import CHANGES_USERS, Image, build, context_of, steps_of

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "kubernetes" / "base"
STEPS = steps_of(ROOT / "Dockerfile")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
ADMIN = "admin-token-for-the-image-tests"
START_S = 30
# Set where no package index can be reached: the steps that install are skipped, and said to be.
OFFLINE = "OFFLINE"


def pins(lock: str) -> dict[str, str]:
    """Name and version of everything in a lock file."""
    return dict(PIN.findall((ROOT / lock).read_text()))


# --- as it is written -------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing() -> None:
    """Every rule, none ignored."""
    hadolint = Path(sys.executable).with_name("hadolint")
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
    """Its locks pin what requirements.lock pins, and no index or address."""
    tested = pins("requirements.lock")

    for lock in ("deploy/requirements.lock", "deploy/build.lock"):
        # colorama is for Windows alone, behind a marker.
        assert {name: version for name, version in pins(lock).items() if name != "colorama"}.items() <= tested.items()
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


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image's content; in a folder with a short name, since Unix sockets lie in it."""
    if os.environ.get(OFFLINE):
        pytest.skip(f"{OFFLINE} is set: the steps of the Dockerfile were not run")
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        yield build(ROOT, Path(folder))


def free_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return str(bound.getsockname()[1])


@contextmanager
def process(image: Image, *command: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A process in the image; killed at the end of the block if it is not over by then."""
    running = subprocess.Popen(
        command,
        env=image.environment(**environment),
        cwd=image.working_folder(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        if running.stdout:
            running.stdout.close()


def rollpin(image: Image, *arguments: str) -> list[str]:
    """ENTRYPOINT, found on the image's PATH, with CMD or other arguments."""
    name, *rest = image.last["ENTRYPOINT"].words()
    found = shutil.which(name, path=image.environment()["PATH"])
    assert found, name
    return [found, *rest, *(arguments or image.last["CMD"].words())]


def probe(image: Image, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The image's own health probe."""
    return image.run(["rollpin-probe", path], **environment)


def wait_for(image: Image, path: str, running: "subprocess.Popen[str]", **environment: str) -> None:
    """Probe until it is well, as an orchestrator would."""
    deadline = time.monotonic() + START_S
    while (done := probe(image, path, **environment)).returncode:
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline, done.stdout + done.stderr
        time.sleep(0.1)


def stop(running: "subprocess.Popen[str]") -> int:
    """STOPSIGNAL, and the exit status."""
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate(timeout=START_S)
    assert running.returncode == 0, output
    return running.returncode


def test_what_is_installed_is_the_lock_and_rollpin_and_nothing_else(image: Image) -> None:
    """Not even pip."""
    listed = image.run(
        [
            "python",
            "-c",
            "import importlib.metadata as m; print({d.metadata['Name'].lower().replace('_', '-'): d.version"
            " for d in m.distributions()})",
        ]
    )
    installed = eval(listed.stdout)

    expected = {name.replace("_", "-"): version for name, version in pins("deploy/requirements.lock").items()}
    expected.pop("colorama")
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

    assert (done.returncode, done.stderr) == (2, "rollpin: engines: name at least one\n")


def test_it_serves_is_found_healthy_and_stops_on_sigterm(image: Image) -> None:
    """By the HEALTHCHECK of the image; ready it is not, without an engine, and the probe tells why."""
    ports = {"ROLLPIN_PORT": free_port(), "ROLLPIN_CONTROL_PORT": free_port()}
    with process(image, *rollpin(image), ROLLPIN_ENGINES="http://127.0.0.1:1", **ports) as running:
        check = json.loads(image.last["HEALTHCHECK"].text.partition(" CMD ")[2])
        assert check == ["rollpin-probe", "/healthz"]
        wait_for(image, check[1], running, **ports)

        not_ready = probe(image, "/readyz", **ports)
        assert not_ready.returncode == 1
        assert "none of 1 engines is known to be well" in not_ready.stdout
        with pytest.raises(httpx.ConnectError):  # the control plane is on loopback, whatever the data plane is on
            httpx.get(f"http://{outer_address()}:{ports['ROLLPIN_CONTROL_PORT']}/healthz")
        assert httpx.get(f"http://127.0.0.1:{ports['ROLLPIN_PORT']}/healthz").status_code == 404
        assert {file.name for file in image.working_folder().iterdir()} >= {"rollpin.db", "rollpin.secrets.json"}
        assert stop(running) == 0


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


# --- the harness pod, without a cluster -------------------------------------------------------------------------


@contextmanager
def simulated_engine(image: Image) -> Iterator[str]:
    """The image's other command."""
    port = free_port()
    command = rollpin(image, "sim", "--kind", "sglang", "--host", "127.0.0.1", "--port", port)
    with process(image, *command) as running:
        wait_for(image, f"http://127.0.0.1:{port}/model_info", running)
        yield f"http://127.0.0.1:{port}"


class Pod:
    """The folders that the pod's volumes stand for, and the variables of its containers."""

    def __init__(self, folder: Path, engine: str) -> None:
        for name in ("control", "store", "handover", "records"):
            (folder / name).mkdir(parents=True)
        self.folder = folder
        self.port = free_port()
        settings = (BASE / "settings.toml").read_text()
        for inside, outside in (("/run/rollpin", "control"), ("/data", "store")):
            settings = settings.replace(inside, str(folder / outside))
        (folder / "rollpin.toml").write_text(settings)
        self.rollpin = {
            "ROLLPIN_CONFIG": str(folder / "rollpin.toml"),
            "ROLLPIN_PORT": self.port,
            "ROLLPIN_ENGINES": engine,
            "ROLLPIN_ADMIN_TOKEN": ADMIN,
        }
        self.trainer = {
            "ROLLOUT_ID": "step-1-task-1-0",
            "ROLLOUT": '{"run": "default", "group": "step-1-task-1", "sample": 0, "attempt": 0}',
            "ADMIN_TOKEN": ADMIN,
            "CONTROL_SOCKET": str(folder / "control" / "control.sock"),
            "HANDOVER": str(folder / "handover"),
            "RECORDS": str(folder / "records"),
        }

    def handed_over(self) -> dict[str, str]:
        """What the harness's shell makes of the file."""
        lines = (self.folder / "handover" / "env").read_text().splitlines()
        return dict(pair.split("=", 1) for line in lines for pair in shlex.split(line)[1:])

    def records(self) -> list[dict[str, Any]]:
        file = self.folder / "records" / f"{self.trainer['ROLLOUT_ID']}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_harness_pod_from_its_start_to_its_records(image: Image) -> None:
    """Its settings, its trainer and its probes, in the order in which Kubernetes starts and ends sidecars."""
    python = shutil.which("python", path=image.environment()["PATH"])
    assert python
    with simulated_engine(image) as engine, tempfile.TemporaryDirectory(prefix="rp-") as folder:
        pod = Pod(Path(folder), engine)
        with process(image, *rollpin(image), **pod.rollpin) as proxy:
            wait_for(image, "/readyz", proxy, **pod.rollpin)
            with process(image, python, str(BASE / "trainer.py"), **pod.trainer) as trainer:
                wait_until_file(pod.folder / "handover" / "env", trainer)
                told = pod.handed_over()
                assert told["OPENAI_BASE_URL"] == f"http://127.0.0.1:{pod.port}/rollouts/step-1-task-1-0/v1"
                answer = call(told)
                assert answer.status_code == 200, answer.text
                assert stop(trainer) == 0
            assert call(told).status_code == 410
            assert stop(proxy) == 0

        rollout, *calls = pod.records()
        assert (rollout["rollout_id"], rollout["group"], rollout["state"]) == (
            "step-1-task-1-0",
            "step-1-task-1",
            "finished",
        )
        assert rollout["health"]["complete"]
        assert len(calls) == 1
        assert calls[0]["completion_token_ids"]


def call(told: dict[str, str]) -> httpx.Response:
    """One model call of the harness."""
    return httpx.post(
        f"{told['OPENAI_BASE_URL']}/chat/completions",
        headers={"authorization": f"Bearer {told['OPENAI_API_KEY']}"},
        json={"model": "policy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20},
        timeout=30,
    )


def wait_until_file(path: Path, running: "subprocess.Popen[str]") -> None:
    """The startup probe `test -s`."""
    deadline = time.monotonic() + START_S
    while not (path.exists() and path.stat().st_size):
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)
