"""New weights under running rollouts: no call is lost, and no token is labelled with weights that did not draw it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy import update
from proxy.errors import StoreDown
from proxy.model import Pause, Weights
from tests.api.harness import FOREVER, Reader
from tests.fakes import FakeEngine, Fault
from tests.patience import PATIENCE_S, until
from tests.served import RolloutClient, ServedProxy, served, settings_for

Json = dict[str, Any]
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TALK = {"max_tokens": 40, "min_tokens": 40}
# Tokens after which a reply is in its middle.
SOME = 10


class Site:
    """A proxy, its engine, and the trainer of both."""

    def __init__(self, proxy: ServedProxy, engine: FakeEngine, kind: str) -> None:
        self.proxy = proxy
        self.engine = engine
        self.kind = kind

    def post(self, path: str, body: Json | None = None) -> httpx.Response:
        return self.proxy.control.post(path, json=body)

    def do(self, path: str, body: Json | None = None) -> Json:
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def let_lease_lapse(self) -> None:
        """The pause in force has lasted as long as it was to last; the proxy learns of it as of another's word."""
        store = self.proxy.wiring.store
        pause = self.proxy.do(store.pause())
        self.proxy.do(store.begin_pause(replace(pause, lease_until=time.time())))

    def load(self, version: str, *, label: bool = True, **more: Any) -> None:
        """What a trainer does to the engine itself."""
        with httpx.Client(base_url=self.engine.url, timeout=PATIENCE_S) as engine:
            if self.kind == "sglang":
                body = {"model_path": f"weights/{version}", **({"weight_version": version} if label else {}), **more}
                engine.post("/update_weights_from_disk", json=body)
            else:
                kwargs = {"weights_path": f"weights/{version}"}
                engine.post("/collective_rpc", json={"method": "reload_weights", "kwargs": kwargs}).raise_for_status()
                if label:
                    engine.post("/update_weight_version", json={"new_version": version}).raise_for_status()

    def call_in_the_middle(self, *, stream: bool = False) -> "Call":
        """A call of which some tokens are out, and no more come until the engine is told to go on."""
        self.engine.script(Fault.halt(SOME))
        call = Call(self.proxy.rollout(), stream=stream)
        until(lambda: self.engine.halted == 1)
        return call


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    """Start a proxy in front of an engine of its own; a pause that ends calls waits until they were read."""
    monkeypatch.setattr(update, "SETTLE_S", PATIENCE_S)
    with ExitStack() as running:
        number = iter(range(100))

        def start_one(kind: Any, *, engine: Json | None = None, **fields: Any) -> Site:
            folder = tmp_path / str(next(number))
            folder.mkdir()
            fake = running.enter_context(FakeEngine(kind, **{"dev_mode": True, **(engine or {})}))
            return Site(running.enter_context(served(settings_for(folder, fake.url, **fields))), fake, kind)

        yield start_one


class Call(threading.Thread):
    """One call on its way."""

    def __init__(self, client: RolloutClient, *, stream: bool = False, **fields: Any) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.answer: httpx.Response | None = None
        self._fields = {**TALK, "stream": stream, **fields}
        self.start()

    def run(self) -> None:
        self.answer = self.client.chat(**self._fields)

    def arrived(self) -> "Call":
        """Itself, once it is written down."""
        until(lambda: bool(self.client.proxy.calls(self.client.rollout_id)))
        return self

    def ended(self) -> httpx.Response:
        self.join(PATIENCE_S)
        assert self.answer is not None
        return self.answer

    def record(self) -> Json:
        answer = self.ended()
        assert answer.status_code == 200, answer.text
        assert '"error"' not in answer.text
        return self.client.call()


