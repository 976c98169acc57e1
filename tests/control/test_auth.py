"""Which token opens which route."""

import pytest

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
]
CLOSED_ROUTES = READING_ROUTES + ADMIN_ROUTES


@pytest.mark.parametrize(("method", "path"), OPEN_ROUTES)
async def test_liveness_and_readiness_need_no_token(control: Control, method: str, path: str) -> None:
    """Whoever watches the process holds no secret."""
    answer = await control.ask(method, path, token=None)

    assert answer.status_code == 200


@pytest.mark.parametrize(("method", "path"), CLOSED_ROUTES)
@pytest.mark.parametrize("token", [None, "", "wrong-token-of-some-length", ADMIN + "x", ADMIN[:-1], "ünï"])
async def test_a_missing_or_wrong_token_opens_nothing(
    control: Control, told: Told, method: str, path: str, token: str | None
) -> None:
    """Loopback is no exception."""
    headers = {} if token is None else {"authorization": f"Bearer {token}".encode()}
    async with control.client(None) as client:
        answer = await client.request(method, path, headers=headers)

    assert answer.status_code == 401
    assert answer.headers["x-should-retry"] == "false"
    assert "token" in told(answer)


@pytest.mark.parametrize(("method", "path"), CLOSED_ROUTES)
async def test_a_rollouts_own_key_opens_no_control_route(control: Control, told: Told, method: str, path: str) -> None:
    """What a harness holds must not let it read or judge its own rollout."""
    key = control.wiring.keys.rollout_key(RolloutId("r1"))

    answer = await control.ask(method, path, token=key)

    assert answer.status_code == 401
    assert "a rollout's key does not open control routes" in told(answer)
    assert key not in answer.text


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_the_read_token_opens_no_admin_route(control: Control, method: str, path: str) -> None:
    """It is for people and dashboards that look."""
    answer = await control.ask(method, path, token=READER, json={})

    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden"
    assert await control.all_rollouts() == []


@pytest.mark.parametrize(("method", "path"), READING_ROUTES)
@pytest.mark.parametrize("token", [READER, ADMIN])
async def test_both_tokens_open_the_reading_routes(control: Control, method: str, path: str, token: str) -> None:
    """The admin token may do all that the read token may."""
    answer = await control.ask(method, path, token=token)

    assert answer.status_code in {200, 404}


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
