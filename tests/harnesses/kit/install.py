"""Installs harnesses out of npm and PyPI, each once; what was interrupted is made anew.

npm's and pip's own configuration decide where packages come from. Installation scripts of npm packages are not run:
none of these needs one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.harnesses.kit.places import NODE, NodePackage, Package, PythonPackages, node_folder, python_of_at_least
from tests.live.engines.places import making

COMPLETE = ".complete"
"""Holds what was installed; written last, so that its absence tells an interrupted installation."""
AT_ONCE = 2


class InstallError(Exception):
    """A harness could not be installed."""


def ensure_all(packages: Iterable[Package]) -> None:
    """Install whatever of these is missing, Node first and the others two at a time."""
    wanted = list(dict.fromkeys(packages))
    if any(isinstance(package, NodePackage) for package in wanted):
        ensure_installed(NODE)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(ensure_installed, wanted))


def ensure_installed(package: Package) -> Path:
    """Install one package unless it already is, and return its folder."""
    with making(package.folder):
        if not is_installed(package):
            print(f"installing {package.folder.name}", file=sys.stderr, flush=True)
            shutil.rmtree(package.folder, ignore_errors=True)
            package.folder.mkdir(parents=True)
            install_node(package) if isinstance(package, NodePackage) else install_python(package)
            (package.folder / COMPLETE).write_text(contents(package))
    return package.folder


def is_installed(package: Package) -> bool:
    """Whether an installation of exactly this ran to its end."""
    mark = package.folder / COMPLETE
    return mark.is_file() and mark.read_text() == contents(package)


def contents(package: Package) -> str:
    """What the package consists of."""
    return f"{package.name}@{package.version}" if isinstance(package, NodePackage) else package.lock.read_text()


def install_node(package: NodePackage) -> None:
    """One package with what it needs, in a folder of its own."""
    (package.folder / "package.json").write_text('{"private": true}')
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error")
    path = os.pathsep.join([str(node_folder()), os.environ["PATH"]])
    run(["npm", "install", *quiet, f"{package.name}@{package.version}"], package.folder, {"PATH": path})


def install_python(package: PythonPackages) -> None:
    """The locked packages and no others; with uv where there is one, which is faster."""
    python = python_of_at_least(package.needs)
    if python is None:
        raise InstallError(f"{package.name} needs Python {'.'.join(map(str, package.needs))} or newer; none was found")
    run([str(python), "-m", "venv", str(package.folder)], package.folder.parent)
    # Compiling all of litellm takes a minute, and most of it is never imported.
    with_pip = [str(package.program), "-m", "pip", "install", "--no-compile"]
    uv = shutil.which("uv")
    pip = [uv, "pip", "install", "--python", str(package.program)] if uv else with_pip
    run([*pip, "--quiet", "--no-deps", "--requirement", str(package.lock)], package.folder)


def run(command: list[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command that must succeed."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | (env or {}), capture_output=True, text=True, check=False
        )
    except FileNotFoundError as missing:
        raise InstallError(f"there is no command {command[0]}: {missing}") from missing
    if done.returncode:
        raise InstallError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
