"""Rescores: recorded tokens under the weights of now, and what may be compared with what."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from proxy.replay.mismatch import Mismatch, incomparable, mismatch_of
from proxy.sim.engine import Kind
from tests.fakes import FakeEngine, Fault, Say
from tests.fakes.front import Front, serving
from tests.replay.harness import rescore
from tests.replay.test_served import two_turns
from tests.served import ServedProxy, served, settings_for


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    with FakeEngine(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path_factory.mktemp("rescore"), engine.url)) as running:
        yield running


def test_the_same_weights_give_the_recorded_logprobs(proxy: ServedProxy) -> None:
    """Streamed or whole, first turn or later: nothing has moved."""
    client = proxy.rollout()
    two_turns(client)
    client.stream("hello", max_tokens=20)
    calls = client.calls()
    told, summary = rescore(proxy, client.rollout_id, logprobs=True)

    assert [one["result"] for one in told] == ["rescored"] * 3
    assert {one["call_id"]: one["logprobs"] for one in told} == {call["call_id"]: call["logprobs"] for call in calls}
    assert summary["compared"] == sum(len(call["logprobs"]) for call in calls)
    assert (summary["largest_difference"], summary["kl_k3"]) == (0.0, 0.0)


def test_logprobs_are_told_only_where_they_are_asked_for(proxy: ServedProxy) -> None:
    """They are as long as the reply."""
    client = proxy.rollout()
    client.chat("hello")
    client.calls()

    assert rescore(proxy, client.rollout_id)[0][0]["logprobs"] is None


def test_another_policy_shows_as_mismatch(tmp_path: Path) -> None:
    """Words that the present model would hardly say."""
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        engine.script(Say("zzz qqq", reasoning=None))
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        told, summary = rescore(proxy, client.rollout_id)

    assert told[0]["result"] == "rescored"
    assert summary["mean_absolute_difference"] > 1
    assert summary["kl_k3"] > 0


def test_logprobs_of_another_distribution_are_told_and_not_compared(proxy: ServedProxy) -> None:
    """At temperature 0.5 the recorded ones are not the bare policy's, or it is not known that they are."""
    client = proxy.rollout(sampling={"temperature": 0.5})
    client.chat("hello")
    client.calls()
    (told,), summary = rescore(proxy, client.rollout_id, logprobs=True)

    assert (told["result"], told["not_comparable"], told["compared"]) == ("rescored", ["temperature"], 0)
    assert told["logprobs"]
    assert (summary["rescored"], summary["mean_difference"]) == (1, None)


def test_nothing_comes_out_of_a_cache_of_earlier_weights(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Each question has a salt of its own."""
    client = proxy.rollout()
    client.chat("hello")
    client.calls()
    bodies = []
    for _ in range(2):
        rescore(proxy, client.rollout_id)
        bodies.append(engine.scored[-1] if engine.scored else engine.requests[-1].body)

    assert bodies[0]["cache_salt"] != bodies[1]["cache_salt"]


class Updated(Front):
    """An engine whose weights change while it scores: what it then tells is of the old ones, or of the new."""

    async def pass_on(self, request: Request) -> Response:
        answer = await super().pass_on(request)
        if request.url.path in {"/generate", "/v1/completions"}:
            self._vllm.post("/update_weight_version", json={"new_version": "w2"}).raise_for_status()
        return answer


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_scores_of_nobody_knows_which_weights_are_not_told(tmp_path: Path, kind: Kind) -> None:
    """They stood under the new version, and were the old one's."""
    with ExitStack() as running:
        engine = running.enter_context(FakeEngine(kind, dev_mode=True))
        url = running.enter_context(serving(Updated(engine)))
        proxy = running.enter_context(served(settings_for(tmp_path, url)))
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        (first,), _summary = rescore(proxy, client.rollout_id, logprobs=True)
        (second,), _summary = rescore(proxy, client.rollout_id)

    assert (first["result"], first["reasons"]) == ("failed", ["weights_changed_in_mid_reply"])
    assert not first["logprobs"]
    assert (second["result"], second["weight_version"]["now"]) == ("rescored", "w2")


def test_failed_calls_and_failing_engines_are_told_apart(proxy: ServedProxy, engine: FakeEngine) -> None:
    """One was not tried."""
    engine.script(Fault.status(500))
    client = proxy.rollout()
    client.chat("hello")
    client.calls()
    (told,), summary = rescore(proxy, client.rollout_id)

    assert (told["result"], told["reasons"], summary["not_rescorable"]) == ("not_rescorable", ["engine_error"], 1)


def test_mismatch_adds_up_and_k3_is_never_negative() -> None:
    """k3 is e^d - 1 - d for each token."""
    one, other = mismatch_of([-1.0, -2.0], [-1.5, -1.0]), mismatch_of([-3.0], [-3.0])
    whole = one.plus(other).document()

    assert whole["compared"] == 3
    assert whole["mean_difference"] == pytest.approx(0.5 / 3)
    assert whole["mean_absolute_difference"] == pytest.approx(0.5)
    assert whole["largest_difference"] == 1.0
    assert whole["kl_k3"] == pytest.approx((math.exp(-0.5) - 0.5 + math.exp(1) - 2) / 3)
    assert Mismatch().document()["kl_k3"] is None
    assert math.isfinite(mismatch_of([-9000.0], [0.0]).document()["kl_k3"])


NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


@pytest.mark.parametrize(
    ("mode", "changed", "constrained", "reasons"),
    [
        ("processed_before_filters", {}, [], ()),
        ("processed_before_filters", {"top_p": 0.9}, [], ()),
        ("processed_before_filters", {"temperature": 0.7}, [], ("temperature",)),
        ("processed_before_filters", {"presence_penalty": 1.0}, ["regex"], ("penalties", "constrained")),
        ("processed_logprobs", {"top_p": 0.9}, [], ("filters",)),
        ("raw_logprobs", {"temperature": 0.7, "top_k": 5}, ["regex"], ()),
        (None, {"temperature": 0.7}, [], ("temperature",)),
        (None, {}, [], ()),
    ],
)
def test_what_may_be_compared_hangs_on_the_recorded_mode(
    mode: str | None, changed: dict[str, float], constrained: list[str], reasons: tuple[str, ...]
) -> None:
    """A rescore is of the bare distribution; recorded logprobs are of the one that their mode says."""
    sampling = {"effective": {**NEUTRAL, **changed}, "constrained": constrained}

    assert incomparable({"logprobs_mode": mode, "sampling": sampling}) == reasons
