"""Opening, judging, finishing and deleting rollouts."""

import json
from typing import Any

import pytest

from proxy.control.bodies import LARGEST_METADATA_BYTES
from proxy.keys import rollout_named_by
from proxy.model import RolloutId
from proxy.settings import LARGEST_INT32
from tests import make
from tests.control.conftest import Control, Told

pytestmark = pytest.mark.anyio

LONGEST = "a" * 200

# What is wrong with a body of POST /rollouts, and the word that the one line about it must hold.
BAD_BODIES: list[tuple[Any, str]] = [
    ({"rollout_id": "a/b"}, "rollout id"),
    ({"rollout_id": "a b"}, "rollout id"),
    ({"rollout_id": ""}, "rollout id"),
    ({"rollout_id": ".."}, "rollout id"),
    ({"rollout_id": "-a"}, "rollout id"),
    ({"rollout_id": "ä"}, "rollout id"),
    ({"rollout_id": "a\n"}, "rollout id"),
    ({"rollout_id": LONGEST + "a"}, "rollout id"),
    ({"rollout_id": 7}, "rollout_id"),
    ({"group": ""}, "group"),
    ({"group": LONGEST + "a"}, "group"),
    ({"group": "a\nb"}, "group"),
    ({"group": "a\u0000b"}, "group"),
    ({"group": ["a"]}, "group"),
    ({"run": ""}, "run"),
    ({"run": None}, "run"),
    ({"run": "\u007f"}, "run"),
    ({"sample": -1}, "sample"),
    ({"sample": LARGEST_INT32 + 1}, "sample"),
    ({"sample": "0"}, "sample"),
    ({"sample": 0.0}, "sample"),
    ({"sample": True}, "sample"),
    ({"attempt": -1}, "attempt"),
    ({"attempt": None}, "attempt"),
    ({"profile": "nope"}, "nope"),
    ({"profile": 1}, "profile"),
    ({"sampling": {"temprature": 1}}, "temprature"),
    ({"sampling": {"temperature": 3}}, "temperature"),
    ({"sampling": {"temperature": "0.7"}}, "temperature"),
    ({"sampling": {"temperature": None}}, "temperature"),
    ({"sampling": {"temperature": True}}, "temperature"),
    ({"sampling": {"top_k": 0}}, "top_k"),
    ({"sampling": {"top_k": 1.5}}, "top_k"),
    ({"sampling": {"max_tokens_cap": 0}}, "max_tokens_cap"),
    ({"sampling": {"model": "other"}}, "model"),
    ({"sampling": {"seed": 1}}, "seed"),
    ({"sampling": []}, "sampling"),
    ({"ttl_s": 0}, "ttl_s"),
    ({"ttl_s": -1}, "ttl_s"),
    ({"ttl_s": 1e12}, "ttl_s"),
    ({"ttl_s": "60"}, "ttl_s"),
    ({"token_budget": 0}, "token_budget"),
    ({"token_budget": 1.5}, "token_budget"),
    ({"token_budget": 2**64}, "token_budget"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"text": "a" * LARGEST_METADATA_BYTES}}, "metadata"),
    ({"rolout_id": "r1"}, "rolout_id: no such field"),
    ({"sample": -1, "attempt": -1}, "attempt"),
]
BAD_TEXTS: list[tuple[bytes, str]] = [
    (b"", "JSON"),
    (b"  ", "JSON"),
    (b"{", "JSON"),
    (b"rollout_id=r1", "JSON"),
    (b"[]", "object"),
    (b"null", "object"),
    (b'"r1"', "object"),
    (b"1", "object"),
    (b'{"ttl_s": NaN}', "NaN"),
    (b'{"metadata": {"x": Infinity}}', "Infinity"),
    (b'{"metadata": {"x": 1e999}}', "beyond every number"),
    (b'{"metadata": {"x": "\\ud800"}}', "Unicode"),
    (b'{"group": "\xff"}', "Unicode"),
    (b'{"metadata": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "nested"),
    (b'{"metadata": {"x": ' + b"9" * 10_000 + b"}}", "JSON"),
]


async def test_a_rollout_opens_with_nothing_asked(control: Control) -> None:
    """Everything has a default; the group of a rollout alone is named after it."""
    answer = await control.ask("POST", "/rollouts", json={})

    grant = answer.json()
    rollout_id = grant["rollout_id"]
    assert answer.status_code == 201
    assert rollout_id.startswith("ro_")
    assert grant == {
        "rollout_id": rollout_id,
        "base_url": f"http://proxy.test:8080/rollouts/{rollout_id}/v1",
        "anthropic_base_url": f"http://proxy.test:8080/rollouts/{rollout_id}",
        "api_key": control.wiring.keys.rollout_key(RolloutId(rollout_id)),
        "run": "default",
        "group": rollout_id,
        "sample": 0,
        "attempt": 0,
        "profile": "train",
        "warnings": [],
    }


async def test_the_key_given_opens_the_rollout_and_names_it(control: Control) -> None:
    """A harness needs the key alone."""
    grant = await control.opened("task-1:a~b=c+d@e")

    assert rollout_named_by(grant["api_key"]) == "task-1:a~b=c+d@e"
    assert control.wiring.keys.opens_rollout(grant["api_key"], RolloutId("task-1:a~b=c+d@e"))


async def test_what_was_asked_is_what_reads_show(control: Control) -> None:
    """Nothing of the body gets lost."""
    asked = {
        "run": "step 3",
        "group": "task/7 ä",
        "sample": LARGEST_INT32,
        "attempt": 2,
        "profile": "validation",
        "sampling": {"temperature": 0.7, "top_k": 20, "max_tokens_cap": 100},
        "token_budget": 5000,
        "metadata": {"task": {"name": "ä", "tags": [1, None]}},
    }
    await control.opened("r1", ttl_s=60, **asked)

    shown = (await control.ask("GET", "/rollouts/r1")).json()

    assert {name: shown[name] for name in asked} == asked
    assert shown["state"] == "open"
    assert shown["expires_at"] > shown["created_at"]


async def test_a_ttl_of_null_is_without_end_and_an_absent_one_is_the_settings(control: Control) -> None:
    """Null says something; silence does not."""
    await control.opened("forever", ttl_s=None)
    await control.opened("as-set")

    forever, as_set = await control.all_rollouts()

    assert forever["expires_at"] is None
    assert as_set["expires_at"] is not None


@pytest.mark.parametrize("rollout_id", [LONGEST, "a", "a:b", "0"])
async def test_ids_at_the_edge_of_the_rule_are_taken(control: Control, rollout_id: str) -> None:
    """200 characters, colons and single characters are fine."""
    grant = await control.opened(rollout_id)

    assert grant["rollout_id"] == rollout_id


async def test_names_at_the_edge_of_the_rule_are_taken(control: Control) -> None:
    """Run and group may be any printable text of 200 characters."""
    grant = await control.opened("r1", run="ä" * 200, group=LONGEST)

    assert (grant["run"], grant["group"]) == ("ä" * 200, LONGEST)


async def test_a_bad_body_is_one_readable_line_and_changes_nothing(control: Control, told: Told) -> None:
    """Whatever is wrong, it is a 400 that names it."""
    for body, word in BAD_BODIES:
        answer = await control.ask("POST", "/rollouts", json=body)

        assert answer.status_code == 400, body
        assert word in told(answer), body
        assert answer.headers["x-should-retry"] == "false"
    assert await control.all_rollouts() == []


async def test_a_body_that_is_no_json_object_is_refused_and_changes_nothing(control: Control, told: Told) -> None:
    """Also where Python's own parser would be more lenient than JSON."""
    for text, word in BAD_TEXTS:
        answer = await control.ask("POST", "/rollouts", content=text)

        assert answer.status_code == 400, text[:50]
        assert word in told(answer), text[:50]
    assert await control.all_rollouts() == []


async def test_a_body_may_come_without_a_content_type(control: Control) -> None:
    """curl -d says that it sends a form."""
    headers = {"content-type": "application/x-www-form-urlencoded"}

    answer = await control.ask("POST", "/rollouts", content=b'{"rollout_id": "r1"}', headers=headers)

    assert answer.status_code == 201


@pytest.mark.parametrize("changes", [{"limits": {"body_bytes": 1000}}])
async def test_a_body_over_the_limit_is_a_413(control: Control, told: Told) -> None:
    """The limit of the data plane holds here too."""
    answer = await control.ask("POST", "/rollouts", json={"metadata": {"text": "a" * 1000}})

    assert answer.status_code == 413
    assert "over the limit of 1000 bytes" in told(answer)


@pytest.mark.parametrize("end", [None, ("POST", "/rollouts/r1/finish"), ("DELETE", "/rollouts/r1")])
async def test_an_id_is_taken_for_ever(control: Control, told: Told, end: tuple[str, str] | None) -> None:
    """Whether the rollout is open, finished or deleted."""
    await control.opened("r1", group="g")
    if end:
        await control.ask(*end)

    answer = await control.ask("POST", "/rollouts", json={"rollout_id": "r1", "group": "other"})

    assert answer.status_code == 409
    assert "'r1' is taken" in told(answer)


async def test_a_place_in_a_group_is_taken_once(control: Control, told: Told) -> None:
    """Two rollouts at one place would draw the same seeds and count twice."""
    await control.opened("r1", group="g", sample=3)

    again = await control.ask("POST", "/rollouts", json={"group": "g", "sample": 3})
    retried = await control.ask("POST", "/rollouts", json={"group": "g", "sample": 3, "attempt": 1})
    rerun = await control.ask("POST", "/rollouts", json={"group": "g", "sample": 3, "run": "second"})

    assert [again.status_code, retried.status_code, rerun.status_code] == [409, 201, 201]
    assert "group 'g'" in told(again)
    assert "sample 3" in told(again)


async def test_the_same_idempotency_key_answers_the_same(control: Control, told: Told) -> None:
    """A trainer that lost the answer asks again; the order and the spacing of its JSON do not matter."""
    headers = {"idempotency-key": "k1"}
    first = await control.ask("POST", "/rollouts", headers=headers, json={"group": "g", "ttl_s": 60})
    again = await control.ask("POST", "/rollouts", headers=headers, content=b'{"ttl_s":60.0,  "group":"g"}')
    other = await control.ask("POST", "/rollouts", headers=headers, json={"group": "g", "ttl_s": 61})
    elsewhere = await control.ask("POST", "/groups", headers=headers, json={"group": "g", "size": 1})

    assert (first.status_code, first.json()) == (201, again.json())
    assert (again.status_code, other.status_code, elsewhere.status_code) == (201, 409, 409)
    assert "Idempotency-Key" in told(other)
    assert len(await control.all_rollouts()) == 1


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_an_idempotency_key_out_of_bounds_is_refused(control: Control, told: Told, key: str) -> None:
    """It is stored for ever, so it has a length."""
    answer = await control.ask("POST", "/rollouts", headers={"idempotency-key": key}, json={})

    assert answer.status_code == 400
    assert "Idempotency-Key" in told(answer)


async def test_an_outcome_is_replaced_before_and_after_the_end_and_raises_the_revision(control: Control) -> None:
    """Rewards often come late."""
    await control.opened("r1")

    first = await control.ask("PUT", "/rollouts/r1/outcome", json={"reward": 0.5, "why": {"tests": [True, None]}})
    await control.ask("POST", "/rollouts/r1/finish")
    second = await control.ask("PUT", "/rollouts/r1/outcome", json={"reward": 1})

    assert first.json()["outcome"] == {"reward": 0.5, "why": {"tests": [True, None]}}
    assert second.json()["outcome"] == {"reward": 1}
    assert second.json()["revision"] == first.json()["revision"] + 1


async def test_an_outcome_needs_a_number_for_a_reward(control: Control, told: Told) -> None:
    """A reward of another type would fail far away, in the trainer's own arithmetic."""
    await control.opened("r1")

    for value in json.loads('["1", true, [1], {}]'):
        answer = await control.ask("PUT", "/rollouts/r1/outcome", json={"reward": value})
        assert answer.status_code == 400
        assert "reward" in told(answer)
    large = await control.ask("PUT", "/rollouts/r1/outcome", json={"log": "a" * 2_000_000})

    assert large.status_code == 400
    assert (await control.ask("GET", "/rollouts/r1")).json()["outcome"] is None


async def test_a_calls_outcome_is_kept_with_the_call(control: Control) -> None:
    """Process rewards belong to calls."""
    await control.opened("r1")
    planned = make.plan(make.ask(of=make.rollout("r1")))
    await control.wiring.store.reserve(make.reservation(planned))

    answer = await control.ask("PUT", f"/calls/{planned.call_id}/outcome", json={"reward": 0.25})

    shown = (await control.ask("GET", f"/calls/{planned.call_id}")).json()
    assert answer.json() == {"call_id": planned.call_id, "outcome": {"reward": 0.25}}
    assert shown["outcome"] == {"reward": 0.25}


async def test_finishing_is_idempotent_and_keeps_the_first_time(control: Control) -> None:
    """A trainer may ask again."""
    await control.opened("r1")

    first = (await control.ask("POST", "/rollouts/r1/finish")).json()
    again = (await control.ask("POST", "/rollouts/r1/finish")).json()

    assert first["state"] == "finished"
    assert first["finished_at"] is not None
    assert again == first


async def test_a_deleted_rollout_is_gone_but_still_known(control: Control) -> None:
    """Its id stays taken, and the answer says why nothing is there."""
    await control.opened("r1")
    await control.ask("DELETE", "/rollouts/r1")

    again = await control.ask("DELETE", "/rollouts/r1")
    shown = await control.ask("GET", "/rollouts/r1")
    others = [
        await control.ask("GET", "/rollouts/r1/calls"),
        await control.ask("POST", "/rollouts/r1/finish"),
        await control.ask("PUT", "/rollouts/r1/outcome", json={"reward": 1}),
    ]

    assert (again.status_code, again.json()) == (200, {"rollout_id": "r1", "state": "deleted"})
    assert shown.json()["state"] == "deleted"
    assert [answer.status_code for answer in others] == [410, 410, 410]


async def test_an_unknown_rollout_or_call_is_a_404_that_names_it(control: Control, told: Told) -> None:
    """Ids that could never be one are simply unknown."""
    for method, path in [
        ("GET", "/rollouts/nope"),
        ("GET", "/rollouts/nope/calls"),
        ("POST", "/rollouts/nope/finish"),
        ("DELETE", "/rollouts/nope"),
        ("PUT", "/rollouts/nope/outcome"),
        ("GET", "/calls/nope"),
        ("PUT", "/calls/nope/outcome"),
    ]:
        answer = await control.ask(method, path, json={})
        assert answer.status_code == 404, path
        assert "'nope'" in told(answer)
        assert answer.json()["error"]["code"] in {"unknown_rollout", "unknown_call"}
    strange = await control.ask("GET", "/rollouts/a%20b%00%ff")
    assert strange.status_code == 404


@pytest.mark.parametrize(
    ("changes", "base"),
    [
        ({"public_url": "https://rl.example/rollpin/"}, "https://rl.example/rollpin"),
        ({"control_port": 9000}, "http://127.0.0.1:8081"),
        ({"control_port": 9000, "host": "0.0.0.0"}, "http://proxy.test:8081"),
        ({"control_port": 9000, "host": "::1"}, "http://[::1]:8081"),
        ({"control_socket": "control.sock", "host": "0.0.0.0"}, "http://127.0.0.1:8081"),
    ],
)
async def test_the_base_url_is_where_harnesses_reach_the_proxy(control: Control, base: str) -> None:
    """Not where trainers do, unless both share a port."""
    grant = await control.opened("r1")

    assert grant["base_url"] == f"{base}/rollouts/r1/v1"


async def test_a_profile_that_every_engine_refuses_opens_no_rollout(control: Control, told: Told) -> None:
    """The finding is told when the rollout is opened, not at its first call."""
    control.engine_is(kind="sglang", deterministic=True)

    answer = await control.ask("POST", "/rollouts", json={"sampling": {"min_p": 0.1}})

    assert answer.status_code == 400
    assert "min_p" in told(answer)
    assert "set min_p = 0" in told(answer)
    assert await control.all_rollouts() == []


async def test_what_an_engine_makes_of_the_profile_is_a_warning(control: Control) -> None:
    """The rollout is opened all the same."""
    grant = await control.opened("r1", sampling={"temperature": 0})

    assert any("greedy" in warning for warning in grant["warnings"])
