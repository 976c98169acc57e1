"""An agent of the OpenHands SDK."""

import os
import sys

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.preset.default import register_builtins_agents
from openhands.tools.task import TaskToolSet
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

# Reads OPENAI_BASE_URL and OPENAI_API_KEY.
llm = LLM(
    model="openai/policy",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=SecretStr(os.environ["OPENAI_API_KEY"]),
    usage_id="agent",
    timeout=int(os.environ.get("TIMEOUT_S", "300")),
)

register_builtins_agents(enable_browser=False)
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=TaskToolSet.name)])
conversation = Conversation(agent=agent, workspace=".")
conversation.send_message(sys.argv[1])
conversation.run()
print(conversation.generate_title())
