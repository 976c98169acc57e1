"""SGLang's own refusals."""

from proxy.sim.sglang.request import refuse

__all__ = ["refuse"]
