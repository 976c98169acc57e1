"""Claude Code: the Messages API, with sub-agents that run beside their parent."""

from tests.harnesses.harness import Aim, Harness, Setup
from tests.harnesses.kit.packages import CLAUDE_CODE

QUIET = {
    # Else what it wants from the outside depends on how long it runs.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
}


def claude_code(aim: Aim, task: str) -> Setup:
    """Variables alone; its base URL has no /v1."""
    env = {"ANTHROPIC_BASE_URL": aim.root, "ANTHROPIC_API_KEY": aim.api_key, "ANTHROPIC_MODEL": "policy"}
    limit = {} if aim.timeout_s is None else {"API_TIMEOUT_MS": str(aim.timeout_s * 1000)}
    command = (str(CLAUDE_CODE.program), "-p", task, "--allowedTools", "Bash", "Agent")
    return Setup(command, env | limit, quiet=QUIET)


CLAUDE = Harness(
    name="claude-code",
    title="Claude Code",
    package=CLAUDE_CODE,
    distribution="@anthropic-ai/claude-code",
    api="messages",
    prepare=claude_code,
    shell=lambda command: ("Bash", {"command": command, "description": "Runs a command"}),
    delegate=lambda task: ("Agent", {"description": "Look", "prompt": task, "subagent_type": "general-purpose"}),
    streams=True,
    time_setting="API_TIMEOUT_MS",
    asks=frozenset({"max_tokens"}),
    marks=frozenset({"x-claude-code-session-id"}),
    agent_marks=frozenset({"x-claude-code-agent-id"}),
    notes=(
        "The tests set `CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC`; without it `-p` makes no other model call either.",
    ),
)
