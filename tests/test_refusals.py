"""What is remembered of requests that were turned away."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from proxy.errors import BadAsk, Busy, EngineUnready, LimitReached, ProxyError, StoreDown
from proxy.model import Ask
from proxy.refusals import Refusals
from tests import make


def asked(tries: int = 0, **changes: Any) -> Ask:
    """A request, at its first try or marked as a retry."""
    ask = make.ask(**changes)
    return replace(ask, identity=replace(ask.identity, retry_count=tries))


def turn_away(refusals: Refusals, ask: Ask, error: ProxyError | None = None) -> None:
    with suppress(ProxyError), refusals.noting(ask):
        raise error or Busy("too many")


@pytest.mark.parametrize("error", [Busy("too many"), EngineUnready("none is well")])
def test_a_refusal_explains_one_retry(error: ProxyError) -> None:
    """The next mark means what marks mean."""
    refusals = Refusals()
    turn_away(refusals, asked(), error)

    assert [refusals.explain(asked(tries=1)) for _ in range(2)] == [True, False]


def test_each_refusal_explains_a_retry() -> None:
    """Samples that ask the same are turned away one by one; a retry that is turned away again is no other sample."""
    refusals = Refusals()
    for tries in (0, 0, 1, 2):
        turn_away(refusals, asked(tries))

    assert [refusals.explain(asked(tries=3)) for _ in range(3)] == [True, True, False]


def test_a_request_without_a_mark_is_no_retry() -> None:
    """It needs no explanation, and uses none up."""
    refusals = Refusals()
    turn_away(refusals, asked())

    assert [refusals.explain(asked(tries)) for tries in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    "other",
    [
        asked(1, body={"stop": "x"}),
        asked(1, of=make.rollout("r2")),
        asked(1, api="responses"),
    ],
    ids=["body", "rollout", "api"],
)
def test_another_request_is_not_explained(other: Ask) -> None:
    """Retries are the same to the letter."""
    refusals = Refusals()
    turn_away(refusals, asked())

    assert not refusals.explain(other)


@pytest.mark.parametrize(
    "error",
    [StoreDown("disk full"), BadAsk("no"), LimitReached("enough")],
    ids=lambda error: error.code,
)
def test_what_may_have_been_written_or_is_refused_for_good_is_not_noted(error: ProxyError) -> None:
    """A reservation may stand where the store fell silent; what no retry mends has none."""
    refusals = Refusals()
    turn_away(refusals, asked(), error)

    assert not refusals.explain(asked(tries=1))


def test_the_oldest_refusal_is_forgotten_first() -> None:
    """However many are turned away."""
    refusals = Refusals(most=2)
    for text in ("a", "b", "c"):
        turn_away(refusals, asked(body={"user": text}))

    assert [refusals.explain(asked(1, body={"user": text})) for text in ("a", "b", "c")] == [False, True, True]