class Doing(threading.Thread):
    """Something that a trainer asks for, on its way."""

    def __init__(self, site: Site, path: str, body: Json) -> None:
        super().__init__(daemon=True)
        self._asked = site, path, body
        self._told: Json | None = None
        self.start()

    def run(self) -> None:
        site, path, body = self._asked
        self._told = site.do(path, body)

    def done(self) -> Json:
        """What it was told, once it was done."""
        self.join(PATIENCE_S)
        assert self._told is not None
        return self._told


def versions(call: Json) -> list[str | None]:
    return [segment["weight_version"] for segment in call["segments"]]


def covers(call: Json) -> bool:
    """Whether the segments hold every token once, in order."""
    ends = [0, *(segment["end"] for segment in call["segments"])]
    return ends[-1] == len(call["completion_token_ids"]) and [s["start"] for s in call["segments"]] == ends[:-1]


@KINDS
@AS_STREAM
def test_an_update_in_mid_flight_loses_no_call_and_mislabels_no_token(
    start: Callable[..., Site], kind: str, *, stream: bool
) -> None:
    """Pause, update, tell, resume: the reply is whole, and what each version drew is known to the token."""
    site = start(kind)
    site.load("w1")
    site.do("/weights", {"version": "w1"})
    call = site.call_in_the_middle(stream=stream)
    site.do("/pause", {"mode": "abort", "lease_s": FOREVER})
    late = Call(site.proxy.rollout(), stream=stream).arrived()
    site.load("w2")
    told = site.do("/weights", {"version": "w2"})
    assert not late.client.proxy.calls(late.client.rollout_id)[0]["segments"]
    site.do("/resume")
    record, later = call.record(), late.record()

    assert versions(record) == ["w1", "w2"]
    assert covers(record)
    assert len(record["completion_token_ids"]) == 40
    assert [segment["notes"] for segment in record["segments"]] == [[], []]
    assert versions(later) == ["w2"]
    assert [(engine["reported"], engine["flushed"]) for engine in told["engines"]] == [("w2", True)]


def test_what_retracted_calls_drew_is_told_by_a_whole_reply(start: Callable[..., Site]) -> None:
    """SGLang reports the spans, and retracted calls compute their cache anew."""
    site = start("sglang")
    record = update_under(site, "retract", stream=False)

    assert versions(record) == ["default", "w2"]
    assert covers(record)
    assert [(part["kv_version"], part["notes"]) for part in record["segments"]] == [(None, []), (None, [])]
    assert record["replayable"]["reasons"] == ["weights_changed_in_mid_reply"]


def test_a_cache_that_was_kept_is_named_with_the_segment(start: Callable[..., Site]) -> None:
    """In place: what follows was drawn by new weights on what the old ones had computed."""
    site = start("sglang")
    record = update_under(site, "in_place", stream=False, flush_cache=False)

    assert versions(record) == ["default", "w2"]
    assert [part["kv_version"] for part in record["segments"]] == [None, "default"]
    assert record["replayable"]["value"] == "no"
    assert "kv_of_other_weights" in record["replayable"]["reasons"]


@pytest.mark.parametrize(
    ("kind", "mode", "stream"),
    [("sglang", "retract", True), ("sglang", "in_place", True), ("vllm", "keep", False), ("vllm", "keep", True)],
)
def test_a_version_that_nobody_tells_is_not_guessed(
    start: Callable[..., Site], kind: str, mode: str, *, stream: bool
) -> None:
    """Streams of SGLang and vLLM's chat do not say where the weights changed."""
    site = start(kind)
    record = update_under(site, mode, stream=stream, **({"flush_cache": False} if mode == "in_place" else {}))

    assert versions(record) == [None]
    assert record["segments"][0]["notes"] == ["weights_changed_in_mid_reply"]
    assert record["replayable"] == {"value": "no", "reasons": ["weights_changed_in_mid_reply"]}


def update_under(site: Site, mode: str, *, stream: bool, **more: Any) -> Json:
    """The record of a call during which the weights become w2 under a pause of this mode."""
    call = site.call_in_the_middle(stream=stream)
    site.do("/pause", {"mode": mode, "lease_s": FOREVER})
    site.engine.go_on()
    site.load("w2", **more)
    site.do("/weights", {"version": "w2"})
    site.do("/resume")
    return call.record()


