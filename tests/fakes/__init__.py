"""The simulated engine of `proxy/sim`, under the names that tests know it by.

    with FakeEngine("vllm") as engine:
        engine.script(Say("hello"), Fault.cut(after_events=3))
        httpx.post(engine.url + "/v1/chat/completions", json={...})

`python -m tests.fakes --kind vllm` runs one alone.
"""

from proxy.sim import Fault, Received, Say, ToolSay
from proxy.sim import SimEngine as FakeEngine

__all__ = ["FakeEngine", "Fault", "Received", "Say", "ToolSay"]
