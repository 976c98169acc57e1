"""All harnesses, in the order of the table."""

from tests.harnesses.harness import Harness
from tests.harnesses.recipes import codex, programs, terminal

ROSTER: tuple[Harness, ...] = (
    codex.CODEX_CLI,
    terminal.MINI_SWE,
    terminal.OPENCODE_CLI,
    terminal.QWEN,
    terminal.CLINE_CLI,
    terminal.PI_CLI,
    terminal.AIDER_CLI,
    programs.OPENAI_SDK,
    programs.OPENAI_AGENTS,
    programs.OPENAI_AGENTS_RESPONSES,
    programs.LANGCHAIN,
    programs.PYDANTIC_AI,
    programs.SMOLAGENTS,
    programs.OPENHANDS_SDK,
)

IN_CI = frozenset({"codex", "opencode", "mini-swe-agent", "openai-sdk"})
"""Names of those that CI has time for."""
