"""Profiles, read and changed while the proxy runs; a change holds from the next call on."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends

from proxy.clock import now
from proxy.control.auth import ADMIN
from proxy.control.edge import ControlRoute, Wired, json_object
from proxy.errors import BadAsk
from proxy.model import JsonObject, Profile
from proxy.record.store import StoredProfile
from proxy.settings import profile_from
from proxy.wiring import Wiring

router = APIRouter(route_class=ControlRoute, dependencies=[ADMIN])


@router.get("/profiles")
async def list_profiles(wiring: Wired) -> JsonObject:
    """All profiles in force."""
    return {"profiles": [asdict(wiring.profiles.get(name)) for name in wiring.profiles.names()]}


@router.get("/profiles/{name}")
async def show_profile(name: str, wiring: Wired) -> JsonObject:
    """One profile, complete."""
    return asdict(wiring.profiles.get(name))


@router.put("/profiles/{name}")
async def put_profile(name: str, wiring: Wired, body: Annotated[JsonObject, Depends(json_object)]) -> JsonObject:
    """Replace a profile, or add one; what the body leaves out takes its default."""
    profile = profile_from(name, _values(body, name))
    warnings = fit_warnings(wiring, profile)
    await wiring.store.put_profile(StoredProfile(profile, wiring.profiles.base_of(name), now()))
    wiring.profiles.put(profile)
    return {**asdict(profile), "warnings": warnings}


def fit_warnings(wiring: Wiring, profile: Profile) -> list[str]:
    """What the engines make of a profile; raises BadAsk where every one of them refuses it."""
    findings = wiring.pool.findings(profile)
    refusals = {finding.engine: finding for finding in findings if finding.severity == "refuse"}
    if refusals and all(engine.name in refusals for engine in wiring.pool.engines):
        first = next(iter(refusals.values()))
        raise BadAsk(first.line(), code="invalid_profile", param=first.setting)
    return [finding.line() for finding in findings]


def _values(body: JsonObject, name: str) -> JsonObject:
    """The body without the name that reads show among the values."""
    if body.get("name", name) != name:
        raise BadAsk(f"name: {body['name']!r} in the body and {name!r} in the path", code="invalid_profile")
    return {key: value for key, value in body.items() if key != "name"}
