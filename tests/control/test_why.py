"""GET /rollouts/{id}/why over a real store; the engine is known and does not answer."""

from typing import Any

import pytest

from proxy.control import why as why_route
from proxy.control.edge import json_pieces
from proxy.model import Parent, Prefix
from tests.control.conftest import Control, Told
from tests.control.test_trajectories import said
from tests.served import READER

pytestmark = pytest.mark.anyio

REFUSED = Prefix(eligible=True, requested=False, supplied=False, length=0, reason="template_refuses")


async def forked(control: Control) -> tuple[str, str]:
    """A rollout whose second call was tokenised anew."""
    await control.opened("r1")
    first = await said(control, "r1", (1, 2), (10, 11))
    parent = Parent("resolved", "one_match", first)
    asked = {"parent": parent, "prefix": REFUSED, "engine": control.wiring.pool.engines[0].ref}
    return first, await said(control, "r1", (1, 2, 10, 99, 3), (12,), **asked)


async def why(control: Control, **query: Any) -> dict[str, Any]:
    answer = await control.ask("GET", "/rollouts/r1/why", token=READER, params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_fork_is_told_with_the_ids_on_both_sides(control: Control) -> None:
    """The read token will do; where no engine tells the texts, that is said."""
    first, second = await forked(control)

    found = await why(control)

    (call,) = found["calls"]
    assert (found["schema"], call["call_id"], call["parent"]["call_id"]) == ("rollpin.why/1", second, first)
    assert [finding["reason"] for finding in call["findings"]] == ["not_extending", "template_refuses"]
    difference = call["difference"]
    assert [(one["place"], one["id"]) for one in difference["parent"]] == [(0, 1), (1, 2), (2, 10), (3, 11)]
    assert [one["id"] for one in difference["prompt"]] == [1, 2, 10, 99, 3]
    assert (difference["texts_by"], difference["texts_missing"]) == (None, "the engine did not tell what the ids say")


async def test_an_engine_of_another_tokenizer_is_not_asked(control: Control) -> None:
    """Nor one that is not well."""
    await forked(control)
    control.engine_is(model="another")

    (call,) = (await why(control))["calls"]

    assert call["difference"]["texts_missing"] == "no engine that is well has the tokenizer that drew the call"


async def test_an_engine_is_not_asked_for_more_than_it_should_be(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids are there; the texts of a call are told where that call is asked for alone."""
    monkeypatch.setattr(why_route, "MOST_TEXTS", 3)
    await forked(control)

    (call,) = (await why(control))["calls"]

    assert call["difference"]["texts_missing"].endswith("ask for this call alone")
    assert {one["text"] for one in call["difference"]["prompt"]} == {None}


async def test_one_call_is_asked_for_by_its_id(control: Control, told: Told) -> None:
    """One that is not the rollout's is unknown."""
    first, _second = await forked(control)

    (call,) = (await why(control, call=first))["calls"]
    unknown = await control.ask("GET", "/rollouts/r1/why", params={"call": "ca_nope"})
    misspelt = await control.ask("GET", "/rollouts/r1/why", params={"cal": first})

    assert (call["call_id"], call["findings"]) == (first, [])
    assert (unknown.status_code, misspelt.status_code) == (404, 400)
    assert "ca_nope" in told(unknown)


async def test_unknown_and_deleted_rollouts_explain_nothing(control: Control) -> None:
    """404 and 410; and without a token 401."""
    await control.opened("r1")
    await control.ask("DELETE", "/rollouts/r1")

    assert (await control.ask("GET", "/rollouts/r1/why")).status_code == 410
    assert (await control.ask("GET", "/rollouts/none/why")).status_code == 404
    assert (await control.ask("GET", "/rollouts/r1/why", token=None)).status_code == 401


async def test_a_document_of_many_calls_is_encoded_call_by_call() -> None:
    """Whoever encodes a piece holds everybody else up, so that none may hold more than one call's ids."""
    calls = [{"ids": [1, 2], "none": {}, "at": {"a": [1]}}, {"ids": []}]
    document = {"calls": calls, "made": ({"n": n} for n in (1, 2)), "cursor": None, "empty": [], "void": iter(())}

    pieces = list(json_pieces(document, deep=3))

    assert "".join(pieces) == (
        '{"calls":[{"ids":[1,2],"none":{},"at":{"a":[1]}},{"ids":[]}],"made":[{"n":1},{"n":2}],"cursor":null,'
        '"empty":[],"void":[]}'
    )
    assert "[1,2]" in pieces
    assert list(json_pieces("\ud800", 3)) == ['"\\ud800"']
