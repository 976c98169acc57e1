"""From a harness's requests to rows: a proxy and an engine on real sockets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, Fault, Say
from tests.served import RolloutClient, served, settings_for

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(params=["vllm", "sglang"])
def rollout(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RolloutClient]:
    """A rollout of a proxy in front of an engine of each kind."""
    with FakeEngine(request.param) as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        yield proxy.rollout(rollout_id="r1")


def asked(rollout: RolloutClient, messages: list[Any], **fields: Any) -> list[Any]:
    """The replies to one request."""
    answer = rollout.post({"model": "policy", "messages": messages, "tools": TOOLS, "max_tokens": 8, **fields})
    assert answer.status_code == 200, answer.text
    return [choice["message"] for choice in answer.json()["choices"]]


def test_a_served_rollout_becomes_rows(rollout: RolloutClient) -> None:
    """A best-of-n step, a title call of a small model, and a last turn."""
    begin = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Go."}]
    _first, second = asked(rollout, begin, n=2)
    asked(rollout, [{"role": "user", "content": "A title, please."}], model="small", tools=[])
    asked(rollout, [*begin, second, {"role": "user", "content": "And now?"}])
    rollout.calls()

    found = rollout.proxy.control.get("/rollouts/r1/trajectory").json()

    calls = {call["call_id"]: call for call in rollout.calls()}
    kept = [call for call in calls.values() if call["requested_model"] == "policy" and call["seed"]["choice"] != 0]
    last = next(call for call in calls.values() if call["parent"]["outcome"] == "resolved")
    trained = {one for branch in found["branches"] for one in branch["owned_call_ids"]}
    assert trained == {last["call_id"], *(call["call_id"] for call in kept)}
    assert sorted(one["reason"] for one in found["excluded"]) == ["side_other_model", "unused_choice"]
    masks = sum(sum(branch["loss_mask"]) for branch in found["branches"])
    assert masks == sum(len(calls[one]["completion_token_ids"]) for one in trained) > 0
    shown = rollout.proxy.control.get("/rollouts/r1").json()["prefixes"]
    assert (shown["total"], shown["eligible"]) == (4, 1)
    assert shown["supplied"] + sum(shown["unsupplied"].values()) == 1
    assert {
        name: found["health"][f"prefix_{name}"] for name in ("total", "eligible", "supplied")
    }.items() <= shown.items()
    outcome, reason = next((("refused", one) for one in shown["unsupplied"]), ("supplied", last["prefix"]["reason"]))
    metrics = rollout.proxy.control.get("/metrics").text
    assert f'rollpin_prefix_total{{outcome="{outcome}",reason="{reason}"}}' in metrics


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_one_reply_without_ids_masks_its_whole_rollout(kind: Any, tmp_path: Path) -> None:
    """With `missing_ids = mask` the harness goes on, and nobody trains on a story with a hole."""
    lanes = [{"x-claude-code-session-id": "s"}, {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a1"}]
    with FakeEngine(kind) as engine, served(settings_for(tmp_path, engine.url, missing_ids="mask")) as proxy:
        whole, holed = (proxy.rollout(rollout_id=name) for name in ("whole", "holed"))
        for client in (whole, holed):
            client.http.headers.update(lanes[0])
            asked(client, [{"role": "user", "content": "Go."}])
        holed.http.headers.update(lanes[1])
        engine.script(Fault.no_ids(Say("who knows")))
        asked(holed, [{"role": "user", "content": "Help."}])
        whole.calls()
        holed.calls()
        found = {one: proxy.control.get(f"/rollouts/{one}/trajectory").json() for one in ("whole", "holed")}

    assert found["whole"]["trainable"]["value"]
    assert found["holed"]["trainable"] == {"value": False, "reasons": ["missing_ids"]}
    assert [one["reason"] for one in found["holed"]["excluded"]] == ["missing_ids"]
    assert sum(sum(branch["loss_mask"]) for branch in found["holed"]["branches"]) == 0
    assert found["holed"]["health"]["complete"] is False
