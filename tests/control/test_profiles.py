"""Profiles read and changed while the proxy runs."""

from typing import Any

import pytest

from proxy.model import RolloutId
from proxy.profiles import Profiles
from tests import make
from tests.control.conftest import Control, Told

pytestmark = pytest.mark.anyio

TRAIN = {
    "name": "train",
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "max_tokens_cap": None,
    "prefix_supply": True,
    "model": None,
}
BAD_BODIES: list[tuple[Any, str]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": None}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": 2.5}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"max_tokens_cap": 0}, "max_tokens_cap"),
    ({"prefix_supply": "yes"}, "prefix_supply"),
    ({"model": ""}, "model"),
    ({"temprature": 1}, "temprature"),
    ({"name": "other"}, "name"),
]


async def test_both_built_in_profiles_are_there_and_complete(control: Control) -> None:
    """Every value that decides a draw is shown."""
    answer = await control.ask("GET", "/profiles")

    validation, train = sorted(answer.json()["profiles"], key=lambda profile: profile["prefix_supply"])
    assert train == TRAIN
    assert validation == {**TRAIN, "name": "validation", "prefix_supply": False}
    assert (await control.ask("GET", "/profiles/train")).json() == TRAIN


async def test_what_a_change_leaves_out_takes_its_default(control: Control) -> None:
    """A profile is a complete set, never a patch on an earlier one."""
    await control.ask("PUT", "/profiles/train", json={"top_k": 20})

    answer = await control.ask("PUT", "/profiles/train", json={"temperature": 0.7})

    assert answer.status_code == 200
    assert {name: value for name, value in answer.json().items() if name != "warnings"} == {**TRAIN, "temperature": 0.7}
    assert (await control.ask("GET", "/profiles/train")).json()["temperature"] == 0.7


async def test_what_is_read_can_be_put_back(control: Control) -> None:
    """The name beside the values is no fault while it agrees with the path."""
    read = (await control.ask("GET", "/profiles/validation")).json()

    answer = await control.ask("PUT", "/profiles/validation", json=read)

    assert answer.status_code == 200


async def test_a_new_profile_can_be_added_and_used(control: Control) -> None:
    """Names are the user's own."""
    await control.ask("PUT", "/profiles/hot.2", json={"temperature": 1.5})

    grant = await control.opened("r1", profile="hot.2")

    assert grant["profile"] == "hot.2"


async def test_a_change_holds_for_rollouts_that_are_open(control: Control) -> None:
    """From the next call on."""
    await control.opened("r1", sampling={"top_k": 20})
    await control.ask("PUT", "/profiles/train", json={"temperature": 0.7})

    rollout = await control.wiring.store.rollout(RolloutId("r1"))

    assert rollout
    assert control.wiring.profiles.of_rollout(rollout).pinned()["temperature"] == 0.7
    assert control.wiring.profiles.of_rollout(rollout).pinned()["top_k"] == 20


async def test_a_change_outlives_a_restart(control: Control) -> None:
    """It is stored before it is in force."""
    await control.ask("PUT", "/profiles/train", json={"temperature": 0.7})

    restarted = Profiles(control.wiring.settings.profiles)
    overruled = restarted.restore(await control.wiring.store.stored_profiles())

    assert overruled == ()
    assert restarted.get("train").temperature == 0.7


async def test_a_bad_profile_is_one_readable_line_and_changes_nothing(control: Control, told: Told) -> None:
    """The profile in force stays."""
    for body, word in BAD_BODIES:
        answer = await control.ask("PUT", "/profiles/train", json=body)

        assert answer.status_code == 400, body
        assert word in told(answer), body
        assert answer.json()["error"]["code"] == "invalid_profile"
    assert (await control.ask("GET", "/profiles/train")).json() == TRAIN
    assert await control.wiring.store.stored_profiles() == ()


async def test_what_cannot_be_stored_does_not_come_in_force(control: Control) -> None:
    """Or a restart would bring the old values back in the middle of a run."""
    await control.wiring.store.close()

    answer = await control.ask("PUT", "/profiles/train", json={"temperature": 0.7})

    assert answer.status_code == 503
    assert control.wiring.profiles.get("train").temperature == 1.0


@pytest.mark.parametrize("name", ["a b", "-a", "ä", "a" * 65])
async def test_a_name_that_cannot_be_one_is_refused(control: Control, told: Told, name: str) -> None:
    """Reading it is a 404, writing it a 400."""
    read = await control.ask("GET", f"/profiles/{name}")
    written = await control.ask("PUT", f"/profiles/{name}", json={})

    assert (read.status_code, written.status_code) == (404, 400)
    assert "profile name" in told(written)


async def test_a_profile_that_kills_the_engine_is_refused_with_setting_engine_and_remedy(
    control: Control, told: Told
) -> None:
    """SGLang dies of a seed beside min_p."""
    control.engine_is(kind="sglang", deterministic=True)

    answer = await control.ask("PUT", "/profiles/train", json={"min_p": 0.1})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_profile"
    assert all(word in told(answer) for word in ("min_p", "engine-0", "set min_p = 0"))


async def test_what_can_be_served_but_not_honoured_is_a_warning(control: Control) -> None:
    """vLLM raises small temperatures."""
    answer = await control.ask("PUT", "/profiles/train", json={"temperature": 0.001})

    assert answer.status_code == 200
    assert any("0.01" in warning for warning in answer.json()["warnings"])


@pytest.mark.parametrize("changes", [{"engines": ("http://127.0.0.1:1", "http://127.0.0.1:2")}])
async def test_a_profile_that_one_engine_of_two_refuses_is_put_with_a_warning(control: Control) -> None:
    """The pool keeps it off that engine."""
    control.engine_is(kind="sglang", deterministic=True)
    other = control.wiring.pool.engines[1]
    other.ref = make.engine(other.name)

    answer = await control.ask("PUT", "/profiles/train", json={"min_p": 0.1})

    assert answer.status_code == 200
    assert any("engine-0" in warning for warning in answer.json()["warnings"])
