"""Harnesses that are libraries: a small program of each, the same for all."""

from functools import partial

from tests.harnesses.harness import Aim, Harness, Setup, bash, openai_variables, python_program, time_limit
from tests.harnesses.kit.packages import OPENHANDS, SDKS
from tests.harnesses.kit.places import PythonPackages

QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "PYTHONUNBUFFERED": "1",
}


def run(program: str, aim: Aim, task: str, package: PythonPackages = SDKS, **more: str) -> Setup:
    """A program that reads OpenAI's variables."""
    env = openai_variables(aim) | more | time_limit(aim)
    return Setup((*python_program(package, program), task), env, quiet=QUIET)


def run_anthropic(aim: Aim, task: str) -> Setup:
    """The one that reads Anthropic's."""
    variables = {"ANTHROPIC_BASE_URL": aim.root, "ANTHROPIC_API_KEY": aim.api_key}
    return Setup((*python_program(SDKS, "anthropic_sdk.py"), task), variables | time_limit(aim), quiet=QUIET)


OPENAI_SDK = Harness(
    name="openai-sdk",
    title="OpenAI SDK",
    package=SDKS,
    distribution="openai",
    api="chat",
    prepare=partial(run, "openai_sdk.py"),
    shell=bash,
)

ANTHROPIC_SDK = Harness(
    name="anthropic-sdk",
    title="Anthropic SDK",
    package=SDKS,
    distribution="anthropic",
    api="messages",
    prepare=run_anthropic,
    shell=bash,
    asks=frozenset({"max_tokens"}),
)

OPENAI_AGENTS = Harness(
    name="openai-agents",
    title="OpenAI Agents SDK, chat",
    package=SDKS,
    distribution="openai-agents",
    api="chat",
    prepare=partial(run, "openai_agents.py"),
    shell=bash,
    delegate=lambda task: ("ask_reader", {"input": task}),
    constrained=frozenset({"tools.strict"}),
)

OPENAI_AGENTS_RESPONSES = Harness(
    name="openai-agents-responses",
    title="OpenAI Agents SDK, Responses",
    package=SDKS,
    distribution="openai-agents",
    api="responses",
    prepare=partial(run, "openai_agents.py", API="responses"),
    shell=bash,
    delegate=lambda task: ("ask_reader", {"input": task}),
    constrained=frozenset({"tools.strict"}),
)

LANGCHAIN = Harness(
    name="langchain-openai",
    title="LangChain",
    package=SDKS,
    distribution="langchain-openai",
    api="chat",
    prepare=partial(run, "langchain_agent.py"),
    shell=bash,
    delegate=lambda task: ("ask_reader", {"question": task}),
)

PYDANTIC_AI = Harness(
    name="pydantic-ai",
    title="Pydantic AI",
    package=SDKS,
    distribution="pydantic-ai-slim",
    api="chat",
    prepare=partial(run, "pydantic_agent.py"),
    shell=bash,
    delegate=lambda task: ("ask_reader", {"question": task}),
    asks=frozenset({"tool_choice"}),
    constrained=frozenset({"tools.strict"}),
)

SMOLAGENTS = Harness(
    name="smolagents",
    title="smolagents",
    package=SDKS,
    distribution="smolagents",
    api="chat",
    prepare=partial(run, "smolagents_agent.py"),
    shell=bash,
    finish=lambda answer: ("final_answer", {"answer": answer}),
    delegate=lambda task: ("reader", {"task": task, "additional_args": {}}),
    asks=frozenset({"stop", "tool_choice"}),
    constrained=frozenset({"tool_choice"}),
    notes=(
        "It tells tool calls as text and results in the user's name; parents are found by call ids inside that text.",
    ),
)

OPENHANDS_SDK = Harness(
    name="openhands-sdk",
    title="OpenHands SDK",
    package=OPENHANDS,
    distribution="openhands-sdk",
    api="chat",
    prepare=partial(run, "openhands_agent.py", package=OPENHANDS),
    shell=lambda command: ("terminal", {"command": command}),
    finish=lambda answer: ("finish", {"message": answer}),
    delegate=lambda task: ("task", {"description": "Look", "prompt": task, "subagent_type": "bash-runner"}),
    side_calls=("title",),
    marks=frozenset({"x-litellm-session-id"}),
)
