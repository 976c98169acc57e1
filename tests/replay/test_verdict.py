"""Recorded and drawn tokens held against each other."""

from proxy.replay.verdict import Difference, Sampled, compare

ONE, TWO, THREE = Sampled(1, -0.5), Sampled(2, -1.0), Sampled(3, -2.0)


def test_equal_tokens_within_the_tolerance_are_the_same() -> None:
    """And the differences are told."""
    likeness = compare((ONE, TWO), (ONE, Sampled(2, -1.25)), start=0, tolerance=0.5)

    assert likeness.divergence is None
    assert (likeness.difference, likeness.difference.mean) == (Difference(2, 0.25, 0.25), 0.125)


def test_another_token_is_told_with_both_logprobs() -> None:
    """At its place in the whole completion."""
    found = compare((ONE, TWO), (ONE, THREE), start=10, tolerance=0).divergence

    assert found is not None
    assert (found.at, found.kind, found.recorded, found.drawn, found.gap) == (11, "token", TWO, THREE, -1.0)


def test_an_early_end_and_a_late_one_are_told_apart() -> None:
    """One has no drawn token, the other no recorded one."""
    early = compare((ONE, TWO), (ONE,), start=0, tolerance=0).divergence
    late = compare((ONE,), (ONE, TWO), start=0, tolerance=0).divergence

    assert early is not None
    assert late is not None
    assert (early.at, early.kind, early.drawn) == (1, "ended", None)
    assert (late.at, late.kind, late.recorded) == (1, "went_on", None)


def test_a_logprob_beyond_the_tolerance_diverges_only_where_all_tokens_are_equal() -> None:
    """Tokens decide first."""
    moved = Sampled(1, -0.9)
    equal = compare((ONE, TWO), (moved, TWO), start=0, tolerance=0.1).divergence
    other = compare((ONE, TWO), (moved, THREE), start=0, tolerance=0.1).divergence

    assert equal is not None
    assert other is not None
    assert (equal.at, equal.kind) == (0, "logprob")
    assert (other.at, other.kind) == (1, "token")
