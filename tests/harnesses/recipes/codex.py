"""Codex: the Responses API, and sub-agents that share their root's session."""

import re

from tests.harnesses.harness import Aim, Harness, Setup
from tests.harnesses.kit.packages import CODEX

AGENT_ID = re.compile(r'"agent_id": ?"([^"]+)"')
CONFIG = """\
model = "policy"
model_provider = "rollpin"
check_for_update_on_startup = false

[model_providers.rollpin]
name = "Rollpin"
base_url = "{base_url}"
env_key = "ROLLPIN_KEY"
wire_api = "responses"
{limit}
[analytics]
enabled = false

[features]
plugins = false
"""


def codex(aim: Aim, task: str) -> Setup:
    """A provider of its own in the configuration."""
    limit = "" if aim.timeout_s is None else f"stream_idle_timeout_ms = {aim.timeout_s * 1000}\n"
    config = CONFIG.format(base_url=aim.base_url, limit=limit)
    command = (str(CODEX.program), "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", task)
    return Setup(command, {"ROLLPIN_KEY": aim.api_key}, {".codex/config.toml": config})


CODEX_CLI = Harness(
    name="codex",
    title="Codex",
    package=CODEX,
    distribution="@openai/codex",
    api="responses",
    prepare=codex,
    shell=lambda command: ("exec_command", {"cmd": command}),
    delegate=lambda task: ("spawn_agent", {"message": task}),
    wait=lambda told: ("wait_agent", {"targets": AGENT_ID.findall(told)}),
    streams=True,
    time_limit="silence",
    time_setting="model_providers.rollpin.stream_idle_timeout_ms",
    asks=frozenset({"tool_choice"}),
    marks=frozenset({"session-id", "thread-id"}),
    agent_marks=frozenset({"x-codex-parent-thread-id", "x-openai-subagent"}),
)
