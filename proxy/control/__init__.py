"""What trainers speak: rollouts, groups, outcomes, profiles, engines, reads, and replays of what was recorded.

The routes read `app.state.wiring`, so that one router serves on the main port, a port of its own, or a socket.
"""

from fastapi import APIRouter

from proxy.control import engines, groups, ops, profiles, reads, replays, rollouts, trajectories, weights, why


def control_routes() -> tuple[APIRouter, ...]:
    """All routes of the control plane but the probes."""
    parts = (rollouts, groups, profiles, reads, trajectories, why, replays, engines, weights, ops)
    return tuple(part.router for part in parts)


def probe_routes() -> APIRouter:
    """Liveness and readiness alone: open to all, so they stand on both planes."""
    return ops.probes
