"""Who is let in: rollouts named by path, key or header, and every refusal in the form that OpenAI's clients read."""

from typing import Any

import httpx
import pytest

from tests.api.conftest import Start
from tests.api.harness import asked, error_of, until
from tests.fakes import FakeEngine
from tests.served import ADMIN, READER, RolloutClient, ServedProxy

CHAT = "/chat/completions"
BROWSED = [
    "",
    "/",
    "/v1",
    "/v1/",
    "/v1/props",
    "/v1/api/tags",
    "/v1/version",
    "/version",
    "/v1/chat/completions",
    "/health",
]


def ask(url: str, key: str | None = None, **headers: str) -> httpx.Response:
    """One chat call without a client's help."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    bearer = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.post(url + CHAT, json=asked(), headers=named | bearer)


def key_of(client: RolloutClient) -> str:
    key: str = client.created["api_key"]
    return key


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refusal that no retry mends."""
    assert (answer.status_code, answer.headers["x-should-retry"]) == (status, "false"), answer.text
    return error_of(answer)


# --- named by ---


def test_a_rollout_is_named_by_its_path(rollout: RolloutClient) -> None:
    """The key travels as a bearer token."""
    assert ask(rollout.created["base_url"], key_of(rollout)).status_code == 200
    assert rollout.call()["rollout_id"] == rollout.rollout_id


def test_a_key_may_travel_as_x_api_key(rollout: RolloutClient) -> None:
    """As Anthropic's clients send it."""
    assert ask(rollout.created["base_url"], x_api_key=key_of(rollout)).status_code == 200


def test_a_rollout_is_named_by_its_key_at_the_plain_base(proxy: ServedProxy, rollout: RolloutClient) -> None:
    """For harnesses that take a key but no URL of their own."""
    assert ask(f"{proxy.url}/v1", key_of(rollout)).status_code == 200
    assert rollout.call()["rollout_id"] == rollout.rollout_id


def test_the_header_names_a_rollout_only_where_it_is_trusted(start: Start) -> None:
    """And the rollout's own key is needed all the same."""
    proxy, _ = start(trust_rollout_header=True)
    client, other = proxy.rollout(rollout_id="named"), proxy.rollout(rollout_id="other")

    assert ask(f"{proxy.url}/v1", key_of(client), x_rollout_id="other").status_code == 200
    assert client.call()["rollout_id"] == "named"
    assert refused(ask(f"{proxy.url}/v1", "sk-foreign", x_rollout_id="named"), 401)["code"] == "invalid_api_key"
    assert refused(ask(f"{proxy.url}/v1", x_rollout_id="named"), 401)["code"] == "invalid_api_key"
    assert proxy.calls(other.rollout_id) == []


def test_an_untrusted_header_names_nothing(proxy: ServedProxy, rollout: RolloutClient) -> None:
    """The default."""
    assert "no rollout" in refused(ask(f"{proxy.url}/v1", x_rollout_id=rollout.rollout_id), 401)["message"]


def test_unknown_rollouts_are_created_where_that_is_allowed(start: Start) -> None:
    """`auto_register`: any key, the default profile, one rollout per id."""
    proxy, _ = start(auto_register=True)
    answers = [ask(f"{proxy.url}/rollouts/fresh/v1", "whatever"), ask(f"{proxy.url}/rollouts/fresh/v1")]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(proxy.settled_calls("fresh")) == 2


# --- refused ---


def test_an_unknown_rollout_is_404(proxy: ServedProxy, rollout: RolloutClient) -> None:
    """Never served unrecorded."""
    assert refused(ask(f"{proxy.url}/rollouts/nobody/v1", key_of(rollout)), 404)["code"] == "unknown_rollout"


@pytest.mark.parametrize("key", [None, "sk-foreign", "rk-x-00", ADMIN, READER])
def test_a_missing_or_wrong_key_is_401(rollout: RolloutClient, engine: FakeEngine, key: str | None) -> None:
    """Control tokens open no rollout."""
    before = len(engine.requests)

    assert refused(ask(rollout.created["base_url"], key), 401)["code"] == "invalid_api_key"
    assert (len(engine.requests), rollout.proxy.calls(rollout.rollout_id)) == (before, [])