def test_draining_lets_calls_end_on_the_old_weights(start: Callable[..., Site]) -> None:
    """vLLM's `wait`: the pause holds when the last one has ended."""
    site = start("vllm")
    call = site.call_in_the_middle(stream=True)
    pausing = Doing(site, "/pause", {"mode": "wait", "lease_s": FOREVER})
    until(lambda: site.engine._engine.pause == "wait")
    assert pausing.is_alive()
    site.engine.go_on()
    pausing.done()
    assert site.engine.running == 0
    site.load("w2")
    site.do("/resume")
    record = call.record()

    assert versions(record) == ["default"]
    assert covers(record)


@KINDS
def test_an_engine_alone_may_tell_of_new_weights(start: Callable[..., Site], kind: str) -> None:
    """The trainer forgets POST /weights: resuming notices, and flushes."""
    site = start(kind)
    before = Call(site.proxy.rollout()).record()
    site.do("/pause", {})
    site.load("w2")

    assert site.do("/resume")["weights"] == {"engine-0": "w2"}
    assert (versions(before), versions(Call(site.proxy.rollout()).record())) == (["default"], ["w2"])
    assert [engine["weights"]["told_by"] for engine in site.proxy.control.get("/engines").json()["engines"]]


@KINDS
@AS_STREAM
def test_weights_that_change_without_a_word_are_noticed(start: Callable[..., Site], kind: str, *, stream: bool) -> None:
    """The first call after it may have met either; from the second on it is clear."""
    site = start(kind)
    Call(site.proxy.rollout(), stream=stream).record()
    site.load("w2")
    doubtful, clear = (Call(site.proxy.rollout(), stream=stream).record() for _ in range(2))

    if kind == "sglang" and not stream:
        # The engine itself says who drew it; what it met in the cache nobody does.
        assert (versions(doubtful), doubtful["segments"][0]["notes"]) == (["w2"], ["stale_kv"])
    else:
        assert (versions(doubtful), doubtful["segments"][0]["notes"]) == ([None], ["weights_changed_in_mid_reply"])
    assert (versions(clear), clear["segments"][0]["notes"]) == (["w2"], [])


@KINDS
def test_a_call_after_an_update_never_reads_what_old_weights_computed(start: Callable[..., Site], kind: str) -> None:
    """Nothing was flushed; the salt alone keeps the caches apart. Without it the engine mixes them."""
    site, fresh = start(kind), start(kind)
    first = Call(site.proxy.rollout(group="g")).record()
    for one in (site, fresh):
        one.load("w2", flush_cache=False)
    expected = Call(fresh.proxy.rollout(group="g", run="b")).record()["logprobs"]
    Call(site.proxy.rollout(group="other")).record()
    salted = Call(site.proxy.rollout(group="g", run="b")).record()

    assert salted["logprobs"] == expected
    assert salted["logprobs"] != first["logprobs"]
    assert unsalted(site, fresh) is False


