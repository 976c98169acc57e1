"""The seed audit: draws recomputed from the record, and what it catches."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.sim.shaping import log_softmax
from proxy.verify.audit import Auditor, lost_draws, why_not
from proxy.verify.story import Looking, Report, verify_store
from tests.fakes import FakeEngine
from tests.served import ServedProxy, served, settings_for
from tests.sim.vectors import VECTORS, sequence_logits

Json = dict[str, Any]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy that keeps twenty candidates of each draw."""
    folder = tmp_path_factory.mktemp("audited")
    with (
        FakeEngine("sglang") as engine,
        served(settings_for(folder, engine.url, audit_top_logprobs=20)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def call(proxy: ServedProxy) -> Json:
    """A call with its candidates."""
    client = proxy.rollout(rollout_id="one")
    client.chat("hello", max_tokens=40)
    return client.call()


def audited(proxy: ServedProxy) -> tuple[Auditor, Report]:
    auditor = Auditor()
    return auditor, verify_store(proxy.wiring.settings.store_path, Looking(also=auditor), beside=True)


def test_every_token_of_an_honest_record_won_its_draw(call: Json) -> None:
    """Each place has its candidates, and none beats the sampled one."""
    assert len(call["audit_candidates"]) == len(call["completion_token_ids"])
    assert all(len(one) == 20 for one in call["audit_candidates"])
    assert list(lost_draws(call)) == []


def test_a_flipped_token_is_caught_at_its_place(call: Json) -> None:
    """For the likeliest other one, with the logprob that it had, wherever the true winner is among the candidates."""
    recorded = zip(call["audit_candidates"], call["completion_token_ids"], strict=True)
    places = [place for place, (likely, sampled) in enumerate(recorded) if sampled in [token for token, _ in likely]]
    assert len(places) > len(call["completion_token_ids"]) / 2
    for at in places:
        candidates = call["audit_candidates"][at]
        ids, logprobs = list(call["completion_token_ids"]), list(call["logprobs"])
        ids[at], logprobs[at] = next(one for one in candidates if one[0] != ids[at])
        (lost,) = lost_draws({**call, "completion_token_ids": ids, "logprobs": logprobs})

        assert (lost.at, lost.sampled, lost.winner) == (at, ids[at], call["completion_token_ids"][at])
        assert lost.by > 0


def test_another_seed_and_another_position_are_caught(call: Json) -> None:
    """Where the policy left any choice, tokens lose then."""
    (segment,) = call["segments"]
    other_seed = {**call, "segments": [{**segment, "seed": segment["seed"] + 1}]}
    moved = {**call, "prompt_token_ids": call["prompt_token_ids"][1:]}

    assert len(list(lost_draws(other_seed))) > 1
    assert len(list(lost_draws(moved))) > 1


def test_the_noise_is_the_engines_own_by_its_golden_sequence() -> None:
    """Forty draws of the real sampler, audited with all fifty candidates; each neighbour's seed fails."""
    golden = VECTORS["sequence"]
    tokens = golden["tokens"]
    rows = [log_softmax(row) for row in sequence_logits()]
    record = {
        "prompt_token_ids": [0] * (golden["first_position"] + 1),
        "completion_token_ids": tokens,
        "logprobs": [row[token] for row, token in zip(rows, tokens, strict=True)],
        "audit_candidates": [list(map(list, enumerate(row))) for row in rows],
        "segments": [{"start": 0, "end": len(tokens), "seed": golden["seed"]}],
    }

    assert list(lost_draws(record)) == []
    assert list(lost_draws({**record, "segments": [{"start": 0, "end": len(tokens), "seed": golden["seed"] + 1}]}))


def test_the_client_never_sees_the_audits_candidates(proxy: ServedProxy) -> None:
    """It gets as many alternatives as it asked for, or no logprobs at all."""
    client = proxy.rollout()
    plain = client.chat("hello", max_tokens=5).json()["choices"][0]
    asked = client.chat("hello", max_tokens=5, logprobs=True, top_logprobs=2).json()["choices"][0]
    calls = client.calls()

    assert "meta_info" not in plain | asked
    assert plain["logprobs"] is None
    assert {len(one["top_logprobs"]) for one in asked["logprobs"]["content"]} == {2}
    assert {len(one["top_logprobs"]) for one in calls[1]["top_logprobs"]} == {2}
    assert {len(one) for one in calls[1]["audit_candidates"]} == {20}


def test_what_cannot_be_audited_says_why(proxy: ServedProxy) -> None:
    """A stream tells no candidates by id; filters and greed draw by rank."""
    streamed, greedy = proxy.rollout(), proxy.rollout(sampling={"temperature": 0.0})
    streamed.stream("hello", max_tokens=5)
    greedy.chat("hello", max_tokens=5)

    assert why_not(streamed.call()) == "streamed"
    assert why_not(greedy.call()) == "greedy_or_filtered"


def test_a_store_is_audited_call_by_call(proxy: ServedProxy, call: Json) -> None:
    """Together with its verification; how much lay outside the candidates is told."""
    auditor, report = audited(proxy)

    assert report.faults == []
    assert auditor.calls >= 1
    assert auditor.tokens >= len(call["completion_token_ids"])
    assert 0 <= auditor.mean_outside < 1


def test_a_call_drawn_with_another_seed_than_its_own_is_caught_in_the_store(
    proxy: ServedProxy, call: Json, tmp_path: Path
) -> None:
    """Though its record agrees with itself in everything else."""
    source = proxy.wiring.settings.store_path
    for suffix in ("", "-wal"):
        shutil.copy(f"{source}{suffix}", tmp_path / f"copy.db{suffix}")
    segments = json.dumps([{**call["segments"][0], "seed": 12345}])
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection, connection:
        connection.execute(
            "update calls set document = json_set(document, '$.segments', json(?)) where call_id = ?",
            (segments, call["call_id"]),
        )
    report = verify_store(tmp_path / "copy.db", Looking(also=Auditor()))

    assert {fault.check for fault in report.faults} == {"seeds", "audit"}


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    """And then no engine is asked for it."""
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat("hello")

        assert client.call()["audit_candidates"] is None
        assert "return_meta_info" not in engine.requests[-1].body
        assert why_not(client.call()) == "no_candidates"
