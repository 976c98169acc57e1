"""How rollouts come to be: all checks first, then one write, then the keys and addresses that their harnesses need."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from proxy.canonical import digest
from proxy.clock import new_id, now
from proxy.control.bodies import GroupBody, RolloutBody
from proxy.control.profiles import fit_warnings
from proxy.errors import BadAsk, NotFound
from proxy.model import JsonObject, Profile, Rollout, RolloutId
from proxy.request.identify import check_rollout_id, idempotency_key
from proxy.wiring import Wiring

# Addresses to listen on, not to call.
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104  compared with, never bound


@dataclass(frozen=True, slots=True)
class Place:
    """One rollout among others: its id and where it stands in its group."""

    rollout_id: RolloutId
    group: str
    sample: int


def minted_id() -> RolloutId:
    """An id for a rollout whose trainer names none."""
    return RolloutId(new_id("ro"))


async def create(
    request: Request, wiring: Wiring, body: RolloutBody | GroupBody, places: Sequence[Place]
) -> tuple[tuple[Rollout, ...], Profile, list[str]]:
    """Create rollouts at these places, or none: what was created, their profile, and warnings about it."""
    key = idempotency_key(request.headers)
    wanted = _rollouts(wiring, body, places)
    profile = _profile_of(wiring, wanted[0])
    warnings = fit_warnings(wiring, profile)
    asked = digest([request.url.path, body.model_dump(exclude_unset=True)])
    created = await wiring.store.create_rollouts(wanted, idempotency_key=key, asked=asked)
    return created, profile, warnings


def grant(request: Request, wiring: Wiring, rollout: Rollout) -> JsonObject:
    """What the harness of a rollout is given, and where the rollout stands."""
    base = f"{data_plane(request, wiring)}/rollouts/{rollout.rollout_id}"
    return {
        "rollout_id": rollout.rollout_id,
        "base_url": f"{base}/v1",
        "anthropic_base_url": base,
        "api_key": wiring.keys.rollout_key(rollout.rollout_id),
        "run": rollout.run,
        "group": rollout.group,
        "sample": rollout.sample,
        "attempt": rollout.attempt,
        "profile": rollout.profile,
    }


def data_plane(request: Request, wiring: Wiring) -> str:
    """The URL under which harnesses reach this proxy."""
    settings = wiring.settings
    if settings.public_url is not None:
        return settings.public_url
    if settings.control_port is None and settings.control_socket is None:
        return str(request.base_url).rstrip("/")
    host = settings.host
    if host in EVERY_ADDRESS:
        host = "127.0.0.1" if settings.control_socket else request.url.hostname or "127.0.0.1"
    return f"http://[{host}]:{wiring.data_port}" if ":" in host else f"http://{host}:{wiring.data_port}"


def _rollouts(wiring: Wiring, body: RolloutBody | GroupBody, places: Sequence[Place]) -> tuple[Rollout, ...]:
    created_at = now()
    ttl_s = body.ttl_s if "ttl_s" in body.model_fields_set else wiring.settings.limits.rollout_ttl_s
    return tuple(
        Rollout(
            rollout_id=check_rollout_id(place.rollout_id),
            run=body.run,
            group=place.group,
            sample=place.sample,
            attempt=body.attempt,
            profile=body.profile or wiring.settings.default_profile,
            sampling=body.sampling or {},
            state="open",
            created_at=created_at,
            expires_at=None if ttl_s is None else created_at + ttl_s,
            token_budget=body.token_budget,
            metadata=body.metadata or {},
        )
        for place in places
    )


def _profile_of(wiring: Wiring, rollout: Rollout) -> Profile:
    """The profile with the rollout's own values; raises BadAsk where there is none or a value is out of range."""
    try:
        return wiring.profiles.of_rollout(rollout)
    except NotFound as error:
        names = ", ".join(wiring.profiles.names())
        raise BadAsk(f"{error.message}; there are {names}", code=error.code, param="profile") from error
    except BadAsk as error:
        raise BadAsk(f"sampling: {error.message}", code="invalid_sampling", param="sampling") from error
