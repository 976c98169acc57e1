"""The embedded simulated engine: a vLLM and an SGLang on real sockets, without a model and without a GPU.

    with SimEngine("vllm") as engine:
        engine.script(Say("hello"), Fault.cut(after_events=3))
        httpx.post(engine.url + "/v1/chat/completions", json={...})

It speaks the wire shapes of vLLM 0.32.0 and SGLang 0.5.23, and says everywhere that it is a simulation.
`rollpin sim --kind vllm` runs one alone. docs/sim.md tells what is true to the real engines and what is not.
"""

from proxy.sim.engine import Received
from proxy.sim.script import Fault, Say, ToolSay
from proxy.sim.server import SimEngine

__all__ = ["Fault", "Received", "Say", "SimEngine", "ToolSay"]
