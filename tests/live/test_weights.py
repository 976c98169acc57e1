"""New weights under a real engine, in the middle of replies: every token is labelled with the weights that drew it.

The engines are unchanged servers; the trainer here does what trainers do, through their own endpoints. What the labels
say is held against transformers: a segment's logprobs must be those of its own weights, and of no others.
"""

import itertools
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.engines.models import ensure_model
from tests.live.engines.reference_client import Row, reference_logprobs
from tests.live.engines.start import Engine, running
from tests.live.harness import LOGPROB_TOLERANCE, until
from tests.served import RolloutClient, ServedProxy, served, settings_for

Json = dict[str, Any]
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
# Logprobs of other weights are further away than this, in nats; those of a mixed cache too.
FAR = 0.01
CALLS = 6
# Few replies of random weights end by themselves before that.
LONG = {"sglang": 700, "vllm": 900}


class Site:
    """A real engine behind a proxy, and its trainer."""

    def __init__(self, engine: Engine, proxy: ServedProxy) -> None:
        self.engine = engine
        self.proxy = proxy
        self.kind = engine.kind
        self._models = itertools.cycle((ensure_model("tiny2"), ensure_model("tiny")))
        self._numbers = itertools.count(1)
        self.now = engine.model_dir
        self._groups = itertools.count()

    def group(self) -> str:
        return f"g{next(self._groups)}"

    def do(self, path: str, body: Json | None = None) -> Json:
        answer = self.proxy.control.post(path, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def load(self, **more: Any) -> str:
        """Change the engine's weights to those of the other model; their version."""
        self.now, version = next(self._models), f"w{next(self._numbers)}"
        with httpx.Client(base_url=self.engine.url, timeout=60) as engine:
            if self.kind == "sglang":
                body = {"model_path": str(self.now), "weight_version": version, **more}
                engine.post("/update_weights_from_disk", json=body).raise_for_status()
            else:
                rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(self.now)}}
                engine.post("/collective_rpc", json=rpc).raise_for_status()
                engine.post("/update_weight_version", json={"new_version": version}).raise_for_status()
        return version

    def update(self, mode: str, **more: Any) -> str:
        """The whole way of a trainer."""
        self.do("/pause", {"mode": mode, "lease_s": 120})
        version = self.load(**more)
        self.do("/weights", {"version": version})
        self.do("/resume")
        return version


ON_SGLANG = pytest.mark.parametrize("trained", ["sglang"], indirect=True)
ON_VLLM = pytest.mark.parametrize("trained", ["vllm"], indirect=True)


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An engine of this module's own: nobody else would like what becomes of it."""
    kind = request.param
    with running(kind) as engine, served(settings_for(tmp_path_factory.mktemp(kind), engine.url)) as proxy:
        yield Site(engine, proxy)


class Call(threading.Thread):
    """One long call on its way."""

    def __init__(self, site: Site, *, group: str, sample: int = 0, stream: bool = False, run: str = "default") -> None:
        super().__init__()
        self.client = RolloutClient(
            site.proxy,
            site.proxy.control.post("/rollouts", json={"group": group, "sample": sample, "run": run}).json(),
        )
        self.client.http.timeout = httpx.Timeout(240)
        self.stream, self.tokens = stream, LONG[site.kind]
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = self.client.chat("Tell a long story.", max_tokens=self.tokens, stream=self.stream)

    def record(self) -> Json:
        self.join(240)
        assert self.answer is not None
        assert self.answer.status_code == 200, self.answer.text
        assert '{"error"' not in self.answer.text, self.answer.text[-400:]
        return self.client.call()


def long_calls(site: Site, *, stream: bool) -> list[Call]:
    """Calls in the middle of their replies."""
    group = site.group()
    calls = [Call(site, group=group, sample=sample, stream=stream) for sample in range(CALLS)]
    # By the proxy's count: a busy vLLM does not tell its own before it is done.
    until(lambda: len(site.proxy.wiring.turns.call_ids()) == CALLS, seconds=30)
    time.sleep(1)
    return calls


