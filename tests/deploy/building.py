"""What a container engine would do with the Dockerfile, done in a folder: its COPY, ENV and RUN, step by step.

The folder stands for the root of every stage. Paths of the image are led into it; the steps that change the machine's
users are not run, and a test reads them instead. The base image's Python is the one that runs the tests.

Installing from a lock takes pip half a minute and an index. Instead the same versions can be copied from where the
tests run: `make setup` installed them by the same hashes, as a test makes sure.
"""

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Where the Dockerfile puts things; elsewhere it has no business.
ROOTS = re.compile(r"(?<![\w.:/-])/(?=(?:opt|src|data|run|etc/rollpin|usr/local/bin)\b)")
# Would be run as root and change this machine.
CHANGES_USERS = re.compile(r"\b(groupadd|useradd)\b")
PIN = re.compile(r"^([a-z0-9._-]+)==([^ \\]+)(?: ; (.*?))? \\$", re.MULTILINE)
INSTALLS_LOCK = re.compile(r"(?P<venv>\S+)/bin/pip (?:--python (?P<other>\S+)/bin/python )?install .*-r (?P<lock>\S+)")
# The machine's package cache may help, and what belongs to the test run must not.
NOT_PASSED = re.compile(r"ROLLPIN_|PYTHON|VIRTUAL_ENV$|UV_|COV_|PYTEST_")


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile."""

    stage: int
    name: str
    text: str

    def words(self) -> list[str]:
        """Its arguments, of either form."""
        return list(json.loads(self.text)) if self.text.startswith("[") else self.text.split()


def steps_of(dockerfile: Path) -> list[Step]:
    """The instructions, with continued lines joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found, stage = list[Step](), -1
    for line in filter(None, (line.strip() for line in joined.splitlines())):
        name, _, text = line.partition(" ")
        stage += name == "FROM"
        found.append(Step(stage, name, text.strip()))
    return found


def context_of(folder: Path) -> list[Path]:
    """What .dockerignore lets through, relative to the folder; git's own files and caches are never looked at."""
    rules = [line for line in (folder / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    return [path for path in _files(folder) if not _is_ignored(path, rules)]


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name).relative_to(folder) for name in files)


def _is_ignored(path: Path, rules: list[str]) -> bool:
    """The last rule that fits a path, or a folder above it, decides."""
    names = [path.as_posix(), *(parent.as_posix() for parent in path.parents if parent != Path())]
    ignored = False
    for rule in rules:
        if any(_pattern(rule.removeprefix("!")).fullmatch(name) for name in names):
            ignored = not rule.startswith("!")
    return ignored


@functools.cache
def _pattern(rule: str) -> re.Pattern[str]:
    parts = [{"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*)", rule)]
    return re.compile("".join(parts))


@dataclass(slots=True)
class Image:
    """A folder that holds what the image would hold."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    """What ENV set in the last stage."""
    workdir: str = "/"
    last: dict[str, Step] = field(default_factory=dict)
    """The last instruction of each name in the last stage."""

    def inside(self, text: str) -> str:
        """A path of the image, or a command line with such paths, as it reads out here."""
        return ROOTS.sub(f"{self.root}/", text)

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process in the image."""
        outer = {name: value for name, value in os.environ.items() if not NOT_PASSED.match(name)}
        ours = {name: self.inside(value) for name, value in self.env.items()}
        path = f"{self.root}/usr/local/bin:{self.root}/python:/usr/bin:/bin"
        ours["PATH"] = ours.get("PATH", "$PATH").replace("$PATH", path)
        # The cache of a build stage is dropped with it in any case; here it saves a download.
        ours.pop("PIP_NO_CACHE_DIR", None)
        return {**outer, **ours, **more}

    def working_folder(self) -> Path:
        folder = Path(self.inside(self.workdir))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run(self, command: str | list[str], **more: str) -> subprocess.CompletedProcess[str]:
        """A command as RUN, ENTRYPOINT or a probe would run it; asserts nothing."""
        arguments = ["/bin/sh", "-c", self.inside(command)] if isinstance(command, str) else command
        return subprocess.run(
            arguments,
            env=self.environment(**more),
            cwd=self.working_folder(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def build(context: Path, root: Path, *, by_pip: bool) -> Image:
    """Every step, in order; a RUN that fails is an AssertionError with its output.

    `by_pip` installs locks as the Dockerfile says; else their packages are copied from here.
    """
    image = Image(root)
    _give_python(root)
    files = context_of(context)
    stage = -1
    for step in steps_of(context / "Dockerfile"):
        if step.stage != stage:
            stage, image.env, image.workdir, image.last = step.stage, {}, "/", {}
        image.last[step.name] = step
        match step.name:
            case "ENV":
                image.env |= dict(pair.split("=", 1) for pair in step.text.split())
            case "WORKDIR":
                image.workdir = step.text
            case "COPY":
                _copy(step, files, context, image)
            case "RUN" if not CHANGES_USERS.search(step.text):
                for command in step.text.split(" && "):
                    lock = INSTALLS_LOCK.search(command)
                    if lock and not by_pip:
                        _copy_packages(image, lock["other"] or lock["venv"], lock["lock"])
                    else:
                        _run(image, command)
    return image


def _run(image: Image, command: str) -> None:
    done = image.run(command)
    assert done.returncode == 0, f"RUN {command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def _copy_packages(image: Image, venv: str, lock: str) -> None:
    """The locked packages, and no other, from the environment of the tests."""
    (into,) = Path(image.inside(venv)).glob("lib/python*/site-packages")
    for name, version, marker in PIN.findall((image.working_folder() / lock).read_text()):
        if marker == "sys_platform == 'win32'":
            continue
        found = importlib.metadata.distribution(name)
        assert found.version == version, f"{lock} pins {name} {version}, and here is {found.version}: make setup"
        for file in found.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                (into / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), into / file)


def _give_python(root: Path) -> None:
    """The base image's `python`."""
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (root / "python").mkdir(parents=True)
    for name in ("python", "python3"):
        (root / "python" / name).symlink_to(base)


def _copy(step: Step, files: list[Path], context: Path, image: Image) -> None:
    flags = [word for word in step.words() if word.startswith("--")]
    *sources, target = [word for word in step.words() if not word.startswith("--")]
    if any(flag.startswith("--from=") for flag in flags):
        # All stages share one root: what is copied across must keep its place, as a virtual environment has to.
        assert sources == [target], step.text
        return
    into = Path(image.inside(target)) if target.startswith("/") else image.working_folder() / target
    for source in sources:
        copied = [file for file in files if file == Path(source) or Path(source) in file.parents]
        assert copied, f"COPY {source}: nothing in the context"
        for file in copied:
            within = file.relative_to(source).as_posix()
            whole_folder = within != "."
            is_folder = whole_folder or len(sources) > 1 or target.endswith("/")
            place = into / within if whole_folder else into / file.name if is_folder else into
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(context / file, place)
            if "--chmod=0755" in flags:
                place.chmod(0o755)
