"""All harnesses, in the order of the table."""

from tests.harnesses.harness import Harness
from tests.harnesses.recipes import claude_code, codex, programs, terminal

ROSTER: tuple[Harness, ...] = (
    codex.CODEX_CLI,
    claude_code.CLAUDE,
    terminal.MINI_SWE,
    terminal.OPENCODE_CLI,
    terminal.QWEN,
    terminal.CLINE_CLI,
    terminal.PI_CLI,
    terminal.AIDER_CLI,
    programs.OPENAI_SDK,
    programs.ANTHROPIC_SDK,
    programs.OPENAI_AGENTS,
    programs.OPENAI_AGENTS_RESPONSES,
    programs.LANGCHAIN,
    programs.PYDANTIC_AI,
    programs.SMOLAGENTS,
    programs.OPENHANDS_SDK,
)

IN_CI = frozenset({"codex", "claude-code", "opencode", "mini-swe-agent", "openai-sdk", "anthropic-sdk"})
"""Names of those that CI has time for."""
