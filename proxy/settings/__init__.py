"""Every setting, with its default, its range and what it is for.

One key has one meaning in rollpin.toml, as ROLLPIN_… in the environment (nested names joined by two underscores) and
as a flag; flags win over the environment, the environment over the file. docs/settings.md is generated from here.

A table of its own is a `…Settings`; what stands at the top level is a `…Fields`, one for each file:

    address         where the proxy is reached
    engines         what answers
    profiles        what calls are pinned to
    pinning         how strictly
    trajectories    what is left out of training
    replays         how records are held against the engines
    exchange        what passes between harness and engine
    store           where records live
    access          who is let in
    limits          what may be used up
    timeouts        how long anybody waits
    whole           all of them, and what they must agree on
    values, places, faults: what may stand there, where it is looked for, and what is told where it is wrong
"""

from proxy.settings.address import is_loopback, url_at
from proxy.settings.engines import EngineSettings
from proxy.settings.faults import faults
from proxy.settings.limits import LONGEST_TTL_S, LimitSettings
from proxy.settings.places import CONFIG_VARIABLE, ENV_PREFIX, NESTED, chosen_file, config_file
from proxy.settings.profiles import ProfileSettings, profile_from
from proxy.settings.timeouts import TimeoutSettings
from proxy.settings.trajectories import BUILT_IN_RULES, SideCallSettings
from proxy.settings.values import LARGEST_INT32, NO_LIMIT, SECRETS
from proxy.settings.whole import Settings

__all__ = [
    "BUILT_IN_RULES",
    "CONFIG_VARIABLE",
    "ENV_PREFIX",
    "LARGEST_INT32",
    "LONGEST_TTL_S",
    "NESTED",
    "NO_LIMIT",
    "SECRETS",
    "EngineSettings",
    "LimitSettings",
    "ProfileSettings",
    "Settings",
    "SideCallSettings",
    "TimeoutSettings",
    "chosen_file",
    "config_file",
    "faults",
    "is_loopback",
    "profile_from",
    "url_at",
]
