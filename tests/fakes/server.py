"""The server of `proxy/sim`."""

from proxy.sim.server import SimEngine as FakeEngine
from proxy.sim.server import _listen

__all__ = ["FakeEngine", "_listen"]
