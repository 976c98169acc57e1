"""Replay on real engines: what was recorded under load and under pauses is drawn again, token for token."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from proxy.verify.audit import Auditor, lost_draws, why_not
from proxy.verify.story import Looking, verify_store
from tests.live.batch import Batch, choices, three_turns
from tests.live.engines.models import ensure_model
from tests.live.harness import LOGPROB_TOLERANCE, PATIENCE_S, Site, Tell, at_once, site_before
from tests.live.speaking import NO_END, Json
from tests.replay.harness import replay, rescore

REPLAYS_AT_ONCE = 16
# The vLLM of a CPU draws some four times slower.
LEAST_CALLS = {"sglang": 200, "vllm": 70}

SORTS: dict[str, Callable[[Json], bool]] = {
    "of several choices": lambda call: call["seed"]["choice"] > 0,
    "with a tool call": lambda call: bool(call["message"].get("tool_calls")),
    "behind a supplied prefix": lambda call: bool(call["prefix"]["supplied"]),
    "streamed": lambda call: bool(call["stream"]),
    "interrupted and resumed": lambda call: len(call["segments"]) > 1,
    "interrupted more than once": lambda call: len(call["segments"]) > 2,
    "ended by a pause and asked again": lambda call: bool(call["earlier_failures"]),
}
LEAST_OF_A_SORT = {
    "of several choices": 20,
    "with a tool call": 5,
    "behind a supplied prefix": 10,
    "streamed": 20,
    "interrupted and resumed": 6,
    "interrupted more than once": 2,
}


def test_every_call_of_a_batch_is_drawn_again(site: Site, tmp_path: Path, tell: Tell) -> None:
    """Turns, choices, tools and streams, 16 at a time, paused in mid-flight five times; then replayed in one go."""
    with site_before(site.engine, tmp_path, prove_engines=True, replays_at_once=REPLAYS_AT_ONCE) as own:
        batch = Batch(own)
        batch.record()
        clients = [*batch.listeners, *batch.others]
        calls = [call for client in clients for call in client.calls()]
        told = at_once([lambda c=c: replay(own.proxy, c.rollout_id) for c in clients], REPLAYS_AT_ONCE)
    verdicts = [verdict for one in told for verdict in one.verdicts]
    claimed = [verdict for verdict in verdicts if verdict["claimed"] != "no"]
    odd = [verdict for verdict in claimed if verdict["verdict"] != "same"]
    sound = [call for call in calls if call["replayable"]["value"] != "no"]
    sorts = {sort: sum(map(is_of_it, sound)) for sort, is_of_it in SORTS.items()}
    tell(told_of(site.kind, claimed, sorts))

    assert len(claimed) >= LEAST_CALLS[site.kind]
    assert {verdict["claimed"] for verdict in claimed} == {"yes" if site.kind == "sglang" else "unproven"}
    assert not odd, json.dumps(odd[:3], indent=1)
    # A draw that pauses ended twice is drawn anew, as another call; the failed one stays on record.
    given_up = [verdict for verdict in verdicts if verdict not in claimed]
    assert {(verdict["verdict"], *verdict["reasons"]) for verdict in given_up} <= {("not_replayable", "engine_aborted")}
    assert (len(claimed), len(verdicts)) == (len(sound), len(calls))
    assert {sort: sorts[sort] for sort, least in LEAST_OF_A_SORT.items() if sorts[sort] < least} == {}


def told_of(kind: str, verdicts: list[Json], sorts: dict[str, int]) -> str:
    """The batch in a line or two."""
    same = [verdict for verdict in verdicts if verdict["verdict"] == "same"]
    worst = max(verdict["logprobs"]["largest_difference"] for verdict in same)
    tokens = sum(verdict["tokens"] for verdict in same)
    told = f"{kind}: {len(same)} of {len(verdicts)} claimed calls of one batch replayed the same"
    among = ", ".join(f"{count} {sort}" for sort, count in sorts.items())
    return f"{told}, {tokens} tokens, logprobs within {worst:.1e}\n  among them {among}"


def test_a_tampered_record_diverges_where_it_was_tampered_with(site: Site) -> None:
    """Replay is a proof only if it can fail: one changed id in the store is found, at its place."""
    client = site.rollout("tampered")
    client.chat("import os", max_tokens=20)
    (call,) = client.calls()
    ids = list(call["completion_token_ids"])
    ids[7] = (ids[7] + 1) % 1000
    tamper(site, call["call_id"], ids)
    found = replay(site.proxy, client.rollout_id).verdict

    assert found["verdict"] == "diverged"
    assert (found["diverged"]["at"], found["diverged"]["recorded"]["token_id"]) == (7, ids[7])
    assert found["diverged"]["drawn"]["token_id"] == call["completion_token_ids"][7]


def tamper(site: Site, call_id: str, ids: list[int]) -> None:
    """Write other sampled ids into the store, as no proxy ever does."""
    from proxy.ids import pack_ids

    def work(connection: Any) -> None:
        connection.execute("update calls set completion_ids = ? where call_id = ?", (pack_ids(ids), call_id))

    site.proxy.do(site.proxy.wiring.store._writer.write(work, durable=True))


def test_todays_logprobs_of_recorded_tokens_are_the_recorded_ones(site: Site, tell: Tell) -> None:
    """Under the same weights a rescore finds no mismatch, in streamed and whole calls, first turns and later ones."""
    client = site.rollout("rescored")
    three_turns(client.post, "import os")
    client.stream("def main():", max_tokens=30)
    choices(client.post, "class A:")
    told, summary = rescore(site.proxy, client.rollout_id)
    worst, mean = summary["largest_difference"], summary["mean_absolute_difference"]
    tell(f"{site.kind}: {summary['compared']} tokens rescored, off by at most {worst:.1e}, by {mean:.1e} on average")

    assert [one["result"] for one in told] == ["rescored"] * 7
    assert summary["compared"] > 100
    assert summary["largest_difference"] < LOGPROB_TOLERANCE
    assert summary["kl_k3"] < LOGPROB_TOLERANCE


def test_recorded_draws_are_the_ones_that_their_seeds_give(site: Site, tmp_path: Path, tell: Tell) -> None:
    """The seed audit on the real engine's tokens: every one won its draw, and none would have with another seed."""
    if site.kind == "vllm":
        client = site.rollout("noise")
        client.chat("import os", max_tokens=4)
        assert why_not(client.call()) == "engine_without_known_noise"
        return
    with site_before(site.engine, tmp_path, audit_top_logprobs=20) as own:
        clients = [own.rollout("audited", sample) for sample in range(8)]
        at_once([lambda c=c: c.chat("import os", max_tokens=40) for c in clients])
        at_once([lambda c=c: c.chat("def main():", n=2, max_tokens=40) for c in clients])
        calls = [call for client in clients for call in client.calls()]
        auditor = Auditor()
        report = verify_store(tmp_path / "rollpin.db", Looking(also=auditor), beside=True)
    moved = [{**call, "segments": [{**call["segments"][0], "seed": call["seed"]["value"] ^ 1}]} for call in calls]
    tell(f"sglang: {auditor.tokens} draws of {auditor.calls} calls audited, {auditor.mean_outside:.1%} unseen")

    assert (report.faults, auditor.calls) == ([], 24)
    assert all(len(list(lost_draws(call))) > len(call["completion_token_ids"]) / 4 for call in moved)


