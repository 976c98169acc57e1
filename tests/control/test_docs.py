"""docs/control-plane.md is true: every route is in it, and every example does what it shows."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from proxy import clock, metrics
from proxy.control import engines, groups, ops, profiles, reads, rollouts, trajectories, why
from proxy.model import CallId
from tests import make
from tests.patience import PATIENCE_S
from tests.served import ADMIN, READER, ServedProxy, served, settings_for

PAGE = (Path(__file__).parents[2] / "docs" / "control-plane.md").read_text()
# A curl command, and the JSON block that follows it at once, if one does.
EXAMPLE = re.compile(r"```sh\n(curl .*?)\n```(?:\n\n```json\n(.*?)\n```)?", re.DOTALL)
EXAMPLES = [(command, shown) for command, shown in EXAMPLE.findall(PAGE)]
CALL = "ca_00000000000000000000000000000001"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy whose engine does not answer."""
    with served(settings_for(tmp_path_factory.mktemp("proxy"), "http://127.0.0.1:1")) as running:
        yield running


def curl(command: str, url: str) -> httpx.Response:
    """What curl would do."""
    known = {"PROXY": url, "ADMIN": ADMIN, "READ": READER}
    words = iter(shlex.split(re.sub(r"\$([A-Z]+)", lambda found: known[found[1]], command.replace("\\\n", ""))))
    method, address, headers, body = "GET", "", {}, None
    assert next(words) == "curl"
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(words)
        else:
            address = word
    return httpx.request(method, address, headers=headers, content=body, timeout=PATIENCE_S)


def asked_route(command: str) -> tuple[str, str]:
    """Method and path of an example."""
    method = re.search(r"-X (\w+)", command)
    path = re.search(r"\$PROXY([^\s\"?]+)", command)
    assert path
    return method[1] if method else "GET", path[1]


def shape(value: Any) -> Any:
    """The keys of a document, at every level; of a list its first item's, and of an empty one nothing."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key not in {"findings", "warnings", "probe"}}
    return [shape(value[0])] if isinstance(value, list) and value else None


def test_every_example_does_what_it_shows(proxy: ServedProxy) -> None:
    """In the order of the page."""
    assert len(EXAMPLES) > 15
    for command, shown in EXAMPLES:
        if CALL in command and proxy.do(proxy.wiring.store.call(CallId(CALL))) is None:
            planned = make.plan(make.ask(of=make.rollout("step-12-task-7-0")), call_id=CallId(CALL))
            running = make.reservation(planned, lease_until=clock.now() + PATIENCE_S)
            proxy.do(proxy.wiring.store.reserve(running))

        answer = curl(command, proxy.url)

        assert answer.status_code in {200, 201} or command == "curl $PROXY/readyz", (command, answer.text)
        if shown:
            assert shape(answer.json()) == shape(json.loads(shown)), command


def test_every_route_has_an_example() -> None:
    """By its method and path."""
    asked = {asked_route(command) for command, _ in EXAMPLES}
    parts = (rollouts, groups, profiles, reads, trajectories, why, engines, ops)
    routers = (*(part.router for part in parts), ops.probes)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]

    assert len(routes) == 24
    for route in routes:
        assert any(method in (route.methods or ()) and route.path_regex.match(path) for method, path in asked), (
            route.path
        )


def test_every_metric_is_told() -> None:
    """And none that is not there."""
    told = set(re.findall(r"`(rollpin_\w+)", PAGE))

    kept = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in metrics.REGISTRY.collect()
    }
    assert told == kept
