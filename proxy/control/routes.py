"""All routes of the control plane; they read `app.state.wiring`."""

from fastapi import APIRouter

from proxy.control import groups, ops, profiles, reads, rollouts
from proxy.control.edge import ControlRoute


def control_routes() -> APIRouter:
    """One router for the app that serves the control plane, on whichever port or socket that is."""
    router = APIRouter(route_class=ControlRoute)
    for part in (rollouts, groups, profiles, reads, ops):
        router.include_router(part.router)
    return router
