"""The kit that starts the real engines, without starting one."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.live.engines import start
from tests.live.engines.install import wanted_requirements
from tests.live.engines.models import write_tiny_model
from tests.live.engines.places import KINDS, KIT, Kind, is_installed, run_python

# (seed, position, hashes of columns 0 to 5) as SGLang 0.5.23's own operator gives them.
GOLDEN_HASHES = [
    (0, 0, [2167721464, 10027521, 2423355346, 1368026766, 78347357, 350656522]),
    (42, 131071, [721692542, 3935765045, 2818281745, 3460270564, 3698462445, 468876715]),
    (2**32 - 1, 127, [3781797405, 3834783687, 3592805345, 1012258542, 3255935302, 1390851798]),
    (2**63 - 1, 1, [3316529890, 3098777434, 2935067748, 3894259832, 779304366, 3552095608]),
    (-1, 127, [3439613806, 3841879248, 3136977648, 2444195821, 1496578457, 4243280858]),
    (-(2**63), 0, [3151856498, 59423295, 3230546564, 1457788630, 2827027653, 729691532]),
]

HASH_PROGRAM = """
    import json, sys, torch, sgl_kernel
    seeds, positions = json.loads(sys.stdin.read())
    murmur = torch.ops.sgl_kernel.murmur_hash32_cpu
    print(murmur(torch.tensor(seeds), torch.tensor(positions), torch.arange(6)).tolist())
"""


@pytest.fixture(params=KINDS)
def kind(request) -> Kind:
    """Each engine that is installed."""
    if not is_installed(request.param):
        pytest.skip(f"no {request.param}: python -m tests.live.engines install {request.param}")
    return request.param


def test_hash_stand_in_equals_the_real_operator(kind):
    """Seeded sampling on our stand-in is SGLang's seeded sampling."""
    question = f"[{[seed for seed, _, _ in GOLDEN_HASHES]}, {[position for _, position, _ in GOLDEN_HASHES]}]"

    hashes = run_python(kind, "-c", textwrap.dedent(HASH_PROGRAM), text=question, path=KIT / "sglang_cpu")

    assert hashes.strip() == str([expected for _, _, expected in GOLDEN_HASHES])


def test_tiny_model_is_the_same_each_time(kind, tmp_path):
    """A seed means one set of bytes, and another seed means other weights beside the same tokenizer."""
    for folder, seed in (("one", 0), ("again", 0), ("other", 1)):
        write_tiny_model(tmp_path / folder, kind, seed=seed)

    one, again, other = (read_folder(tmp_path / folder) for folder in ("one", "again", "other"))
    assert one == again
    assert [name for name in one if one[name] != other[name]] == ["model.safetensors"]


def test_vllm_is_installed_without_extras_and_media():
    """Only what a text model needs is left of vLLM's requirements."""
    lines = [
        "torch==2.13.0+cpu",
        "torchaudio; x",
        "torchvision",
        "torchcodec>=0.14",
        'pandas; extra == "bench"',
    ]

    assert wanted_requirements(lines) == ["torch==2.13.0+cpu"]


def test_engine_that_dies_is_reported_with_its_log(monkeypatch, tmp_path):
    """Whoever waits for an engine reads why it did not come."""
    launch_instead(monkeypatch, tmp_path, "raise SystemExit('no such flag')")

    with pytest.raises(start.EngineDidNotStart, match="no such flag"), start.running("vllm", tmp_path):
        pytest.fail("it never answered")


def test_engine_ends_with_its_block_and_takes_its_workers_along(monkeypatch, tmp_path):
    """The end of the block is the end of every process, even of one that ignores SIGTERM."""
    launch_instead(monkeypatch, tmp_path, SERVER_WITH_A_STUBBORN_WORKER)

    with start.running("vllm", tmp_path) as engine:
        assert group_is_alive(engine.pid)

    assert not group_is_alive(engine.pid)


def test_engine_ends_when_the_run_that_wanted_it_is_killed(tmp_path):
    """An interrupted test run leaves no engine behind."""
    keeper = [sys.executable, str(KIT / "keeper.py")]
    rest = [str(tmp_path / "log"), "sleep", "600"]
    run = f"import os, subprocess; subprocess.run([*{keeper}, str(os.getpid()), *{rest}])"
    owner = subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE, text=True)
    engine_pid = int(owner.stdout.readline())

    owner.kill()
    owner.wait()

    assert ends_within(60, engine_pid)


SERVER_WITH_A_STUBBORN_WORKER = """
    import http.server, signal, subprocess, sys
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", stubborn])
    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Ready).serve_forever()
"""


def launch_instead(monkeypatch, tmp_path: Path, program: str) -> None:
    """Let the kit start a program of ours where it would start vLLM."""
    monkeypatch.setenv("ENGINES_HOME", str(tmp_path))
    monkeypatch.setattr(start, "ensure_installed", lambda kind: tmp_path)
    monkeypatch.setattr(start, "vllm_command", lambda _model: [sys.executable, "-c", textwrap.dedent(program)])


def read_folder(folder: Path) -> dict[str, bytes]:
    """Every file's bytes by name."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def group_is_alive(leader: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def ends_within(wait_s: float, leader: int) -> bool:
    """Whether the group is gone before the time is up."""
    give_up_at = time.monotonic() + wait_s
    while group_is_alive(leader) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return not group_is_alive(leader)
