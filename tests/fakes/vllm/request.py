"""vLLM's own refusals."""

from proxy.sim.vllm.request import refuse

__all__ = ["refuse"]
