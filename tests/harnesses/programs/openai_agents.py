"""An agent of the OpenAI Agents SDK."""

import os
import subprocess
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


def bash(command: str) -> str:
    """Run a command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


# Reads OPENAI_BASE_URL and OPENAI_API_KEY.
client = AsyncOpenAI(timeout=float(os.environ.get("TIMEOUT_S", "600")))
kind = OpenAIResponsesModel if os.environ.get("API") == "responses" else OpenAIChatCompletionsModel
model = kind("policy", openai_client=client)
set_tracing_disabled(True)

reader = Agent(name="Reader", instructions="Read.", tools=[function_tool(bash)], model=model)
ask_reader = reader.as_tool(tool_name="ask_reader", tool_description="Ask another agent.")
agent = Agent(name="Main", instructions="Use bash.", tools=[function_tool(bash), ask_reader], model=model)
print(Runner.run_sync(agent, sys.argv[1]).final_output)