def test_another_rollouts_key_is_401(proxy: ServedProxy, rollout: RolloutClient) -> None:
    """Though it names a rollout that exists."""
    assert refused(ask(rollout.created["base_url"], key_of(proxy.rollout())), 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_a_name_or_a_key_it_is_401(proxy: ServedProxy, method: str) -> None:
    """Nothing lands in a default session."""
    path = "/v1/models" if method == "GET" else f"/v1{CHAT}"

    assert refused(httpx.request(method, proxy.url + path, json=asked()), 401)["code"] == "invalid_api_key"


def test_a_finished_rollout_is_410(proxy: ServedProxy, rollout: RolloutClient) -> None:
    """Frozen; 410 is what SDKs do not retry."""
    proxy.control.post(f"/rollouts/{rollout.rollout_id}/finish")

    assert refused(rollout.chat(), 410)["code"] == "rollout_finished"


def test_a_deleted_rollout_is_410(proxy: ServedProxy, rollout: RolloutClient) -> None:
    """Its id stays taken."""
    proxy.control.delete(f"/rollouts/{rollout.rollout_id}")

    assert refused(rollout.chat(), 410)["code"] == "rollout_deleted"


def test_an_expired_rollout_is_410(proxy: ServedProxy, engine: FakeEngine) -> None:
    """At its time, not at the next sweep."""
    client = proxy.rollout(ttl_s=0.05)
    over = until(lambda: next((a for a in [client.chat()] if "rollout_expired" in a.text), None))

    assert refused(over, 410)["code"] == "rollout_expired"


@pytest.mark.parametrize(
    ("segment", "status"),
    [("a%20b", 400), ("a" * 201, 400), ("%C3%A9", 400), ("a%00b", 400), ("-a", 400), ("a%2Fb", 404), ("..%2Fx", 404)],
)
def test_what_cannot_be_an_id_is_refused(proxy: ServedProxy, rollout: RolloutClient, segment: str, status: int) -> None:
    """In the path, before anything is looked up."""
    refused(ask(f"{proxy.url}/rollouts/{segment}/v1", key_of(rollout)), status)


# --- other requests ---


def test_models_lists_the_engines_model(rollout: RolloutClient) -> None:
    """Harnesses ask for it at their start; the rollout does not notice."""
    models = rollout.http.get("/models").json()

    assert models["object"] == "list"
    assert [(model["id"], model["object"]) for model in models["data"]] == [("tiny", "model")]
    assert rollout.proxy.calls(rollout.rollout_id) == []


@pytest.mark.parametrize("name", ["tiny", "gpt-9", "org/name:tag"])
def test_any_model_is_said_to_exist(rollout: RolloutClient, name: str) -> None:
    """As any name is accepted in calls."""
    assert rollout.http.get(f"/models/{name}").json()["id"] == name


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", BROWSED)
def test_browsing_below_a_rollout_leaves_no_trace(
    rollout: RolloutClient, engine: FakeEngine, method: str, path: str
) -> None:
    """Discovery gets a small answer, reaches no engine and marks nothing."""
    before, state = len(engine.requests), rollout.proxy.control.get(f"/rollouts/{rollout.rollout_id}").json()
    base = rollout.created["base_url"].removesuffix("/v1")
    answer = httpx.request(method, base + path, headers={"authorization": f"Bearer {key_of(rollout)}"})

    assert answer.status_code in {200, 307, 401, 404, 405}
    assert len(answer.content) < 500
    assert len(engine.requests) == before
    assert rollout.proxy.control.get(f"/rollouts/{rollout.rollout_id}").json() == state


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/models", "/v1/models/gpt-9"])
def test_a_client_that_looks_whether_anybody_is_there_is_answered(rollout: RolloutClient, path: str) -> None:
    """Claude Code sends HEAD to its base URL before its first call."""
    base = rollout.created["base_url"].removesuffix("/v1")
    answer = httpx.head(base + path, headers={"authorization": f"Bearer {key_of(rollout)}"})

    assert (answer.status_code, answer.content) == (200, b"")


def test_a_browser_at_the_front_door_sees_what_this_is(proxy: ServedProxy) -> None:
    """As the line that a proxy prints has people open it."""
    assert httpx.get(proxy.url).json() == {"service": "rollpin"}


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere", "/v1/embeddings"])
def test_an_unknown_route_is_told_in_openai_form(proxy: ServedProxy, path: str) -> None:
    """Not in the framework's."""
    assert refused(httpx.post(proxy.url + path, json={}), 404)["code"] == "unknown_route"


@pytest.mark.parametrize("path", ["/rollouts/r/chat/completions", "/responses"])
def test_a_base_url_without_its_v1_is_told_so(proxy: ServedProxy, path: str) -> None:
    """As where Anthropic's is given to a client of OpenAI's."""
    told = refused(httpx.post(proxy.url + path, json={}), 404)["message"]

    assert told.endswith("the base URL of OpenAI's clients ends in /v1")


@pytest.mark.parametrize(
    ("method", "path", "status", "hint"),
    [
        ("GET", "/rollouts/r/trajectories", 404, "; /rollouts/r/trajectory is"),
        ("GET", "/trajectory", 404, "; /trajectories is"),
        ("GET", "/rollouts/r/call", 404, "; /rollouts/r/calls is"),
        ("POST", "/rollouts/r/v1/chat/completion", 404, "; /rollouts/r/v1/chat/completions is"),
        ("GET", "/rollouts/r/v1/trajectory", 404, "; the routes of the control plane have no /v1"),
        ("GET", "/rollouts/r/finish", 405, "; POST is"),
        ("DELETE", "/engines", 405, "; GET and POST are"),
        ("GET", "/rollouts/r/v1/embeddings", 404, " is not served here"),
    ],
)
def test_a_route_that_is_nearly_right_is_told_what_is(
    proxy: ServedProxy, method: str, path: str, status: int, hint: str
) -> None:
    """A word of another number, a method of another route; where nothing is near, nothing is guessed."""
    assert refused(httpx.request(method, proxy.url + path), status)["message"].endswith(hint)


def test_a_wrong_method_is_told_the_right_ones_in_the_header_too(proxy: ServedProxy) -> None:
    """As RFC 9110 asks of a 405."""
    assert httpx.delete(f"{proxy.url}/engines").headers["allow"] == "GET, POST"


@pytest.mark.parametrize("path", ["/rollouts", "/rollouts/{}", "/rollouts/{}/calls", "/metrics", "/engines"])
def test_a_harness_key_opens_no_control_route(proxy: ServedProxy, rollout: RolloutClient, path: str) -> None:
    """Neither its own rollout's nor anybody's."""
    answer = httpx.get(
        proxy.url + path.format(rollout.rollout_id), headers={"authorization": f"Bearer {key_of(rollout)}"}
    )

    assert refused(answer, 401)["code"] == "invalid_api_key"
