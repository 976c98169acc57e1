"""The pool: a rollout stays with its engine while that is well and within its share, and moves only to its like."""

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.pool import Engine, Pool
from proxy.engine.upstream import Upstream
from proxy.errors import Conflict, EngineUnready, NotFound, ProfileRefused
from proxy.model import Profile, RolloutId
from proxy.settings import EngineSettings
from tests import make

TRAIN = Profile("train")
ROLLOUTS = [RolloutId(f"r{number}") for number in range(2000)]


def pool(*weights: float, require_replayable: bool = False) -> Pool:
    """Engines of one fingerprint that are all well, without a socket."""
    settings = [EngineSettings(url=f"http://e{place}:1", weight=weight) for place, weight in enumerate(weights)]
    made = Pool(settings, upstream=None, require_replayable=require_replayable)  # type: ignore[arg-type]
    for engine in made.engines:
        known(engine)
    return made


def known(engine: Engine, **facts: Any) -> None:
    """A look at this engine found these facts."""
    engine.ref = replace(make.engine(engine.name, **{"fingerprint": "one", **facts}), url=engine.url)
    engine.problem = None


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
    """The others keep their prefix caches."""
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


def test_a_rollout_that_moved_stays_where_it_went() -> None:
    """Its cache is there now; it does not go back when the lost engine returns."""
    engines = pool(1, 1, 1)
    before = choices(engines)
    engines.suspect("engine-1", "does not answer")
    moved = choices(engines)
    engines.engines[1].problem = None

    assert choices(engines) == moved != before


def test_a_rollout_never_moves_to_another_fingerprint() -> None:
    """Its ids would mean something else there: better no answer than another tokenizer's."""
    engines = pool(1, 1, 1)
    known(engines.engines[2], fingerprint="two")
    before = dict(zip(ROLLOUTS, choices(engines), strict=True))
    engines.suspect("engine-0", "does not answer")

    moved = [rollout for rollout, name in before.items() if name == "engine-0"]
    assert {engines.choose(rollout, TRAIN).name for rollout in moved} == {"engine-1"}
    engines.suspect("engine-1", "does not answer")
    with pytest.raises(EngineUnready, match="model, tokenizer and template"):
        engines.choose(moved[0], TRAIN)


def test_an_unknown_fingerprint_is_like_no_other() -> None:
    """Two engines that would not render are not taken for equals."""
    engines = pool(1, 1)
    for engine in engines.engines:
        known(engine, fingerprint=None)
    first = engines.choose(ROLLOUTS[0], TRAIN).name
    engines.suspect(first, "does not answer")

    with pytest.raises(EngineUnready):
        engines.choose(ROLLOUTS[0], TRAIN)


def test_engines_of_several_models_need_a_profile_that_names_one() -> None:
    """Else the samples of a group would come from different policies, and look right."""
    engines = pool(1, 1)
    known(engines.engines[1], model="judge")

    with pytest.raises(ProfileRefused, match=r"judge, policy.*profiles\.train\.model"):
        engines.choose(ROLLOUTS[0], TRAIN)
    named = replace(TRAIN, model="judge")
    assert {engines.choose(rollout, named).name for rollout in ROLLOUTS[:50]} == {"engine-1"}


@pytest.mark.anyio
async def test_a_rollout_leaves_an_engine_that_is_over_its_share_and_only_then() -> None:
    """Of two equal engines, one may have five eighths of the calls, or eight calls whatever the other has."""
    engines, plain = pool(1, 1), TRAIN.pinned()
    home = engines.choose(ROLLOUTS[0], TRAIN)
    async with AsyncExitStack() as calls:
        for _ in range(7):
            await calls.enter_async_context(engines._gates.passage(home, dict(plain)))
        assert engines.choose(ROLLOUTS[0], TRAIN) == home
        await calls.enter_async_context(engines._gates.passage(home, dict(plain)))
        moved = engines.choose(ROLLOUTS[0], TRAIN)
        assert moved != home

    assert engines.choose(ROLLOUTS[0], TRAIN) == moved


@pytest.mark.anyio
async def test_a_class_goes_where_it_need_not_wait() -> None:
    """Of two deterministic SGLangs, one runs greedy calls: a training call takes the other, whatever its hash says."""
    engines = pool(1, 1)
    for engine in engines.engines:
        known(engine, kind="sglang", deterministic=True)
    busy = engines.engines[0].ref
    assert busy
    async with engines._gates.passage(busy, dict(replace(TRAIN, temperature=0.0).pinned())):
        assert {engines.choose(rollout, TRAIN).name for rollout in ROLLOUTS[:50]} == {"engine-1"}
        greedy = replace(TRAIN, temperature=0.0)
        assert len({engines.choose(RolloutId(f"g{place}"), greedy).name for place in range(50)}) == 2


def test_a_drained_engine_gets_no_more_calls() -> None:
    """Its rollouts go to its like, and an empty pool says why."""
    engines = pool(1, 1)
    engines.engines[0].is_draining = True
    assert set(choices(engines)) == {"engine-1"}

    engines.engines[1].is_draining = True
    with pytest.raises(EngineUnready, match=r"e0:1: is being drained; http://e1:1: is being drained"):
        engines.choose(ROLLOUTS[0], TRAIN)


def test_engines_that_were_removed_are_gone_and_their_names_are_not_used_again() -> None:
    """Records name engines; a name means one engine for as long as the process lives."""
    engines = pool(1, 1)
    engines.remove("engine-0")

    assert set(choices(engines)) == {"engine-1"}
    with pytest.raises(NotFound):
        engines.remove("engine-0")
    assert engines._new(EngineSettings(url="http://e9:1")).name == "engine-2"


@pytest.mark.anyio
async def test_an_engine_is_added_once() -> None:
    """By its URL."""
    with pytest.raises(Conflict):
        await pool(1).add(EngineSettings(url="http://e0:1"))


def test_a_call_moves_only_to_an_engine_that_can_carry_out_its_plan() -> None:
    """The same fingerprint, no smaller a context, not tried before, and well."""
    engines = pool(1, 1, 1, 1)
    failed, small, other, good = engines.engines
    known(small, context_length=100)
    known(other, fingerprint="two")
    assert failed.ref
    assert good.ref

    assert engines.choose_instead(ROLLOUTS[0], TRAIN, [failed.ref]) == good.ref
    assert engines.choose_instead(ROLLOUTS[0], TRAIN, [good.ref, failed.ref]) is None
    good.problem = "does not answer"
    assert engines.choose_instead(ROLLOUTS[0], TRAIN, [failed.ref]) is None


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
    known(engines.engines[0], kind="sglang", deterministic=True)
    pinned = replace(TRAIN, min_p=0.1)

    assert {engines.choose(rollout, pinned).name for rollout in ROLLOUTS[:50]} == {"engine-1"}


def test_a_profile_that_no_engine_honours_is_refused_with_the_finding() -> None:
    """The line that the start-up check would print."""
    engines = pool(1)
    known(engines.engines[0], kind="sglang", deterministic=True)

    with pytest.raises(ProfileRefused, match="min_p") as unready:
        engines.choose(ROLLOUTS[0], replace(TRAIN, min_p=0.1))
    assert unready.value.code == "profile_refused"


def test_where_replay_is_required_an_engine_without_seeds_gets_no_calls() -> None:
    """SGLang without its deterministic mode."""
    engines = pool(1, require_replayable=True)
    known(engines.engines[0], kind="sglang", deterministic=False)

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
