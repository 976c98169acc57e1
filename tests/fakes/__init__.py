"""Scripted engines on real sockets: a vLLM and an SGLang that say and break what a test wants.

    with FakeEngine("vllm") as engine:
        engine.script(Say("hello"), Fault.cut(after_events=3))
        httpx.post(engine.url + "/v1/chat/completions", json={...})

They speak the wire shapes of vLLM 0.32.0 and SGLang 0.5.23. `python -m tests.fakes --kind vllm` runs one alone.
"""

from tests.fakes.engine import Received
from tests.fakes.script import Fault, Say, ToolSay
from tests.fakes.server import FakeEngine

__all__ = ["FakeEngine", "Fault", "Received", "Say", "ToolSay"]
