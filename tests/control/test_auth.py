"""Which token opens which route."""

import pytest
from fastapi.routing import APIRoute

from proxy.control import engines, groups, ops, profiles, reads, replays, rollouts
from proxy.model import RolloutId
from tests.control.conftest import Control, Told
from tests.served import ADMIN, READER

pytestmark = pytest.mark.anyio

OPEN_ROUTES = [("GET", "/healthz"), ("GET", "/readyz")]
READING_ROUTES = [
    ("GET", "/rollouts"),
    ("GET", "/rollouts/r1"),
    ("GET", "/rollouts/r1/calls"),
    ("GET", "/calls/ca_1"),
    ("GET", "/metrics"),
]
ADMIN_ROUTES = [
    ("POST", "/rollouts"),
    ("POST", "/groups"),
    ("PUT", "/rollouts/r1/outcome"),
    ("PUT", "/calls/ca_1/outcome"),
    ("POST", "/rollouts/r1/finish"),
    ("DELETE", "/rollouts/r1"),
    ("GET", "/profiles"),
    ("GET", "/profiles/train"),
    ("PUT", "/profiles/train"),
    ("GET", "/engines"),
    ("POST", "/engines"),
    ("POST", "/engines/engine-0/drain"),
    ("POST", "/engines/engine-0/open"),
    ("DELETE", "/engines/engine-0"),
    ("POST", "/rollouts/r1/replay"),
    ("POST", "/rollouts/r1/rescore"),
]
CLOSED_ROUTES = READING_ROUTES + ADMIN_ROUTES


async def test_every_route_is_in_one_of_the_tables() -> None:
    """A route that is added says here who may use it."""
    parts = (rollouts, groups, profiles, reads, replays, engines, ops)
    routers = (*(part.router for part in parts), ops.probes)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]

    listed = OPEN_ROUTES + CLOSED_ROUTES
    assert len(routes) == len(listed)
    for method, path in listed:
        assert any(method in (route.methods or ()) and route.path_regex.match(path) for route in routes), path


@pytest.mark.parametrize(("method", "path"), OPEN_ROUTES)
async def test_liveness_and_readiness_need_no_token(control: Control, method: str, path: str) -> None:
    """Whoever watches the process holds no secret."""
    answer = await control.ask(method, path, token=None)

    assert answer.status_code == 200


@pytest.mark.parametrize("token", [None, "", "wrong-token-of-some-length", ADMIN + "x", ADMIN[:-1], "ünï"])
async def test_a_missing_or_wrong_token_opens_nothing(control: Control, told: Told, token: str | None) -> None:
    """Loopback is no exception."""
    headers = {} if token is None else {b"authorization": f"Bearer {token}".encode()}
    async with control.client(None) as client:
        answers = [await client.request(method, path, headers=headers) for method, path in CLOSED_ROUTES]

    assert [answer.status_code for answer in answers] == [401] * len(CLOSED_ROUTES)
    assert {answer.headers["x-should-retry"] for answer in answers} == {"false"}
    assert all("token" in told(answer) for answer in answers)


async def test_a_rollouts_own_key_opens_no_control_route(control: Control, told: Told) -> None:
    """What a harness holds must not let it read or judge its own rollout."""
    key = control.wiring.keys.rollout_key(RolloutId("r1"))

    answers = [await control.ask(method, path, token=key) for method, path in CLOSED_ROUTES]

    assert [answer.status_code for answer in answers] == [401] * len(CLOSED_ROUTES)
    assert all("a rollout's key does not open control routes" in told(answer) for answer in answers)
    assert not any(key in answer.text for answer in answers)


async def test_the_read_token_opens_no_admin_route(control: Control) -> None:
    """It is for people and dashboards that look."""
    answers = [await control.ask(method, path, token=READER, json={}) for method, path in ADMIN_ROUTES]

    assert [answer.status_code for answer in answers] == [403] * len(ADMIN_ROUTES)
    assert {answer.json()["error"]["code"] for answer in answers} == {"forbidden"}
    assert await control.all_rollouts() == []


@pytest.mark.parametrize("token", [READER, ADMIN])
async def test_both_tokens_open_the_reading_routes(control: Control, token: str) -> None:
    """The admin token may do all that the read token may."""
    answers = [await control.ask(method, path, token=token) for method, path in READING_ROUTES]

    assert [answer.status_code for answer in answers] == [200, 404, 404, 404, 200]


async def test_the_token_is_taken_from_the_bearer_header_alone(control: Control) -> None:
    """A token in a URL or another header ends up in logs."""
    async with control.client(None) as client:
        elsewhere = await client.get("/rollouts", headers={"x-api-key": ADMIN}, params={"token": ADMIN})
        basic = await client.get("/rollouts", headers={"authorization": f"Basic {ADMIN}"})
        bearer = await client.get("/rollouts", headers={"authorization": f"bearer  {ADMIN} "})

    assert [elsewhere.status_code, basic.status_code, bearer.status_code] == [401, 401, 200]


async def test_a_refused_token_is_told_before_the_body_is_judged(control: Control) -> None:
    """Who may not ask learns nothing of what would be valid."""
    answer = await control.ask("POST", "/rollouts", token="wrong-token-of-some-length", content=b"not json")

    assert answer.status_code == 401
