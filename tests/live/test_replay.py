"""Replay on real engines: what was recorded under load is drawn again, token for token."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.verify.audit import Auditor, lost_draws, why_not
from proxy.verify.story import Looking, verify_store
from tests.live.engines.models import ensure_model
from tests.live.harness import ADD_TOOL, LOGPROB_TOLERANCE, NO_THINKING, Site, at_once, until
from tests.replay.harness import Told, replay, rescore
from tests.served import RolloutClient, served, settings_for

AT_ONCE = 16
# The vLLM of a CPU draws some four times slower.
ROLLOUTS = {"sglang": 32, "vllm": 12}
LEAST_CALLS = {"sglang": 200, "vllm": 70}
TEXTS = ("import os", "def main():", "class A:", "return", "for x in", "while True", "try:", "with open(")


def three_turns(client: RolloutClient, text: str) -> None:
    """A conversation that grows by its own replies."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    for more in ("and then?", "why?", ""):
        answer = client.post({"messages": messages, "max_tokens": 24, **NO_THINKING})
        assert answer.status_code == 200, answer.text
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": more}]


def choices(client: RolloutClient, text: str) -> None:
    """Three replies to one request."""
    assert client.chat(text, n=3, max_tokens=20).status_code == 200


def tool_turns(site: Site, client: RolloutClient, text: str) -> None:
    """A tool call under a grammar, and what is said to its result."""
    forced = site.forced_call()
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    said = client.post({"messages": messages, **forced}).json()["choices"][0]["message"]
    messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "3"}]
    answer = client.post({"messages": messages, "tools": [ADD_TOOL], "max_tokens": 20, **NO_THINKING})
    assert answer.status_code == 200, answer.text


def streams(client: RolloutClient, text: str) -> None:
    """Streamed replies: to the end, cut by length, and up to a stop string."""
    client.stream(text, max_tokens=300, logit_bias={"1017": 2})
    client.stream(text, max_tokens=8)
    client.stream(text, max_tokens=60, stop=["e"])


