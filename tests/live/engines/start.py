"""Starts a real engine, waits until it answers, and makes sure that it ends.

Two cores bear one engine at a time: stop one before the other starts.
"""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import ports
from tests.live.engines.install import ensure_installed
from tests.live.engines.models import ensure_model, thinks
from tests.live.engines.places import KIT, Kind, environment, home, python, venv

# A start takes 40 s on an idle machine and was seen to take 200 s on a busy one.
WAIT_S = 600.0
# The keeper's grace twice over, and what a slow machine adds.
STOP_S = 120.0
LOOK_EVERY_S = 0.5
# A busy one answers later than it usually does, and no later for being asked again.
ANSWER_S = 30.0
LOG_TAIL_CHARS = 4000

# Neither of them generates a token, as SGLang's /health would.
READY_PATH: dict[Kind, str] = {"vllm": "/health", "sglang": "/model_info"}


class EngineDidNotStart(Exception):
    """The engine died or kept silent; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A real engine that answers."""

    kind: Kind
    url: str
    """Without a slash at the end, and without /v1."""
    model_dir: Path
    served_name: str
    """The name that requests give in `model`."""
    log: Path
    pid: int
    """The engine's first process, which leads its process group."""
    keeper: "subprocess.Popen[str]" = field(repr=False)

    def is_alive(self) -> bool:
        """Whether the engine's first process still runs."""
        return self.keeper.poll() is None

    def log_tail(self) -> str:
        """The end of what the engine wrote."""
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def stop(self) -> None:
        """End the engine with all its processes; again is harmless."""
        self.keeper.terminate()
        self.keeper.wait(STOP_S)


@contextlib.contextmanager
def running(
    kind: Kind,
    model: str | Path = "tiny",
    *,
    flags: Sequence[str] = (),
    port: int | None = None,
    deterministic: bool = True,
    env: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """A real engine for the length of the block; installs it and writes its model first if need be.

    `model` is one of `models.NAMES` or a model's folder. `flags` come last, so they win. `deterministic` is
    SGLang's: false leaves out `--enable-deterministic-inference`.
    """
    ensure_installed(kind)
    model_dir = ensure_model(model, kind)
    engine = launch(kind, model_dir, flags=flags, port=port, deterministic=deterministic, env=env or {})
    try:
        wait_until_ready(engine)
        yield engine
    finally:
        engine.stop()


def launch(
    kind: Kind,
    model_dir: Path,
    *,
    flags: Sequence[str],
    port: int | None,
    deterministic: bool,
    env: Mapping[str, str],
) -> Engine:
    """Start the engine's processes under a keeper, without waiting for an answer."""
    port = free_port(port)
    log = home() / "logs" / f"{kind}-{port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = vllm_command(model_dir) if kind == "vllm" else sglang_command(model_dir, deterministic=deterministic)
    keeper = subprocess.Popen(
        [sys.executable, KIT / "keeper.py", str(os.getpid()), log, *command, "--port", str(port), *flags],
        env=environment(kind) | engine_environment(kind) | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    with keeper.stdout as told:
        pid = int(told.readline())
    return Engine(kind, f"http://127.0.0.1:{port}", model_dir, model_dir.name, log, pid, keeper)


def vllm_command(model_dir: Path) -> list[str]:
    """vLLM's server, in float32 and without compilation, with the parsers for the tiny model's markup."""
    reasoning = ["--reasoning-parser", "qwen3"] if thinks(model_dir) else []
    return [
        *(str(venv("vllm") / "bin" / "vllm"), "serve", str(model_dir)),
        *("--served-model-name", model_dir.name, "--host", "127.0.0.1"),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "4096"),
        *("--max-num-seqs", "64", "--max-num-batched-tokens", "4096"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", *reasoning),
        *("--chat-template-content-format", "string", "--enable-scale-out"),
    ]


def sglang_command(model_dir: Path, *, deterministic: bool) -> list[str]:
    """SGLang's server on plain torch attention; without `--sleep-on-idle` an idle one takes a whole core."""
    reasoning = ["--reasoning-parser", "qwen3"] if thinks(model_dir) else []
    seeded = ["--enable-deterministic-inference"] if deterministic else []
    return [
        *(str(python("sglang")), "-m", "sglang.launch_server", "--model-path", str(model_dir)),
        *("--served-model-name", model_dir.name, "--host", "127.0.0.1"),
        *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
        *("--disable-cuda-graph", "--disable-overlap-schedule", "--context-length", "4096"),
        *("--max-total-tokens", "16384", "--max-running-requests", "16", "--mem-fraction-static", "0.3"),
        *("--skip-server-warmup", "--sleep-on-idle", "--tool-call-parser", "qwen25", *reasoning, *seeded),
    ]


def engine_environment(kind: Kind) -> dict[str, str]:
    """The variables that make a server of the engine, beyond those for its interpreter."""
    if kind == "sglang":
        return {"PYTHONPATH": str(KIT / "sglang_cpu"), "SGLANG_USE_CPU_ENGINE": "1"}
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def free_port(wanted: int | None) -> int:
    """The wanted port if nobody has it, else any that is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or ports.free_port()))
        except OSError as error:
            raise EngineDidNotStart(f"port {wanted}: {error.strerror}") from error
        return probe.getsockname()[1]


def wait_until_ready(engine: Engine, wait_s: float = WAIT_S) -> None:
    """Return once the engine answers 200."""
    give_up_at = time.monotonic() + wait_s
    while not answers(engine):
        if not engine.is_alive():
            raise EngineDidNotStart(f"{engine.kind} died, {engine.log} ends with\n{engine.log_tail()}")
        if time.monotonic() > give_up_at:
            raise EngineDidNotStart(
                f"{engine.kind} silent for {wait_s:.0f} s, {engine.log} ends with\n{engine.log_tail()}"
            )
        time.sleep(LOOK_EVERY_S)


def answers(engine: Engine) -> bool:
    """Whether the engine says that it is ready."""
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=ANSWER_S)
    try:
        connection.request("GET", READY_PATH[engine.kind])
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
