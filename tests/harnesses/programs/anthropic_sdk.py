"""A loop around the Anthropic SDK."""

import os
import subprocess
import sys

import anthropic

# Reads ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
client = anthropic.Anthropic(timeout=float(os.environ.get("TIMEOUT_S", "600")))

schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
tools = [{"name": "bash", "description": "Run a command.", "input_schema": schema}]
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    reply = client.messages.create(model="policy", max_tokens=2000, messages=messages, tools=tools)
    messages.append({"role": "assistant", "content": reply.content})
    results = []
    for block in reply.content:
        if block.type == "tool_use":
            done = subprocess.run(block.input["command"], shell=True, capture_output=True, text=True)
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": done.stdout})
    if not results:
        break
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in reply.content if block.type == "text"))
