"""The profiles in force: those of the settings, and those changed at run time.

A run-time change outlives a restart, or sampling would fall back in the middle of a rollout; but once somebody edits
that profile in the settings, the settings win again and the log says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from proxy.canonical import digest
from proxy.errors import NotFound
from proxy.model import Profile, Rollout
from proxy.record.store import StoredProfile
from proxy.settings import ProfileSettings, profile_from


class Profiles:
    """Named profiles; reading is free of I/O."""

    def __init__(self, configured: Mapping[str, ProfileSettings]) -> None:
        self._configured = {name: values.named(name) for name, values in configured.items()}
        self._in_force = dict(self._configured)
        self.changes = 0
        """How often a profile was changed in this process."""

    def restore(self, stored: Iterable[StoredProfile]) -> tuple[str, ...]:
        """Put stored changes in force; returns the names of those that newer settings overrule."""
        overruled = []
        for change in stored:
            name = change.profile.name
            if change.base == self.base_of(name):
                self._in_force[name] = change.profile
            else:
                overruled.append(name)
        return tuple(overruled)

    def base_of(self, name: str) -> str:
        """Digest of what the settings say of a profile."""
        configured = self._configured.get(name)
        return digest(asdict(configured) if configured else None)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._in_force))

    def get(self, name: str) -> Profile:
        """The profile in force; raises NotFound."""
        try:
            return self._in_force[name]
        except KeyError:
            raise NotFound(f"no profile is named {name!r}", code="unknown_profile") from None

    def put(self, profile: Profile) -> None:
        """Put a profile in force from the next call on."""
        self._in_force[profile.name] = profile
        self.changes += 1

    def of_rollout(self, rollout: Rollout) -> Profile:
        """The rollout's profile with its own values on top."""
        profile = self.get(rollout.profile)
        if not rollout.sampling:
            return profile
        return profile_from(profile.name, {**_values(profile), **rollout.sampling})


def _values(profile: Profile) -> dict[str, object]:
    return {name: value for name, value in asdict(profile).items() if name != "name"}
