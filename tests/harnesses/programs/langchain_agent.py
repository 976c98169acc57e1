"""An agent of LangChain on ChatOpenAI."""

import os
import subprocess
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def bash(command: str) -> str:
    """Run a command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


@tool
def ask_reader(question: str) -> str:
    """Ask another agent."""
    return reader.invoke({"messages": [("user", question)]})["messages"][-1].content


# Reads OPENAI_BASE_URL and OPENAI_API_KEY.
model = ChatOpenAI(model="policy", timeout=float(os.environ.get("TIMEOUT_S", "600")))

reader = create_agent(model, [bash], system_prompt="Read.")
agent = create_agent(model, [bash, ask_reader], system_prompt="Use bash.")
print(agent.invoke({"messages": [("user", sys.argv[1])]})["messages"][-1].content)
