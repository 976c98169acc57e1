"""Seeds: the same identity and conversation give the same seed, anywhere; anything else gives another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadAsk
from proxy.model import Identity
from proxy.request.seed import ClientSeedMode, SeedRule, mint_seed, read_client_seed, seed_from_client
from tests import make

CONTEXT = "sha256:" + "0" * 64
OTHER_CONTEXT = "sha256:" + "1" * 64
# Computed apart from the proxy: the first 4 bytes, big endian, less the sign bit, of SHA-256 over the JSON text of
# mark, run seed, group, sample, attempt, context, occurrence and choice.
GROUP_SEEDS = (586502403, 604506759, 1495967495, 386187315)


def rule(mode: ClientSeedMode, client_seed: int | None, choice: int = 0) -> SeedRule:
    who = make.rollout("r1", group="gsm8k-17")
    identity = Identity(who, lane_signals={}, idempotency_key=None, retry_count=0)
    return SeedRule(mode, 7, identity, CONTEXT, choice, client_seed)


@pytest.mark.parametrize(("sample", "seed"), list(enumerate(GROUP_SEEDS)))
def test_a_group_has_these_seeds(sample: int, seed: int) -> None:
    """The worked example of the docs: run seed 7, group gsm8k-17, first attempt, first draw."""
    assert mint_seed(7, "gsm8k-17", sample, 0, CONTEXT, 0, 0) == seed


@pytest.mark.parametrize(
    ("place", "value", "seed"),
    [
        (0, 8, 1439674783),
        (1, "gsm8k-18", 1170842828),
        (1, "größe/\u03b1", 370124630),
        (3, 1, 337453698),
        (4, OTHER_CONTEXT, 530861441),
        (5, 1, 1461285507),
        (6, 1, 1597038918),
    ],
    ids=["run_seed", "group", "group in unicode", "attempt", "context", "occurrence", "choice"],
)
def test_every_part_of_the_identity_counts(place: int, value: object, seed: int) -> None:
    """Golden values for a change of each part alone."""
    parts: list[object] = [7, "gsm8k-17", 0, 0, CONTEXT, 0, 0]
    parts[place] = value

    assert mint_seed(*parts) == seed  # type: ignore[arg-type]


@given(st.integers(0, 2**53), st.text(), st.integers(0, 2**31), st.integers(0, 99), st.integers(0, 99))
def test_seeds_fit_31_bits(run_seed: int, group: str, sample: int, attempt: int, occurrence: int) -> None:
    """Engines take signed 32-bit seeds at the least, and vLLM reads -1 as none."""
    assert 0 <= mint_seed(run_seed, group, sample, attempt, CONTEXT, occurrence, 0) < 2**31


@given(st.integers(0, 2**53))
def test_samples_of_a_group_never_share_a_seed(run_seed: int) -> None:
    """Identical samples make every advantage zero."""
    seeds = {mint_seed(run_seed, "g", sample, 0, CONTEXT, 0, 0) for sample in range(64)}

    assert len(seeds) == 64


def test_the_rollout_decides_not_its_name() -> None:
    """The rollout id and the run are labels: a rerun under other names draws the same."""
    first, again = (
        SeedRule("override", 7, make.ask(of=make.rollout(name, run=name, group="g")).identity, CONTEXT, 0, None)
        for name in ("r1", "r2")
    )

    assert first.mint(3) == again.mint(3)


def test_override_ignores_the_clients_seed() -> None:
    """The default: the pin decides."""
    ruled = rule("override", 42)

    assert (ruled.source, ruled.mint(0), ruled.must_be_exclusive) == ("minted", GROUP_SEEDS[0], False)


@pytest.mark.parametrize(
    ("client_seed", "choice", "seed"), [(42, 0, 1021820133), (42, 1, 78388995), (-1, 0, 946069605)]
)
def test_honour_draws_from_the_clients_seed_alone(client_seed: int, choice: int, seed: int) -> None:
    """Golden values; neither who asks nor how often counts, so the store has to keep samples apart."""
    ruled = rule("honour", client_seed, choice)

    assert (ruled.source, ruled.mint(0), ruled.mint(5), ruled.must_be_exclusive) == ("client", seed, seed, True)


def test_mix_adds_the_clients_seed_to_the_identity() -> None:
    """Golden value; occurrences stay apart."""
    ruled = rule("mix", 42)

    assert (ruled.source, ruled.mint(0), ruled.must_be_exclusive) == ("mixed", 74563773, False)
    assert ruled.mint(1) != ruled.mint(0)


@pytest.mark.parametrize("mode", ["honour", "mix"])
def test_without_a_client_seed_every_mode_mints(mode: ClientSeedMode) -> None:
    """A client that says nothing gets the run's own seed."""
    ruled = rule(mode, None)

    assert (ruled.source, ruled.mint(0), ruled.must_be_exclusive) == ("minted", GROUP_SEEDS[0], False)


def test_honour_counts_choices_apart() -> None:
    """N choices under one client seed still differ."""
    assert len({seed_from_client(42, choice) for choice in range(8)}) == 8


@pytest.mark.parametrize("value", [None, 0, -1, 2**63 - 1, -(2**63)])
def test_integers_of_64_bits_are_seeds(value: int | None) -> None:
    """Whatever an OpenAI client may send."""
    assert read_client_seed(value) == value


@pytest.mark.parametrize("value", [True, 1.5, 1.0, "7", [], {}, 2**63, -(2**63) - 1])
def test_anything_else_is_refused_by_name(value: object) -> None:
    """The field is named, so that its owner finds it."""
    with pytest.raises(BadAsk, match="seed") as refused:
        read_client_seed(value)

    assert refused.value.param == "seed"
