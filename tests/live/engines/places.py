"""Where the kit keeps what it makes: one virtual environment per engine, the models and the logs."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["vllm", "sglang"]

KINDS: tuple[Kind, ...] = get_args(Kind)
VERSIONS: dict[Kind, str] = {"vllm": "0.32.0", "sglang": "0.5.23"}
KIT = Path(__file__).resolve().parent


def home() -> Path:
    """The folder of everything: $ENGINES_HOME, or one in the user's cache."""
    return Path(os.environ.get("ENGINES_HOME") or "~/.cache/rollpin/engines").expanduser().resolve()


def venv(kind: Kind) -> Path:
    """The engine's own virtual environment."""
    return home() / f"{kind}-{VERSIONS[kind]}"


def python(kind: Kind) -> Path:
    """The interpreter that has the engine, torch and transformers."""
    return venv(kind) / "bin" / "python"


def site_packages(kind: Kind) -> Path:
    """Where the engine's environment keeps its packages."""
    return next((venv(kind) / "lib").glob("python3.*/site-packages"))


def is_installed(kind: Kind) -> bool:
    """Whether an installation ran to its end."""
    return (venv(kind) / ".complete").is_file()


def environment(kind: Kind) -> dict[str, str]:
    """The variables for any program run by the engine's interpreter: offline, and none of our own's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "COVERAGE"))}
    own = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    openmp = venv(kind) / "lib" / "libiomp5.so"
    if kind == "vllm" and openmp.exists():
        # vLLM's CPU kernels are built against Intel's OpenMP; torch would load GNU's first.
        own["LD_PRELOAD"] = str(openmp)
    return {"OMP_NUM_THREADS": "1"} | kept | own


def run_python(kind: Kind, *arguments: str | Path, text: str | None = None, path: Path | None = None) -> str:
    """Run the engine's interpreter to its end and return what it printed."""
    env = environment(kind) | ({"PYTHONPATH": str(path)} if path else {})
    command = [str(python(kind)), *map(str, arguments)]
    done = subprocess.run(command, input=text, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


@contextlib.contextmanager
def making(target: Path) -> Iterator[None]:
    """Hold the only right to make `target`, whichever process asks."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def filling(target: Path) -> Iterator[Path]:
    """Offer an empty folder that becomes `target` only if the block ends well."""
    draft = target.with_name(target.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
