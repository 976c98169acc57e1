"""How the proxy itself is doing: liveness, readiness, metrics."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from proxy import metrics
from proxy.control.auth import READ
from proxy.control.edge import ControlRoute, Wired
from proxy.control.profiles import fit_warnings
from proxy.errors import BadAsk, StoreDown
from proxy.model import JsonObject
from proxy.record.clocks import APART_S, tell_lead
from proxy.wiring import Wiring

router = APIRouter(route_class=ControlRoute)
probes = APIRouter(route_class=ControlRoute)


@probes.get("/healthz")
async def healthz() -> JsonObject:
    """Whether the process answers at all."""
    return {"status": "ok"}


@probes.get("/readyz")
async def readyz(wiring: Wired) -> JSONResponse:
    """Whether calls would be served now: 200, or 503 with the check that fails."""
    checks = {
        "store": await store_fault(wiring),
        "engines": engines_fault(wiring),
        "profiles": profiles_fault(wiring),
        "clock": clock_fault(wiring),
    }
    ready = not any(checks.values())
    document = {name: {"ok": fault is None, "message": fault} for name, fault in checks.items()}
    return JSONResponse({"ready": ready, "checks": document}, 200 if ready else 503)


@router.get("/metrics", dependencies=[READ])
async def show_metrics() -> Response:
    """Metrics of this process, for Prometheus."""
    text, media_type = metrics.exposition()
    return Response(text, headers={"content-type": media_type})


async def store_fault(wiring: Wiring) -> str | None:
    """Why the store would not take a record now; its own words may name paths, so they are not shown."""
    try:
        await wiring.store.ping()
    except StoreDown:
        return "the store does not take writes"
    return None


def engines_fault(wiring: Wiring) -> str | None:
    """Why no engine can be asked."""
    engines = wiring.pool.engines
    if any(engine.is_open for engine in engines):
        return None
    return f"none of {len(engines)} engines is known to be well and open"


def clock_fault(wiring: Wiring) -> str | None:
    """Whether leases would be told wrongly here."""
    lead = wiring.presence.clock_lead_s
    return f"this machine's clock is {tell_lead(lead)}" if abs(lead) > APART_S else None


def profiles_fault(wiring: Wiring) -> str | None:
    """The profiles that no engine may serve."""
    refused = [name for name in wiring.profiles.names() if is_refused(wiring, name)]
    return f"refused by every engine: {', '.join(refused)}" if refused else None


def is_refused(wiring: Wiring, name: str) -> bool:
    try:
        fit_warnings(wiring, wiring.profiles.get(name))
    except BadAsk:
        return True
    return False
