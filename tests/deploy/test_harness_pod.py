"""A harness pod without a cluster: its processes, with the settings, the trainer and the probes of its manifest."""

import contextlib
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.deploy.building import Image
from tests.deploy.processes import end_of, process, rollpin, stop, wait_for
from tests.patience import PATIENCE_S
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "kubernetes" / "base"
ADMIN = "admin-token-for-the-image-tests"


@contextmanager
def simulated_engine(image: Image) -> Iterator[str]:
    """The image's other command."""
    port = str(free_port())
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
        self.port = str(free_port())
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
                assert answer.status_code == 200, f"{answer.text}\n{end_of(proxy)}"
                assert stop(trainer) == 0
            back_up(image, pod.folder / "store")
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
        timeout=PATIENCE_S,
    )


def back_up(image: Image, store: Path) -> None:
    """The command of docs/deploy.md, while the proxy runs."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    (written,) = re.findall(r'exec rollpin python -c "(import sqlite3.*)"\n', page)
    done = image.run(["python", "-c", written.replace('\\"', '"').replace("/data/", f"{store}/")])
    assert done.returncode == 0, done.stderr
    with contextlib.closing(sqlite3.connect(store / "backup.db")) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("SELECT count(*) FROM calls").fetchall() == [(1,)]


def wait_until_file(path: Path, running: "subprocess.Popen[str]") -> None:
    """The startup probe `test -s`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.stat().st_size):
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)