def played(site: Site, group: str) -> list[RolloutClient]:
    """Rollouts that ask in all these ways, 16 at a time."""
    ways: list[Callable[[RolloutClient, str], None]] = [
        three_turns,
        choices,
        lambda client, text: tool_turns(site, client, text),
        streams,
    ]
    clients = [site.rollout(f"{group}-{number}") for number in range(ROLLOUTS[site.kind])]

    def play(number: int) -> None:
        # Each rollout asks in two of the ways, so that neighbours in a batch are of every sort.
        for way in (ways[number % 4], ways[(number // 4 + number + 1) % 4], choices):
            way(clients[number], f"{TEXTS[number % len(TEXTS)]} {number}")

    for start in range(0, len(clients), AT_ONCE):
        at_once([lambda n=n: play(n) for n in range(start, min(start + AT_ONCE, len(clients)))])
    return clients


def all_told(site: Site, clients: list[RolloutClient]) -> list[Told]:
    """Every rollout replayed, eight of them at the same time."""
    told = list[Told]()
    for start in range(0, len(clients), 8):
        told += at_once([lambda c=c: replay(site.proxy, c.rollout_id) for c in clients[start : start + 8]])
    return told


# Tokens that take some seconds.
LONG = {"sglang": 600, "vllm": 2500}


def test_everything_that_was_recorded_is_drawn_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Turns, choices, tools under a grammar, streams; recorded 16 at a time; replayed among one another."""
    clients = played(site, "replayed")
    verdicts = [verdict for told in all_told(site, clients) for verdict in told.verdicts]
    odd = [verdict for verdict in verdicts if verdict["verdict"] != "same"]
    worst = max(verdict["logprobs"]["largest_difference"] for verdict in verdicts)
    tokens = sum(verdict["tokens"] for verdict in verdicts)
    with capsys.disabled():
        print(f"\n{site.kind}: {len(verdicts) - len(odd)} of {len(verdicts)} calls replayed the same,")
        print(f"  {tokens} tokens; logprobs differ by at most {worst:.1e}")

    assert len(verdicts) >= LEAST_CALLS[site.kind]
    assert not odd, json.dumps(odd[:3], indent=1)


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


def test_todays_logprobs_of_recorded_tokens_are_the_recorded_ones(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the same weights a rescore finds no mismatch, in streamed and whole calls, first turns and later ones."""
    client = site.rollout("rescored")
    three_turns(client, "import os")
    client.stream("def main():", max_tokens=30)
    choices(client, "class A:")
    told, summary = rescore(site.proxy, client.rollout_id)
    with capsys.disabled():
        worst, mean = summary["largest_difference"], summary["mean_absolute_difference"]
        print(
            f"\n{site.kind}: {summary['compared']} tokens rescored, off by at most {worst:.1e}, {mean:.1e} on average"
        )

    assert [one["result"] for one in told] == ["rescored"] * 7
    assert summary["compared"] > 100
    assert summary["largest_difference"] < LOGPROB_TOLERANCE
    assert summary["kl_k3"] < LOGPROB_TOLERANCE


def test_recorded_draws_are_the_ones_that_their_seeds_give(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seed audit on the real engine's tokens: every one won its draw, and none would have with another seed."""
    if site.kind == "vllm":
        client = site.rollout("noise")
        client.chat("import os", max_tokens=4)
        assert why_not(client.call()) == "engine_without_known_noise"
        return
    with served(settings_for(tmp_path, site.engine.url, audit_top_logprobs=20)) as proxy:
        clients = [proxy.rollout(group="audited", sample=sample) for sample in range(8)]
        at_once([lambda c=c: c.chat("import os", max_tokens=40) for c in clients])
        at_once([lambda c=c: c.chat("def main():", n=2, max_tokens=40) for c in clients])
        calls = [call for client in clients for call in client.calls()]
        auditor = Auditor()
        report = verify_store(tmp_path / "rollpin.db", Looking(also=auditor), beside=True)
    moved = [{**call, "segments": [{**call["segments"][0], "seed": call["seed"]["value"] ^ 1}]} for call in calls]
    with capsys.disabled():
        print(f"\n{auditor.tokens} draws of {auditor.calls} calls audited; {auditor.mean_outside:.1%} unseen")

    assert (report.faults, auditor.calls) == ([], 24)
    assert all(len(list(lost_draws(call))) > len(call["completion_token_ids"]) / 4 for call in moved)


def test_interrupted_calls_are_drawn_again_segment_by_segment(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Each was aborted in the middle and resumed; every segment is replayed behind the ids before it."""
    clients = [site.rollout(f"interrupted-{number}") for number in range(4)]

    def ask(client: RolloutClient) -> None:
        # No end, and none of the markup by which parsers of a part and of the whole could differ.
        no_end = {"logit_bias": {str(token): -100 for token in range(1015, 1024)}}
        assert client.stream("import os", max_tokens=LONG[site.kind], **no_end, **NO_THINKING)

    def interrupt() -> None:
        for _ in range(2):
            # By the proxy's count: a busy vLLM does not tell its own before it is done.
            until(lambda: len(site.proxy.wiring.turns.call_ids()) == len(clients), 30)
            time.sleep(1)
            abort_all(site, [client.rollout_id for client in clients])

    at_once([interrupt, *(lambda c=c: ask(c) for c in clients)])
    calls = [client.call() for client in clients]
    verdicts = [replay(site.proxy, client.rollout_id).verdict for client in clients]
    segments = [len(call["segments"]) for call in calls]
    with capsys.disabled():
        print(f"\n{site.kind}: {segments} segments replayed, {[one['verdict'] for one in verdicts]}")

    assert sum(count > 1 for count in segments) >= 2
    assert [verdict["verdict"] for verdict in verdicts] == ["same"] * len(calls), json.dumps(verdicts, indent=1)
    if site.kind == "vllm":
        assert all(len({one["seed"] for one in call["segments"]}) == len(call["segments"]) for call in calls)


def abort_all(site: Site, rollout_ids: Sequence[str]) -> None:
    """Have the engine end all that it does for these rollouts, as under a pause."""
    path, body = "/abort_request", {"abort_all": True}
    if site.kind == "vllm":
        calls = [call for rollout_id in rollout_ids for call in site.proxy.calls(rollout_id)]
        path, body = "/inference/v1/abort_requests", {"request_ids": [f"chatcmpl-{call['call_id']}" for call in calls]}
    assert httpx.post(site.engine.url + path, json=body, timeout=60).status_code == 200


def test_a_call_that_was_disturbed_on_purpose_is_not_claimed(site: Site, tmp_path: Path) -> None:
    """A filtered call that would not wait shares a batch with a plain one: on SGLang neither can be drawn again."""
    hasty = {"class_wait_s": 0.1, "class_patience_s": 0.3}
    with served(settings_for(tmp_path, site.engine.url, timeouts=hasty)) as proxy:
        plain, filtered = proxy.rollout(group="plain"), proxy.rollout(group="filtered", sampling={"top_p": 0.9})
        no_end = {"logit_bias": {"1017": -100, "1015": -100}}
        at_once([lambda c=c: c.chat("import os", max_tokens=200, **no_end) for c in (plain, filtered)])
        calls = [plain.call(), filtered.call()]
        words = [replay(proxy, client.rollout_id).words for client in (plain, filtered)]

    if site.kind == "vllm":
        assert words == [["same"], ["same"]]
        return
    assert [call["replayable"]["value"] for call in calls] == ["no", "no"]
    assert all("class_disturbed" in call["replayable"]["reasons"] for call in calls)
    assert words == [["not_replayable"], ["not_replayable"]]


def test_other_weights_are_told_apart_from_a_divergence(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
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
    with capsys.disabled():
        print(f"\nother weights: mean difference {summary['mean_absolute_difference']:.2f}, k3 {summary['kl_k3']:.2f}")

    assert (gone["verdict"], gone["reasons"]) == ("weights_gone", [f"recorded {version}", "now step-2"])
    assert summary["mean_absolute_difference"] > 1
    assert back["verdict"] == "same"


def load_weights(site: Site, model: str, version: str) -> None:
    """Put a model's weights under the running engine, with its cache flushed."""
    body = {"model_path": str(ensure_model(model, "sglang")), "weight_version": version}
    answer = httpx.post(f"{site.engine.url}/update_weights_from_disk", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
