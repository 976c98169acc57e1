"""Harnesses that are started from a shell, save those with a file of their own."""

import json

from tests.harnesses.harness import Aim, Harness, Setup, bash, openai_variables
from tests.harnesses.kit.packages import AIDER, CLINE, MINI_SWE_AGENT, OPENCODE, PI, QWEN_CODE


def mini_swe_agent(aim: Aim, task: str) -> Setup:
    """Through litellm, which reads OpenAI's variables."""
    # Without these two it asks for its first setup, and ends at the first reply of a model that it has no price of.
    needed = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
    quiet = {"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    limit = () if aim.timeout_s is None else ("-c", "mini.yaml", "-c", f"model.model_kwargs.timeout={aim.timeout_s}")
    command = ("mini", "--model", "openai/policy", "--yolo", "--exit-immediately", *limit, "--task", task)
    program = str(MINI_SWE_AGENT.folder / "bin" / command[0])
    return Setup((program, *command[1:]), openai_variables(aim) | needed, quiet=quiet)


def opencode(aim: Aim, task: str) -> Setup:
    """A provider of its own in the configuration."""
    limit = {} if aim.timeout_s is None else {"headerTimeout": aim.timeout_s * 1000}
    model = {"name": "policy", "tool_call": True, "reasoning": True, "limit": {"context": 128000, "output": 16000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Rollpin",
        "options": {"baseURL": aim.base_url, "apiKey": aim.api_key, **limit},
        "models": {"policy": model},
    }
    config = {
        "model": "rollpin/policy",
        "provider": {"rollpin": provider},
        "permission": {"bash": "allow", "edit": "allow"},
        "autoupdate": False,
        "share": "disabled",
    }
    quiet = {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }
    files = {".config/opencode/opencode.json": json.dumps(config, indent=2)}
    return Setup((str(OPENCODE.program), "run", task), files=files, quiet=quiet)


def qwen_code(aim: Aim, task: str) -> Setup:
    """OpenAI's variables, and the settings that keep it quiet."""
    limit = {} if aim.timeout_s is None else {"generationConfig": {"timeout": aim.timeout_s * 1000}}
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": "policy", **limit},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
    }
    command = (str(QWEN_CODE.program), "--auth-type", "openai", "--approval-mode", "yolo", "-p", task)
    env = openai_variables(aim) | {"OPENAI_MODEL": "policy"}
    files = {".qwen/settings.json": json.dumps(settings, indent=2)}
    return Setup(command, env, files, quiet={"QWEN_CODE_NO_RELAUNCH": "1"})


def cline(aim: Aim, task: str) -> Setup:
    """A provider's settings, as `cline auth` would write them."""
    settings = {"provider": "openai-compatible", "apiKey": aim.api_key, "model": "policy", "baseUrl": aim.base_url}
    providers = {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {
            "openai-compatible": {
                "settings": settings,
                "updatedAt": "2026-01-01T00:00:00.000Z",
                "tokenSource": "manual",
            }
        },
    }
    files = {
        ".cline/data/settings/providers.json": json.dumps(providers, indent=2),
        ".cline/data/settings/global-settings.json": json.dumps({"telemetryOptOut": True, "autoUpdateEnabled": False}),
    }
    return Setup((str(CLINE.program), "-P", "openai-compatible", "-m", "policy", task), {}, files)


def aider(aim: Aim, task: str) -> Setup:
    """Through litellm, with a test command whose output goes back to the model."""
    limit = () if aim.timeout_s is None else ("--timeout", str(aim.timeout_s))
    command = (
        *(str(AIDER.folder / "bin" / "aider"), "--model", "openai/policy", *limit, "--edit-format", "whole"),
        *("--auto-test", "--test-cmd", "cat note.txt; exit 1", "--message", task, "answer.txt"),
        *("--yes-always", "--no-pretty", "--no-gitignore"),
        *("--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--analytics-disable"),
    )
    variables = {"OPENAI_API_BASE": aim.base_url, "OPENAI_API_KEY": aim.api_key}
    return Setup(command, variables, quiet={"LITELLM_LOCAL_MODEL_COST_MAP": "True"})


def pi(aim: Aim, task: str) -> Setup:
    """A provider of its own among its models."""
    free = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    model = {
        "id": "policy",
        "name": "policy",
        "reasoning": False,
        "input": ["text"],
        "contextWindow": 128000,
        "maxTokens": 32000,
        "cost": free,
    }
    provider = {"baseUrl": aim.base_url, "api": "openai-completions", "apiKey": aim.api_key, "models": [model]}
    files = {".pi/agent/models.json": json.dumps({"providers": {"rollpin": provider}}, indent=2)}
    if aim.timeout_s is not None:
        limit = {"retry": {"provider": {"timeoutMs": aim.timeout_s * 1000}}}
        files[".pi/agent/settings.json"] = json.dumps(limit, indent=2)
    return Setup(
        (str(PI.program), "-p", "--provider", "rollpin", "--model", "policy", task),
        files=files,
        quiet={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    )


MINI_SWE = Harness(
    name="mini-swe-agent",
    title="mini-SWE-agent",
    package=MINI_SWE_AGENT,
    distribution="mini-swe-agent",
    api="chat",
    prepare=mini_swe_agent,
    shell=bash,
    finish=lambda _answer: bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    time_setting="model.model_kwargs.timeout",
    notes=(
        "Its task ends by a command: after plain words it asks a few times more and gives up (`RepeatedFormatError`).",
    ),
)

OPENCODE_CLI = Harness(
    name="opencode",
    title="opencode",
    package=OPENCODE,
    distribution="opencode-ai",
    api="chat",
    prepare=opencode,
    shell=lambda command: ("bash", {"command": command, "description": "Runs a command"}),
    delegate=lambda task: ("task", {"description": "Look", "prompt": task, "subagent_type": "general"}),
    streams=True,
    asks=frozenset({"max_tokens", "tool_choice"}),
    side_calls=("title",),
    marks=frozenset({"x-session-id"}),
    agent_marks=frozenset({"x-parent-session-id"}),
    time_setting="provider.rollpin.options.headerTimeout",
    wants_outside=frozenset({"registry.npmjs.org:443"}),
)

QWEN = Harness(
    name="qwen-code",
    title="Qwen Code",
    package=QWEN_CODE,
    distribution="@qwen-code/qwen-code",
    api="chat",
    prepare=qwen_code,
    # A command that ends at once now and then loses its output on Qwen Code's terminal.
    shell=lambda command: ("run_shell_command", {"command": f"{command}; sleep 0.5", "is_background": False}),
    delegate=lambda task: ("agent", {"description": "Look", "prompt": task, "subagent_type": "general-purpose"}),
    streams=True,
    afterwards=("memory",),
    time_setting="model.generationConfig.timeout",
    goes_on=frozenset({"cut in text"}),
    notes=(
        "After a half that it kept, later turns tell both halves as one reply, which no call made.",
        "They are joined by their tokens to the call before the break; the rest is a branch of its own, counted once.",
        "With [`hold_streams`](apis.md#held-streams) there is no half to keep.",
    ),
    asks=frozenset({"max_tokens"}),
)

CLINE_CLI = Harness(
    name="cline",
    title="Cline",
    package=CLINE,
    distribution="cline",
    api="chat",
    prepare=cline,
    shell=lambda command: ("run_commands", {"commands": [command]}),
    delegate=lambda task: ("spawn_agent", {"systemPrompt": "Look.", "task": task}),
    streams=True,
    asks=frozenset({"tool_choice"}),
    ends_when_told=frozenset({"cut", "cut in text"}),
    time_limit="none",
    wants_outside=frozenset({"data.cline.bot:443"}),
    notes=(
        "Asks again only where it saw nothing of a reply, no word and no thought, and the error says that it passes.",
        "It knows that by the status (408, 409, 425, 429, 5xx), or by `provider returned error` in the message.",
        "Its provider setting `timeout` does nothing here; after 300 s without a byte, Bun's limit, it ends its task.",
        "Rollpin's signs of life keep that from happening: an engine was silent for 340 s, and the task went on.",
    ),
)

PI_CLI = Harness(
    name="pi",
    title="pi",
    package=PI,
    distribution="@mariozechner/pi-coding-agent",
    api="chat",
    prepare=pi,
    shell=bash,
    streams=True,
    asks=frozenset({"max_completion_tokens"}),
    time_setting="retry.provider.timeoutMs",
    notes=(
        "Where its context is full it asks for a summary, without tools: a branch of its own, labelled `maybe_side`.",
    ),
)

AIDER_CLI = Harness(
    name="aider",
    title="Aider",
    package=AIDER,
    distribution="aider-chat",
    api="chat",
    prepare=aider,
    words=("I begin a file.\n\nanswer.txt\n```\nnot yet\n```",),
    turns=2,
    rewrites=1,
    side_calls=("commit message", "commit message"),
    time_setting="--timeout",
    streams=True,
    asks=frozenset({"temperature"}),
    wants_outside=frozenset({"raw.githubusercontent.com:443"}),
    notes=(
        "It offers the model no tools: it reads edits out of the text, and sends back what the test command prints.",
        "Each turn it moves the files in the chat, and what reminds of its rules, behind the replies so far.",
        "It also answers some of its own messages (`Ok.`); so with every edit format.",
        "Asks for a commit message with each edit, in a Git repository, which it makes where there is none.",
        "`--no-auto-commits` keeps it from both.",
    ),
)