def running_requests(site: Site) -> int:
    """How many requests the engine is busy with, by its own count."""
    if site.kind == "sglang":
        loads = httpx.get(f"{site.engine.url}/v1/loads", timeout=30).json()["loads"]
        return sum(load["num_running_reqs"] for load in loads)
    metrics = httpx.get(f"{site.engine.url}/metrics", timeout=30).text
    return int(sum(float(n) for n in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", metrics, re.MULTILINE)))


def interrupted(records: Sequence[Json]) -> list[Json]:
    """Those that were in flight when the weights changed."""
    found = [record for record in records if len(record["segments"]) > 1]
    assert len(found) >= 2, [record["segments"] for record in records]
    for record in found:
        ends = [0, *(segment["end"] for segment in record["segments"])]
        assert [segment["start"] for segment in record["segments"]] == ends[:-1]
        assert ends[-1] == len(record["completion_token_ids"]) == len(record["logprobs"])
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """Some tokens of a record, and the weights that its segment names."""

    record: Json
    start: int
    end: int
    version: str | None = None


def segments_of(records: Sequence[Json]) -> list[Run]:
    return [
        Run(record, part["start"], part["end"], part["weight_version"])
        for record in records
        for part in record["segments"]
    ]


def furthest(site: Site, runs: Sequence[Run], model: Path) -> list[float]:
    """For each run, the largest difference of a logprob from what transformers makes of it on these weights."""
    rows = [
        Row(
            prompt=run.record["prompt_token_ids"] + run.record["completion_token_ids"][: run.start],
            completion=run.record["completion_token_ids"][run.start : run.end],
        )
        for run in runs
    ]
    expected = reference_logprobs(site.engine, rows, model)
    return [
        max(abs(told - true) for told, true in zip(run.record["logprobs"][run.start : run.end], row, strict=True))
        for run, row in zip(runs, expected, strict=True)
    ]


def check_segments(site: Site, records: Sequence[Json], versions: dict[str, Path]) -> float:
    """Each segment's logprobs are those of its own weights and of no others; the largest difference."""
    runs, worst = segments_of(records), 0.0
    for version, model in versions.items():
        for run, difference in zip(runs, furthest(site, runs, model), strict=True):
            if run.version == version:
                worst = max(worst, difference)
            elif run.end - run.start > 3:
                assert difference > FAR, (run.start, run.end, run.version, version)
    return worst


@ON_SGLANG
@AS_STREAM
def test_an_interrupted_reply_is_the_uninterrupted_one_on_sglang(trained: Site, *, stream: bool) -> None:
    """Aborted by the engine's own endpoint in the middle, twice: the same ids, the same logprobs, the same message."""
    group = trained.group()
    plain = Call(trained, group=group, stream=stream).record()
    cut = Call(trained, group=group, run="again", stream=stream)
    for _ in range(2):
        until(lambda: running_requests(trained) == 1, seconds=30)
        time.sleep(0.3)
        httpx.post(f"{trained.engine.url}/abort_request", json={"abort_all": True}, timeout=30)
    record = cut.record()

    assert len(record["segments"]) > 1
    assert record["completion_token_ids"] == plain["completion_token_ids"]
    assert record["logprobs"] == pytest.approx(plain["logprobs"], abs=LOGPROB_TOLERANCE)
    assert {segment["seed"] for segment in record["segments"]} == {plain["seed"]["value"]}
    assert record["message"] == plain["message"]


@ON_SGLANG
@AS_STREAM
def test_an_update_in_mid_flight_mislabels_no_token_on_sglang(trained: Site, capsys: Any, *, stream: bool) -> None:
    """Pause with abort, update, tell, resume."""
    update_and_check(trained, "abort", capsys, stream=stream)


@ON_SGLANG
def test_retracted_calls_change_their_weights_where_the_engine_says_on_sglang(trained: Site, capsys: Any) -> None:
    """Whole replies tell the spans; the cache was computed anew."""
    update_and_check(trained, "retract", capsys, stream=False)


def update_and_check(site: Site, mode: str, capsys: Any, *, stream: bool) -> None:
    old_version = Call(site, group=site.group()).record()["segments"][0]["weight_version"]
    old = site.now
    calls = long_calls(site, stream=stream)
    version = site.update(mode)
    records = interrupted([call.record() for call in calls])
    later = Call(site, group=site.group()).record()
    worst = check_segments(site, [*records, later], {old_version: old, version: site.now})
    with capsys.disabled():
        print(f"\n{site.kind} {mode}: {len(records)} replies across an update, largest difference {worst:.1e}")

    assert {
        (part["weight_version"], part["kv_version"], *part["notes"])
        for record in records
        for part in record["segments"]
    } == {(old_version, None), (version, None)}
    assert [part["weight_version"] for part in later["segments"]] == [version]
    assert worst < LOGPROB_TOLERANCE


@ON_SGLANG
def test_streams_of_retracted_calls_are_not_guessed_on_sglang(trained: Site) -> None:
    """They do not tell where the weights changed."""
    calls = long_calls(trained, stream=True)
    trained.update("retract")
    records = [call.record() for call in calls]
    doubtful = [record for record in records if record["segments"][0]["weight_version"] is None]

    assert len(doubtful) >= 2
    assert {tuple(record["segments"][0]["notes"]) for record in doubtful} == {("weights_changed_in_mid_reply",)}


@ON_SGLANG
def test_a_kept_cache_is_named_and_later_calls_do_not_meet_it_on_sglang(trained: Site, capsys: Any) -> None:
    """Tokens behind the update are those of no weights alone. What it left in the cache only the salt hides."""
    old_version = Call(trained, group=trained.group()).record()["segments"][0]["weight_version"]
    old, old_salt = trained.now, salt_now(trained)
    calls = long_calls(trained, stream=False)
    version = trained.update("in_place", flush_cache=False)
    records = interrupted([call.record() for call in calls])
    first, second = records[0]["segments"][:2]
    behind = [run for run in segments_of(records) if run.version == version]
    mixed = min(difference for model in (old, trained.now) for difference in furthest(trained, behind, model))
    salted, unsalted = (asked_on(trained, records[0], salt) for salt in (salt_now(trained), old_salt))
    with capsys.disabled():
        print(f"\nsglang in_place: mixed {mixed:.1e}, later salted {salted:.1e}, without the salt {unsalted:.1e}")

    assert [part["weight_version"] for part in (first, second)] == [old_version, version]
    assert [part["kv_version"] for part in (first, second)] == [None, old_version]
    assert mixed > FAR
    assert salted < LOGPROB_TOLERANCE
    assert unsalted > FAR


def salt_now(site: Site) -> str:
    """What the proxy sends with calls now."""
    weights = site.proxy.wiring.weights
    return weights.salt(weights.at(site.engine.url))


def asked_on(site: Site, record: Json, salt: str) -> float:
    """How far the logprobs of a reply behind a record's ids, under a salt, are from the weights of now."""
    ids = record["prompt_token_ids"] + record["completion_token_ids"]
    body: Json = {
        "model": site.engine.served_name,
        "messages": [{"role": "user", "content": "-"}],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": True,
        "return_token_ids": True,
        "seed": 5,
        "cache_salt": salt,
    }
    body |= {"input_ids": ids} if site.kind == "sglang" else {"kv_transfer_params": {"prompt_token_ids": ids}}
    reply = httpx.post(f"{site.engine.url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
    (choice,) = reply["choices"]
    told = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    drawn = choice["response_token_ids" if site.kind == "sglang" else "token_ids"]
    (true,) = reference_logprobs(site.engine, [Row(prompt=ids, completion=drawn)], site.now)
    return max(abs(one - other) for one, other in zip(told, true, strict=True))


@ON_SGLANG
def test_a_second_turn_after_an_update_is_on_the_new_weights_alone_on_sglang(trained: Site) -> None:
    """Its prefix was computed under the old ones: it is supplied as ids, and computed anew."""
    second_turn(trained, flush_cache=False)


@ON_VLLM
@AS_STREAM
def test_an_update_in_mid_flight_mislabels_no_token_on_vllm(trained: Site, capsys: Any, *, stream: bool) -> None:
    """The same, with vLLM's own endpoints; segments have seeds of their own."""
    update_and_check(trained, "abort", capsys, stream=stream)


@ON_VLLM
def test_draining_ends_calls_on_the_old_weights_on_vllm(trained: Site) -> None:
    """One version each, and not a token of the new ones."""
    old_version = Call(trained, group=trained.group()).record()["segments"][0]["weight_version"]
    old = trained.now
    calls = long_calls(trained, stream=True)
    trained.update("wait")
    records = [call.record() for call in calls]

    assert [[part["weight_version"] for part in record["segments"]] for record in records] == [[old_version]] * CALLS
    assert max(furthest(trained, segments_of(records), old)) < LOGPROB_TOLERANCE


@ON_VLLM
def test_what_keep_drew_is_not_guessed_on_vllm(trained: Site) -> None:
    """Chat does not tell where the weights changed."""
    calls = long_calls(trained, stream=False)
    trained.update("keep")
    doubtful = [one for one in (call.record() for call in calls) if one["segments"][0]["weight_version"] is None]

    assert len(doubtful) >= 2
    assert {tuple(record["segments"][0]["notes"]) for record in doubtful} == {("weights_changed_in_mid_reply",)}


@ON_VLLM
def test_weights_that_changed_without_a_word_are_noticed_on_vllm(trained: Site, capsys: Any) -> None:
    """Nothing was flushed. The first call is in doubt, the next is on the new weights alone; unsalted none is."""
    record = Call(trained, group=trained.group()).record()
    old_salt = salt_now(trained)
    version = trained.load()
    doubtful, clear = (Call(trained, group=trained.group()).record() for _ in range(2))
    salted, unsalted = (asked_on(trained, record, salt) for salt in (salt_now(trained), old_salt))
    with capsys.disabled():
        print(f"\nvllm without a pause: later salted {salted:.1e}, without the salt {unsalted:.1e}")

    assert [part["notes"] for part in doubtful["segments"]] == [["weights_changed_in_mid_reply"]]
    assert [part["weight_version"] for part in clear["segments"]] == [version]
    assert max(furthest(trained, segments_of([clear]), trained.now)) < LOGPROB_TOLERANCE
    assert salted < LOGPROB_TOLERANCE
    assert unsalted > FAR


@ON_VLLM
def test_a_second_turn_after_an_update_is_on_the_new_weights_alone_on_vllm(trained: Site) -> None:
    """The same on vLLM."""
    second_turn(trained)


def second_turn(site: Site, **more: Any) -> None:
    first = Call(site, group=site.group())
    record = first.record()
    version = site.update("abort", **more)
    said = first.answer.json()["choices"][0]["message"]
    talk = [*record["messages"], said, {"role": "user", "content": "And then?"}]
    answer = first.client.post({"model": "policy", "messages": talk, "max_tokens": 40})
    assert answer.status_code == 200, answer.text
    later = first.client.calls()[1]

    assert [part["weight_version"] for part in later["segments"]] == [version]
    assert max(furthest(site, segments_of([later]), site.now)) < LOGPROB_TOLERANCE


@ON_SGLANG
def test_a_call_across_two_updates_and_a_stop_keeps_its_books_on_sglang(trained: Site) -> None:
    """As many segments as there were weights, and the whole budget and no more."""
    calls = long_calls(trained, stream=False)
    for _ in range(2):
        trained.update("abort")
        time.sleep(0.5)
    records = interrupted([call.record() for call in calls])

    assert max(len(record["segments"]) for record in records) == 3
    assert all(len(record["completion_token_ids"]) <= LONG["sglang"] for record in records)
    assert all(record["usage"]["completion_tokens"] == len(record["completion_token_ids"]) for record in records)