def unsalted(site: Site, fresh: Site) -> bool:
    """Whether an engine that was asked before the update answers as one that was not, where nobody salts."""
    body = {**site.engine.requests[0].body, "cache_salt": None}
    answers = []
    for one in (site, fresh):
        with httpx.Client(base_url=one.engine.url, timeout=PATIENCE_S) as engine:
            if one is site:
                one.load("w1", flush_cache=False)
                engine.post("/v1/chat/completions", json=body)
            one.load("w3", flush_cache=False)
            answers.append(engine.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"])
    return bool(answers[0] == answers[1])


def test_a_name_that_comes_back_is_not_the_same_weights(start: Callable[..., Site]) -> None:
    """A rollback to w1 gets a salt of its own: under the first one calls of w2 may have been cached."""
    site = start("vllm")
    for version in ("w1", "w2", "w1"):
        site.load(version)
        site.do("/weights", {"version": version})
        Call(site.proxy.rollout()).record()

    assert len({request.body["cache_salt"] for request in site.engine.requests}) == 3


def test_every_call_is_salted_and_turns_of_one_version_share_the_cache(start: Callable[..., Site]) -> None:
    """Otherwise nothing would be gained by a cache."""
    site = start("sglang")
    for _ in range(2):
        Call(site.proxy.rollout()).record()

    assert len({request.body["cache_salt"] for request in site.engine.requests}) == 1


def test_without_development_mode_the_trainer_is_the_one_who_tells(start: Callable[..., Site]) -> None:
    """vLLM then says nothing of its weights, and until told a record says so."""
    site = start("vllm", engine={"dev_mode": False})
    untold = Call(site.proxy.rollout()).record()
    answer = site.do("/weights", {"version": "step-7"})
    told = Call(site.proxy.rollout()).record()

    assert (versions(untold), untold["segments"][0]["notes"]) == ([None], ["version_not_told"])
    assert (versions(told), told["segments"][0]["notes"]) == (["step-7"], [])
    assert (answer["engines"][0]["reported"], answer["engines"][0]["flushed"]) == (None, False)


@AS_STREAM
def test_a_pause_that_is_not_resumed_in_time_refuses_and_stays(start: Callable[..., Site], *, stream: bool) -> None:
    """Those who wait are told to come back, those who come are refused before anything is written."""
    site = start("sglang", timeouts={"heartbeat_after_s": FOREVER})
    site.do("/pause", {"mode": "abort", "lease_s": FOREVER})
    waiting = Call(site.proxy.rollout(), stream=stream).arrived()
    site.let_lease_lapse()
    answer = waiting.ended()
    refused = site.proxy.rollout()
    again = refused.chat(stream=stream)

    assert (answer.status_code, answer.headers["retry-after"], again.status_code) == (503, "5", 503)
    assert answer.json()["error"]["code"] == again.json()["error"]["code"] == "engines_paused"
    assert waiting.client.call()["failure"]["kind"] == "engines_paused"
    assert site.proxy.calls(refused.rollout_id) == []
    assert site.engine._engine.pause == "abort"
    site.do("/resume")
    assert refused.chat().status_code == 200
    assert waiting.client.chat(**TALK).status_code == 200
    assert len(waiting.client.calls()) == 1


def test_waiting_for_a_pause_to_end_is_bounded(start: Callable[..., Site]) -> None:
    """By timeouts.pause_wait_s, however long the lease."""
    site = start("sglang", timeouts={"pause_wait_s": 0.2})
    site.do("/pause", {})

    assert Call(site.proxy.rollout()).ended().json()["error"]["code"] == "engines_paused"


def test_a_stream_that_waits_gives_signs_of_life(start: Callable[..., Site]) -> None:
    """So that neither the client nor what stands between gives up."""
    site = start("sglang", timeouts={"heartbeat_after_s": 0.1})
    site.do("/pause", {})
    client = site.proxy.rollout()
    reader = Reader(client, **TALK)
    until(lambda: reader.heartbeats >= 2)
    site.do("/resume")

    assert reader.ended().is_done
    assert client.call()["state"] == "done"


def test_pausing_again_renews_the_lease_and_another_mode_is_refused(start: Callable[..., Site]) -> None:
    """So a long update can say that it is alive."""
    site = start("sglang")
    first, second = (site.do("/pause", {"mode": "retract", "lease_s": seconds}) for seconds in (500, 5000))
    other = site.post("/pause", {"mode": "abort"})

    assert first["pause_id"] == second["pause_id"]
    assert first["lease_until"] < second["lease_until"]
    assert (other.status_code, other.json()["error"]["code"]) == (409, "paused_otherwise")
    assert site.proxy.control.get("/engines").json()["pause"]["mode"] == "retract"
    site.do("/resume")
    assert site.proxy.control.get("/engines").json()["pause"] is None


@pytest.mark.parametrize(
    ("kind", "mode"), [("sglang", "keep"), ("sglang", "wait"), ("vllm", "retract"), ("vllm", "in_place")]
)
def test_a_mode_that_an_engine_does_not_know_changes_nothing(start: Callable[..., Site], kind: str, mode: str) -> None:
    """The engine's own words, and no other's."""
    site = start(kind)
    answer = site.post("/pause", {"mode": mode})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "pause_mode_unknown")
    assert (site.engine._engine.pause, site.proxy.wiring.pauses.in_force) == (None, None)


