"""Profiles in force: those of the settings, and those changed at run time until the settings change."""

from dataclasses import replace

import pytest

from proxy.errors import BadAsk, NotFound
from proxy.model import Profile
from proxy.profiles import Profiles
from proxy.record.store import StoredProfile
from proxy.settings import ProfileSettings
from tests import make

CONFIGURED = {"train": ProfileSettings(temperature=0.7), "validation": ProfileSettings(prefix_supply=False)}
HOTTER = Profile("train", temperature=1.2)


def changed(profile: Profile, base: str) -> StoredProfile:
    return StoredProfile(profile, base, make.STARTED_AT)


def test_the_settings_profiles_are_in_force() -> None:
    """By name, in order."""
    profiles = Profiles(CONFIGURED)

    assert profiles.names() == ("train", "validation")
    assert profiles.get("train") == Profile("train", temperature=0.7)


def test_an_unknown_profile_is_told() -> None:
    """With its name."""
    with pytest.raises(NotFound, match="'other'") as missing:
        Profiles(CONFIGURED).get("other")

    assert missing.value.code == "unknown_profile"


def test_a_change_is_in_force_at_once() -> None:
    """From the next call on."""
    profiles = Profiles(CONFIGURED)
    profiles.put(HOTTER)

    assert profiles.get("train") is HOTTER


def test_a_change_outlives_a_restart() -> None:
    """Or sampling would fall back in the middle of a rollout."""
    profiles = Profiles(CONFIGURED)
    overruled = profiles.restore([changed(HOTTER, profiles.base_of("train"))])

    assert (profiles.get("train"), overruled) == (HOTTER, ())


def test_edited_settings_overrule_an_older_change() -> None:
    """And the owner is told by name."""
    base = Profiles(CONFIGURED).base_of("train")
    profiles = Profiles(CONFIGURED | {"train": ProfileSettings(temperature=0.9)})
    overruled = profiles.restore([changed(HOTTER, base)])

    assert (profiles.get("train").temperature, overruled) == (0.9, ("train",))


def test_a_profile_of_run_time_alone_outlives_a_restart_too() -> None:
    """The settings never knew it."""
    profiles = Profiles(CONFIGURED)
    profiles.restore([changed(replace(HOTTER, name="late"), profiles.base_of("late"))])

    assert profiles.names() == ("late", "train", "validation")


def test_a_rollouts_own_values_lie_on_top() -> None:
    """Everything else is the profile's."""
    rollout = make.rollout(sampling={"top_k": 5, "max_tokens_cap": 9})

    assert Profiles(CONFIGURED).of_rollout(rollout) == Profile("train", temperature=0.7, top_k=5, max_tokens_cap=9)
    assert Profiles(CONFIGURED).of_rollout(make.rollout()) == Profile("train", temperature=0.7)


@pytest.mark.parametrize("values", [{"temperature": -1}, {"top_p": 0}, {"top_k": 0}, {"unknown": 1}])
def test_values_out_of_range_are_refused(values: dict[str, float]) -> None:
    """As they are in the settings."""
    with pytest.raises(BadAsk):
        Profiles(CONFIGURED).of_rollout(make.rollout(sampling=values))
