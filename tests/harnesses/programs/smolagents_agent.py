"""A tool-calling agent of smolagents."""

import os
import subprocess
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def bash(command: str) -> str:
    """Run a command.

    Args:
        command: the command
    """
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


# Reads OPENAI_BASE_URL and OPENAI_API_KEY.
model = OpenAIServerModel(
    model_id="policy",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    client_kwargs={"timeout": float(os.environ.get("TIMEOUT_S", "600"))},
)

steps = int(os.environ.get("MAX_STEPS", "6"))
reader = ToolCallingAgent(tools=[bash], model=model, name="reader", description="Reads files.", max_steps=steps)
agent = ToolCallingAgent(tools=[bash], model=model, managed_agents=[reader], max_steps=steps)
print(agent.run(sys.argv[1]))
