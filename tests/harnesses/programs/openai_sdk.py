"""A loop around the OpenAI SDK."""

import json
import os
import subprocess
import sys

import openai

# Reads OPENAI_BASE_URL and OPENAI_API_KEY.
client = openai.OpenAI(timeout=float(os.environ.get("TIMEOUT_S", "600")))

parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    message = client.chat.completions.create(model="policy", messages=messages, tools=tools).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        command = json.loads(call.function.arguments)["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": done.stdout})
print(message.content)