def test_an_engine_that_cannot_be_paused_leaves_nothing_paused(start: Callable[..., Site]) -> None:
    """vLLM without development mode: the answer says what to do, and calls go on."""
    site = start("vllm", engine={"dev_mode": False})
    answer = site.post("/pause", {"mode": "abort"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_not_controllable")
    assert "VLLM_SERVER_DEV_MODE" in answer.json()["error"]["message"]
    assert Call(site.proxy.rollout()).record()["state"] == "done"


@KINDS
def test_weights_that_the_engine_does_not_report_are_refused(start: Callable[..., Site], kind: str) -> None:
    """Nothing is noted: the trainer's word and the engine's must agree."""
    site = start(kind)
    site.load("w2")
    answer = site.post("/weights", {"version": "w3"})
    unknown = site.post("/weights", {"version": "w2", "engines": ["engine-7"]})

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "weights_mismatch")
    assert "'w2'" in answer.json()["error"]["message"]
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_engine")
    assert [engine["weights"]["version"] for engine in site.proxy.control.get("/engines").json()["engines"]] != ["w3"]


@KINDS
def test_new_weights_make_no_other_engine(start: Callable[..., Site], kind: str) -> None:
    """SGLang names itself after the path that they came from; a rollout goes on from its exact ids all the same."""
    site = start(kind)
    (before,) = site.proxy.control.get("/engines").json()["engines"]
    client = site.proxy.rollout()
    said = client.chat("hello").json()["choices"][0]["message"]
    site.do("/pause", {})
    site.load("w2")
    site.do("/resume")
    site.proxy.do(site.proxy.wiring.pool.look())
    (after,) = site.proxy.control.get("/engines").json()["engines"]
    talk = [{"role": "user", "content": "hello"}, said, {"role": "user", "content": "go on"}]
    client.post({"model": "policy", "messages": talk})

    assert (after["model"], after["fingerprint"]) == (before["model"], before["fingerprint"])
    assert client.calls()[1]["prefix"]["supplied"], client.calls()[1]["prefix"]


def test_a_late_look_does_not_open_the_door(start: Callable[..., Site]) -> None:
    """What was read before a pause began says nothing of it."""
    site = start("sglang")
    store, read = site.proxy.wiring.store, site.proxy.wiring.store.pause
    has_read, may_tell, looks = threading.Event(), threading.Event(), list[Pause | None]()

    async def late() -> Pause | None:
        looks.append(look := await read())
        is_first = len(looks) == 1
        while is_first and not may_tell.is_set():
            has_read.set()
            await asyncio.sleep(0.01)
        return look

    store.pause = late  # type: ignore[method-assign]
    assert has_read.wait(PATIENCE_S)
    site.do("/pause", {"mode": "retract"})
    before = len(looks)
    may_tell.set()
    # Whoever looks again has made of the first look what there is to be made of it.
    until(lambda: len(looks) > before)

    assert looks[0] is None
    assert site.proxy.wiring.pauses.in_force is not None


def test_a_pause_outlives_the_proxy(tmp_path: Path) -> None:
    """Nothing resumes by itself, not even by a crash."""
    with FakeEngine("sglang") as engine:
        with served(settings_for(tmp_path, engine.url)) as proxy:
            assert proxy.control.post("/pause", json={"mode": "abort", "lease_s": FOREVER}).status_code == 200
        with served(settings_for(tmp_path, engine.url, timeouts={"heartbeat_after_s": 0.1})) as proxy:
            client = proxy.rollout()
            reader = Reader(client, **TALK)
            until(lambda: reader.heartbeats >= 2)
            assert not engine.requests
            assert proxy.control.post("/resume").status_code == 200
            assert reader.ended().is_done
            assert client.call()["state"] == "done"


def test_a_pause_waits_for_every_live_replica(start: Callable[..., Site]) -> None:
    """One that shares the store and has not shut its door keeps the pause from holding."""
    site = start("sglang")
    store, now, asked = site.proxy.wiring.store, time.time(), list[str]()
    silent = store.silent

    async def counted(pause_id: str, at: float) -> tuple[str, ...]:
        asked.append(pause_id)
        return await silent(pause_id, at)

    site.proxy.do(store.stay_alive("px_other", now + FOREVER, now))
    store.silent = counted  # type: ignore[method-assign]
    pausing = Doing(site, "/pause", {"mode": "abort"})
    until(lambda: len(asked) > 2)
    assert site.engine._engine.pause is None
    site.proxy.do(store.acknowledge("px_other", asked[0]))
    pausing.done()

    assert site.engine._engine.pause == "abort"


def test_a_replica_follows_what_another_was_told(start: Callable[..., Site]) -> None:
    """It shuts its door, says so, and opens it with the other's."""
    site = start("sglang")
    wiring = site.proxy.wiring
    pause = Pause("pa_1", "retract", time.time(), time.time() + FOREVER)
    site.proxy.do(wiring.store.begin_pause(pause))
    until(lambda: wiring.pauses.in_force == pause)
    until(lambda: site.proxy.do(wiring.store.silent("pa_1", time.time())) == ())
    site.proxy.do(wiring.store.end_pause(pause, time.time()))

    until(lambda: wiring.pauses.in_force is None)


# --- a store that is away ---------------------------------------------------------------------------------------


class AwayStore:
    """A shared store whose weights cannot be read for so many looks, from some moment on."""

    is_shared = True

    def __init__(self, proxy: ServedProxy, looks: int, is_due: Callable[[], bool]) -> None:
        self._store = proxy.wiring.store
        self.looks = looks
        self._is_due = is_due
        proxy.wiring.weights._store = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def weights(self) -> tuple[Weights, ...]:
        if self._is_due() and self.looks:
            self.looks -= 1
            raise StoreDown("away")
        return await self._store.weights()


def has_drawn(engine: FakeEngine) -> bool:
    return any(request.path == "/v1/chat/completions" for request in engine.requests)


def test_a_reply_waits_for_the_store_that_tells_its_weights(start: Callable[..., Site]) -> None:
    """As it does for its record: a short absence costs no reply. (SGLang's replies tell theirs themselves.)"""
    site = start("vllm")
    away = AwayStore(site.proxy, 2, lambda: has_drawn(site.engine))
    client = site.proxy.rollout()

    assert client.chat().status_code == 200
    assert (away.looks, client.call()["state"]) == (0, "done")


@KINDS
def test_a_call_whose_weights_nobody_tells_may_be_asked_again(start: Callable[..., Site], kind: str) -> None:
    """It fails before an engine is asked, and its retry has the same draw."""
    site = start(kind)
    AwayStore(site.proxy, 1, lambda: True)
    client = site.proxy.rollout()
    failed, drawn_by_then = client.chat(), has_drawn(site.engine)
    again = client.chat()
    call = client.call()

    assert (failed.status_code, failed.json()["error"]["code"], drawn_by_then) == (503, "store_unavailable", False)
    assert failed.headers["retry-after"] == "2"
    assert again.status_code == 200
    assert (call["state"], [failure["kind"] for failure in call["earlier_failures"]]) == ("done", ["store_unavailable"])