def test_a_call_that_was_disturbed_on_purpose_is_not_claimed(site: Site, tmp_path: Path) -> None:
    """A filtered call that would not wait shares a batch with a plain one: on SGLang neither can be drawn again."""
    hasty = {"class_wait_s": 0.1, "class_patience_s": 0.3}
    with site_before(site.engine, tmp_path, timeouts=hasty) as own:
        pair = own.rollout("plain"), own.rollout("filtered", sampling={"top_p": 0.9})
        at_once([lambda c=c: c.chat("import os", max_tokens=400, **NO_END) for c in pair])
        calls = [client.call() for client in pair]
        words = [replay(own.proxy, client.rollout_id).words for client in pair]

    if site.kind == "vllm":
        assert words == [["same"], ["same"]]
        return
    assert [call["replayable"]["value"] for call in calls] == ["no", "no"]
    assert all("class_disturbed" in call["replayable"]["reasons"] for call in calls)
    assert words == [["not_replayable"], ["not_replayable"]]


def test_other_weights_are_told_apart_from_a_divergence(site: Site, tell: Tell) -> None:
    """New weights: nothing is drawn, and a rescore shows how far the policy moved; the old ones back: the same."""
    if site.kind == "vllm":
        return  # reload_weights and its label are tried with the weights themselves
    client = site.rollout("moved")
    client.chat("import os", max_tokens=30)
    (call,) = client.calls()
    version = call["segments"][0]["weight_version"]
    load_weights(site, "tiny2", "step-2")
    try:
        gone = replay(site.proxy, client.rollout_id).verdict
        _told, summary = rescore(site.proxy, client.rollout_id)
    finally:
        load_weights(site, "tiny", version)
    back = replay(site.proxy, client.rollout_id).verdict
    moved, k3 = summary["mean_absolute_difference"], summary["kl_k3"]
    tell(f"sglang: rescored under other weights, off by {moved:.2f} on average, k3 {k3:.2f}")

    assert (gone["verdict"], gone["reasons"]) == ("weights_gone", [f"recorded {version}", "now step-2"])
    assert summary["mean_absolute_difference"] > 1
    assert back["verdict"] == "same"


def load_weights(site: Site, model: str, version: str) -> None:
    """Put a model's weights under the running engine, with its cache flushed."""
    body = {"model_path": str(ensure_model(model, "sglang")), "weight_version": version}
    answer = httpx.post(f"{site.engine.url}/update_weights_from_disk", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
