"""What the tests know of a harness: how it is pointed at Rollpin, what its tools are called, and what it does.

Everything that is stated here is asserted by the tests, save `notes`; docs/harnesses.md is made of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tests.harnesses.kit.places import NodePackage, Package, PythonPackages

Json = dict[str, Any]
ToolUse = tuple[str, Json]
"""A tool's name, and arguments."""
PROGRAMS = Path(__file__).with_name("programs")

Trouble = Literal["500", "529", "cut", "cut in text", "timeout"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a harness is pointed."""

    base_url: str
    """With its /v1."""
    api_key: str
    timeout_s: int | None = None
    """How long it is to wait for a reply; None for its own default."""

    @property
    def root(self) -> str:
        """The base URL as Anthropic's clients take it."""
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Setup:
    """What makes a harness do one task at an aim."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """By their place in HOME."""
    quiet: Mapping[str, str] = field(default_factory=dict)
    """Variables that point nowhere: they keep a harness from updating, counting or calling home."""


@dataclass(frozen=True, slots=True)
class Harness:
    """One harness."""

    name: str
    title: str
    package: Package
    distribution: str
    """Its name in npm or PyPI."""
    api: Literal["chat", "messages", "responses"]
    prepare: Callable[[Aim, str], Setup]
    """What does a task, where the aim says."""
    shell: Callable[[str], ToolUse] | None = None
    """How its model runs a command; None where it has no tools."""
    finish: Callable[[str], ToolUse] | None = None
    """The tool that ends a task with an answer; None where plain words do."""
    delegate: Callable[[str], ToolUse] | None = None
    """How its model hands a task to another agent; None where it cannot."""
    wait: Callable[[str], ToolUse] | None = None
    """How its model waits for that agent, by what it was told of it; None where it has only to stop talking."""
    words: tuple[str, ...] = ()
    """What its model says to get to see the note where it has no tools, turn by turn."""
    turns: int = 3
    """Calls that the task takes."""
    rewrites: int = 0
    """Of these, calls before which it changed the history, so that they go on from nothing."""
    asks: frozenset[str] = frozenset()
    """The sampling, length and shaping fields that it sends."""
    constrained: frozenset[str] = frozenset()
    """What bends the distribution of its calls, which are then not trained on by default."""
    streams: bool = False
    side_calls: tuple[str, ...] = ()
    """What its calls besides the task's are for."""
    afterwards: tuple[str, ...] = ()
    """What it calls for besides when a task took no tool."""
    marks: frozenset[str] = frozenset()
    """Headers by which it names its session."""
    agent_marks: frozenset[str] = frozenset()
    """Headers that only its sub-agents send."""
    ends_when_told: frozenset[Trouble] = frozenset()
    """After which trouble it ends the task since Rollpin tells of it, and would go on after a wordless break."""
    goes_on: frozenset[Trouble] = frozenset()
    """After which trouble it keeps half a reply and asks for the rest of it; after any other it asks again."""
    time_limit: Literal["headers", "silence", "none"] = "headers"
    """Where its time limit counts: until the reply begins, between its events too, or nowhere, as it has no setting."""
    time_setting: str = ""
    """By which setting that is; programs here have it in their code."""
    wants_outside: frozenset[str] = frozenset()
    """Hosts that it tries to reach besides the base URL, whatever it is told."""
    notes: tuple[str, ...] = ()
    limit_s: float = 240.0
    """How long a task may take, on a machine that is busy with other things."""

    @property
    def version(self) -> str:
        """The version that is tested."""
        package = self.package
        return package.version if isinstance(package, NodePackage) else package.version_of(self.distribution)


def python_program(package: PythonPackages, program: str) -> tuple[str, ...]:
    """The command that runs one of the programs here."""
    return str(package.program), str(PROGRAMS / program)


def openai_variables(aim: Aim) -> dict[str, str]:
    """What most clients of OpenAI's APIs read."""
    return {"OPENAI_BASE_URL": aim.base_url, "OPENAI_API_KEY": aim.api_key}


def time_limit(aim: Aim) -> dict[str, str]:
    """What the programs here take for their client's time limit."""
    return {} if aim.timeout_s is None else {"TIMEOUT_S": str(aim.timeout_s)}


def bash(command: str) -> ToolUse:
    """The commonest tool there is."""
    return "bash", {"command": command}
