"""The rollouts of one task, opened together or not at all."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from proxy.control.auth import ADMIN
from proxy.control.bodies import GroupBody
from proxy.control.creating import Place, create, grant, minted_id
from proxy.control.edge import ControlRoute, Wired, body_of
from proxy.counted import counted
from proxy.errors import BadAsk
from proxy.model import JsonObject, Profile, RolloutId
from proxy.request.identify import ROLLOUT_ID_PATTERN, check_rollout_id

router = APIRouter(route_class=ControlRoute, dependencies=[ADMIN])


@router.post("/groups", status_code=201)
async def open_group(
    request: Request, wiring: Wired, body: Annotated[GroupBody, Depends(body_of(GroupBody))]
) -> JsonObject:
    """Open samples 0 to size-1 of a group."""
    places = [Place(rollout_id, body.group, sample) for sample, rollout_id in enumerate(group_ids(body))]
    rollouts, profile, warnings = await create(request, wiring, body, places)
    return {
        "group": body.group,
        "rollouts": [grant(request, wiring, rollout) for rollout in rollouts],
        "warnings": [*_group_warnings(profile, body.size), *warnings],
    }


def group_ids(body: GroupBody) -> list[RolloutId]:
    """The ids asked for, else readable ones, else minted ones."""
    if body.rollout_ids is None:
        return [readable_id(body, sample) or minted_id() for sample in range(body.size)]
    if len(body.rollout_ids) != body.size:
        raise BadAsk(f"rollout_ids: {counted(len(body.rollout_ids), 'id')} for size {body.size}", param="rollout_ids")
    return [check_rollout_id(rollout_id) for rollout_id in body.rollout_ids]


def readable_id(body: GroupBody, sample: int) -> RolloutId | None:
    """`group-sample`, with the run before it and the attempt behind it where they are not the default."""
    run = "" if body.run == "default" else f"{body.run}:"
    attempt = f"-a{body.attempt}" if body.attempt else ""
    name = f"{run}{body.group}-{sample}{attempt}"
    return RolloutId(name) if ROLLOUT_ID_PATTERN.fullmatch(name) else None


def _group_warnings(profile: Profile, size: int) -> list[str]:
    if size == 1 or not profile.is_greedy:
        return []
    return [f"profile {profile.name} is greedy: the {size} samples will be identical; set temperature above 0"]
