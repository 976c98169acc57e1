"""The server of `proxy/sim`."""

from proxy.sim.server import SimEngine as FakeEngine

__all__ = ["FakeEngine"]
