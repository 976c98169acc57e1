"""The pool: a rollout stays with its engine, and only the lost engine's rollouts move."""

from collections import Counter
from dataclasses import replace

import pytest

from proxy.engine.pool import Pool
from proxy.engine.upstream import Upstream
from proxy.errors import EngineUnready, ProfileRefused
from proxy.model import Profile, RolloutId
from proxy.settings import EngineSettings
from tests import make

TRAIN = Profile("train")
ROLLOUTS = [RolloutId(f"r{number}") for number in range(2000)]


def pool(*weights: float, require_replayable: bool = False) -> Pool:
    """Engines that are all well, without a socket."""
    settings = [EngineSettings(url=f"http://e{place}:1", weight=weight) for place, weight in enumerate(weights)]
    made = Pool(settings, upstream=None, require_replayable=require_replayable)  # type: ignore[arg-type]
    for engine in made.engines:
        engine.ref, engine.problem = make.engine(engine.name), None
    return made


def choices(chosen: Pool) -> list[str]:
    return [chosen.choose(rollout, TRAIN).name for rollout in ROLLOUTS]


def test_a_rollout_stays_with_its_engine() -> None:
    """Also in another process: nothing but ids and URLs decides."""
    assert choices(pool(1, 1, 1)) == choices(pool(1, 1, 1))


def test_equal_engines_share_equally() -> None:
    """Within what chance allows over 2000 rollouts."""
    counts = Counter(choices(pool(1, 1, 1)))

    assert all(abs(count - 2000 / 3) < 120 for count in counts.values())


def test_weights_are_shares() -> None:
    """An engine of weight 3 gets three times the rollouts."""
    counts = Counter(choices(pool(3, 1)))

    assert counts["engine-0"] / counts["engine-1"] == pytest.approx(3, rel=0.2)


def test_only_the_lost_engines_rollouts_move() -> None:
    """The others keep their prefix caches, and all return when it does."""
    engines = pool(1, 1, 1)
    before = choices(engines)
    engines.suspect("engine-1", "does not answer")
    after = choices(engines)

    assert all(now == was for now, was in zip(after, before, strict=True) if was != "engine-1")
    assert set(after) == {"engine-0", "engine-2"}


def test_the_lost_engines_rollouts_spread_over_the_others() -> None:
    """No neighbour has to take them all."""
    engines = pool(1, 1, 1)
    moved = [place for place, name in enumerate(choices(engines)) if name == "engine-1"]
    engines.suspect("engine-1", "does not answer")
    now = choices(engines)
    counts = Counter(now[place] for place in moved)

    assert min(counts.values()) > len(moved) / 3


def test_without_a_well_engine_the_problems_are_told() -> None:
    """503, with the reason of each."""
    engines = pool(1, 1)
    for engine in engines.engines:
        engines.suspect(engine.name, f"{engine.name} is gone")

    with pytest.raises(EngineUnready, match=r"engine-0 is gone; .*engine-1 is gone") as unready:
        engines.choose(ROLLOUTS[0], TRAIN)
    assert unready.value.status == 503


def test_an_engine_never_asked_gets_no_calls() -> None:
    """Its first probe comes before its first call."""
    engines = Pool([EngineSettings(url="http://e:1")], upstream=None, require_replayable=False)  # type: ignore[arg-type]

    with pytest.raises(EngineUnready, match="not asked yet"):
        engines.choose(ROLLOUTS[0], TRAIN)


def test_a_profile_goes_only_where_it_is_honoured() -> None:
    """Min_p with a seed kills SGLang; vLLM takes it."""
    engines = pool(1, 1)
    engines.engines[0].ref = make.engine("engine-0", kind="sglang", deterministic=True)
    pinned = replace(TRAIN, min_p=0.1)

    assert {engines.choose(rollout, pinned).name for rollout in ROLLOUTS[:50]} == {"engine-1"}


def test_a_profile_that_no_engine_honours_is_refused_with_the_finding() -> None:
    """The line that the start-up check would print."""
    engines = pool(1)
    engines.engines[0].ref = make.engine("engine-0", kind="sglang", deterministic=True)

    with pytest.raises(ProfileRefused, match="min_p") as unready:
        engines.choose(ROLLOUTS[0], replace(TRAIN, min_p=0.1))
    assert unready.value.code == "profile_refused"


def test_where_replay_is_required_an_engine_without_seeds_gets_no_calls() -> None:
    """SGLang without its deterministic mode."""
    engines = pool(1, require_replayable=True)
    engines.engines[0].ref = make.engine("engine-0", kind="sglang", deterministic=False)

    with pytest.raises(ProfileRefused, match="seed"):
        engines.choose(ROLLOUTS[0], TRAIN)


def test_findings_name_every_known_engine() -> None:
    """What stands between a profile and each."""
    engines = pool(1, 1)

    assert {finding.engine for finding in engines.findings(replace(TRAIN, temperature=0.0))} == {"engine-0", "engine-1"}


def test_an_engine_token_does_not_show() -> None:
    """Neither in the settings nor in the reference that calls carry."""
    engines = Pool(
        [EngineSettings(url="http://e:1", api_key="a-secret-of-16-chars")],  # type: ignore[arg-type]
        Upstream(connect_s=1, silence_s=1, probe_s=1, reply_bytes=1),
        require_replayable=False,
    )

    assert engines.engines[0].api_key == "a-secret-of-16-chars"
    assert "a-secret" not in repr(engines.engines[0])
    assert "a-secret" not in repr(replace(make.engine(), api_key="a-secret-of-16-chars"))
