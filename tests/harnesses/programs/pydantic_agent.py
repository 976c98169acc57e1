"""An agent of Pydantic AI."""

import os
import subprocess
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

# Reads OPENAI_BASE_URL and OPENAI_API_KEY.
client = AsyncOpenAI(timeout=float(os.environ.get("TIMEOUT_S", "600")))
model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))

agent = Agent(model, instructions="Use bash.")
reader = Agent(model, instructions="Read.")


@agent.tool_plain
@reader.tool_plain
def bash(command: str) -> str:
    """Run a command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


@agent.tool_plain
async def ask_reader(question: str) -> str:
    """Ask another agent."""
    return (await reader.run(question)).output


print(agent.run_sync(sys.argv[1]).output)
