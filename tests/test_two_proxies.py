"""Two proxy processes on one PostgreSQL store and one engine: a rollout is one, whichever of them is asked."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from proxy.verify.story import Looking, verify_store
from tests.fakes import FakeEngine, Fault, Say
from tests.patience import PATIENCE_S, until
from tests.postgres import PostgresServer
from tests.served import ADMIN
from tests.test_crash import new_rollout, proxy_process, read_calls

TURNS = 6
AT_ONCE = 200
AGENTS = 8
HEADERS = {"authorization": f"Bearer {ADMIN}"}
HELD = "locktype = 'advisory' and mode = 'ShareLock'"
RETRIED = {"x-stainless-retry-count": "1"}
# Looked at four times within its length, and longer than any machine stands still by itself.
LEASE_S = 12
# What the process that draws the only running call has promised to prolong.
RUN_OUT = (
    "update replicas set alive_until = 0 where owner = (select owner from calls where state = 'reserved')",
    "update calls set lease_until = 0 where state = 'reserved'",
)


@dataclass
class Pair:
    """Two proxies that know nothing of each other but the store."""

    urls: tuple[str, str]
    processes: tuple[Any, Any]
    engine: FakeEngine
    store: str
    server: PostgresServer

    def base_url(self, which: int, rollout_id: str) -> str:
        return f"{self.urls[which]}/rollouts/{rollout_id}/v1"

    def rollout(self, rollout_id: str = "r") -> str:
        """The key of a new rollout, made by the first."""
        return new_rollout(self.urls[0], rollout_id)[1]

    def calls(self, rollout_id: str = "r", which: int = 1) -> list[dict[str, Any]]:
        return list(read_calls(self.urls[which], rollout_id))

    def kill(self, which: int) -> None:
        """kill -9, and wait until the server has seen it, as it does at once."""
        self.processes[which].kill()
        self.processes[which].join(PATIENCE_S)
        until(lambda: self.server.run(f"select count(distinct objid) from pg_locks where {HELD}") == [(1,)])

    def stop(self, which: int) -> None:
        """Let the process that draws the running call stand still, for so long that its leases have run out."""
        os.kill(self.processes[which].pid, signal.SIGSTOP)
        with psycopg.connect(self.store, autocommit=True) as store:
            for statement in RUN_OUT:
                store.execute(statement.encode())

    def go_on(self, which: int) -> None:
        os.kill(self.processes[which].pid, signal.SIGCONT)

    def load(self, version: str, *, told_to: int) -> None:
        """What a trainer does to the engine, and then says to one of the proxies."""
        httpx.post(f"{self.engine.url}/update_weight_version", json={"new_version": version}).raise_for_status()
        self.control(told_to, "POST", "/weights", {"version": version}).raise_for_status()

    def drawn(self) -> list[Any]:
        """What the engine was asked to draw."""
        return [request for request in self.engine.requests if request.path == "/v1/chat/completions"]

    def control(self, which: int, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, f"{self.urls[which]}{path}", json=body, headers=HEADERS, timeout=PATIENCE_S)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Iterator[Pair]:
    """Two proxies; a parameter is the length of their leases."""
    lease_s = getattr(request, "param", 60)
    store = postgres.new_schema()
    settings = {
        "store": store,
        "timeouts": {"drain_s": 0.1, "lease_s": lease_s},
        "limits": {"calls_at_once_per_rollout": 2 * AT_ONCE, "calls_at_once": 2 * AT_ONCE},
    }
    with ExitStack() as stack:
        engine = stack.enter_context(FakeEngine("vllm", max_model_len=20_000, dev_mode=True))
        engine.always(Say("Well then."))
        first, url = stack.enter_context(proxy_process(tmp_path, engine.url, **settings))
        second, other_url = stack.enter_context(proxy_process(tmp_path, engine.url, **settings))
        yield Pair((url, other_url), (first, second), engine, store, postgres)


def ask(
    base_url: str, key: str, *messages: Any, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    """The answer; while the store is held up, as where a process stands still amid a write, it is asked again."""
    body = {"messages": list(messages), **fields}
    sent = {"authorization": f"Bearer {key}", **(headers or {})}
    while True:
        answer = httpx.post(f"{base_url}/chat/completions", json=body, headers=sent, timeout=PATIENCE_S)
        if answer.status_code != 503 or answer.json()["error"]["code"] != "store_unavailable":
            return answer


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def converse(pair: Pair, key: str, agent: int) -> None:
    """A conversation whose turns go to the two proxies in turn."""
    talk = [user(f"You are agent {agent}.")]
    for turn in range(TURNS):
        answer = ask(pair.base_url((turn + agent) % 2, "r"), key, *talk)
        assert answer.status_code == 200, answer.text
        talk += [{"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}, user("Go on.")]


def test_turns_through_both_are_one_branch(pair: Pair) -> None:
    """Each goes on from the ids that the other process recorded, for several agents at once."""
    key = pair.rollout()
    with ThreadPoolExecutor(AGENTS) as threads:
        list(threads.map(lambda agent: converse(pair, key, agent), range(AGENTS)))
    calls = pair.calls()
    branches = pair.control(0, "GET", "/rollouts/r/trajectory").json()["branches"]

    assert len(calls) == AGENTS * TURNS
    assert [len(branch["owned_call_ids"]) for branch in branches] == [TURNS] * AGENTS
    for agent in range(AGENTS):
        mine = [call for call in calls if call["messages"][0]["content"] == f"You are agent {agent}."]
        assert [call["prefix"]["reason"] for call in mine] == ["first_turn"] + ["exact"] * (TURNS - 1)
        for earlier, later in pairwise(mine):
            so_far = earlier["prompt_token_ids"] + earlier["completion_token_ids"]
            assert later["prefix"]["supplied"]
            assert later["prompt_token_ids"][: len(so_far)] == so_far
    assert verify_store(pair.store, Looking()).faults == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("happens", "status"), [(Say("Only once."), 200), (Fault.status(500), 502)], ids=["well", "ill"]
)
def test_a_repeat_that_goes_to_the_other_process_waits_for_the_reply(
    pair: Pair, happens: Any, status: int, *, stream: bool
) -> None:
    """One draw and two readings of it, however it ends; a pause holds it back until both are there."""
    key = pair.rollout()
    pair.engine.script(happens)
    pair.control(0, "POST", "/pause", {"mode": "wait", "lease_s": 60})
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, pair.base_url(0, "r"), key, user("hello"))
        until(lambda: len(pair.calls()) == 1)
        second = threads.submit(ask, pair.base_url(1, "r"), key, user("hello"), headers=RETRIED, stream=stream)
        until(lambda: len(pair.calls()[0]["deliveries"]) == 2)
        (held,) = pair.calls()
        pair.control(0, "POST", "/resume")
        replies = [one.result() for one in (first, second)]
    (call,) = pair.calls()

    assert held["state"] == "reserved"
    assert [reply.status_code for reply in replies] == [status, status]
    assert all(("Only once." in reply.text) == (status == 200) for reply in replies)
    assert call["state"] == ("done" if status == 200 else "failed")
    assert [delivery["claim"] for delivery in call["deliveries"]] == [None, "retry_count"]


def test_a_retry_claims_what_the_other_process_failed_at(pair: Pair) -> None:
    """The same draw again, with the same seed."""
    key = pair.rollout()
    pair.engine.script(Fault.status(500))
    failed = ask(pair.base_url(0, "r"), key, user("hello"))
    again = ask(pair.base_url(1, "r"), key, user("hello"))
    (call,) = pair.calls()

    assert (failed.status_code, again.status_code) == (502, 200)
    assert (call["state"], call["seed"]["occurrence"]) == ("done", 0)
    assert [failure["kind"] for failure in call["earlier_failures"]] == ["engine_error"]


def test_a_killed_process_is_survived(pair: Pair) -> None:
    """The retry that comes to the other one right after claims its draw, and the rollout goes on supplied."""
    key = pair.rollout()
    assert ask(pair.base_url(0, "r"), key, user("hello")).status_code == 200
    pair.engine.script(Fault.stall_before_headers(PATIENCE_S))
    talk = (user("hello"), {"role": "assistant", "content": "Well then."}, user("and?"))
    with ThreadPoolExecutor(1) as threads:
        cut = threads.submit(ask, pair.base_url(0, "r"), key, *talk)
        until(lambda: len(pair.drawn()) == 2)
        pair.kill(0)
        assert isinstance(cut.exception(), httpx.HTTPError)
    again = ask(pair.base_url(1, "r"), key, *talk)
    calls = pair.calls()

    assert again.status_code == 200
    assert [(call["state"], call["prefix"]["reason"]) for call in calls] == [("done", "first_turn"), ("done", "exact")]
    assert [failure["kind"] for failure in calls[1]["earlier_failures"]] == ["proxy_died"]
    assert [delivery["claim"] for delivery in calls[1]["deliveries"]] == [None, "failed"]


@pytest.mark.parametrize("pair", [LEASE_S], indirect=True, ids=["short-leases"])
def test_a_process_that_stands_still_is_given_up(pair: Pair) -> None:
    """By its leases, since its session stays: the retry has its draw, and what it says afterwards is not recorded."""
    key = pair.rollout()
    pair.engine.script(Say("The retry's."), Say("Too late."))
    pair.control(1, "POST", "/pause", {"mode": "wait", "lease_s": 60})
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(ask, pair.base_url(0, "r"), key, user("hello"))
        until(lambda: len(pair.calls()) == 1)
        pair.stop(0)
        until(lambda: pair.calls()[0]["state"] == "failed")
        pair.control(1, "POST", "/resume")
        again = ask(pair.base_url(1, "r"), key, user("hello"))
        pair.go_on(0)
        told = slow.result()
    (call,) = pair.calls()

    assert (again.status_code, told.status_code) == (200, 503)
    assert again.json()["choices"][0]["message"] == call["message"]
    assert [failure["kind"] for failure in call["earlier_failures"]] == ["proxy_died"]


def test_what_a_process_drew_while_a_pause_was_granted_without_it_has_no_version(pair: Pair) -> None:
    """It stood still with a reply on its way; it cannot know what the trainer did to the weights meanwhile."""
    key = pair.rollout()
    pair.load("step-1", told_to=1)
    certain = ask(pair.base_url(0, "r"), key, user("before"))
    asked_by_then = len(pair.drawn())
    httpx.post(f"{pair.engine.url}/pause?mode=keep", json={}).raise_for_status()
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(ask, pair.base_url(0, "r"), key, user("hello"))
        until(lambda: len(pair.drawn()) > asked_by_then)
        pair.stop(0)
        # Where it was amid a write, all others are refused until the server has cut it off.
        until(lambda: pair.control(1, "POST", "/pause", {"mode": "keep", "lease_s": 60}).is_success)
        pair.control(1, "POST", "/resume").raise_for_status()
        pair.go_on(0)
        doubtful = slow.result()
    after = ask(pair.base_url(0, "r"), key, user("after"))
    segments = [[(one["weight_version"], one["notes"]) for one in call["segments"]] for call in pair.calls()]

    assert [answer.status_code for answer in (certain, doubtful, after)] == [200] * 3
    assert segments == [[("step-1", [])], [(None, ["presence_unproven"])], [("step-1", [])]]


def test_what_trainers_say_to_one_reaches_the_other(pair: Pair) -> None:
    """A pause holds at once at both, new weights from the next call on, a profile soon."""
    key = pair.rollout()
    paused = pair.control(0, "POST", "/pause", {"mode": "wait", "lease_s": 60})
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask, pair.base_url(1, "r"), key, user("hello"))
        until(lambda: len(pair.calls()) == 1)
        asked_by_then = len(pair.engine.requests)
        pair.load("step-2", told_to=1)
        pair.control(1, "POST", "/resume")
        answer = waiting.result()
    pair.load("step-3", told_to=0)
    ask(pair.base_url(1, "r"), key, user("and then?"))
    pair.control(0, "PUT", "/profiles/train", {"temperature": 0.5})
    until(lambda: pair.control(1, "GET", "/profiles/train").json()["temperature"] == 0.5)
    versions = [segment["weight_version"] for call in pair.calls() for segment in call["segments"]]

    assert paused.status_code == 200, paused.text
    assert (asked_by_then, answer.status_code) == (0, 200)
    assert versions == ["step-2", "step-3"]


def test_hundreds_at_once_get_numbers_of_their_own(pair: Pair) -> None:
    """One question, drawn two hundred times through both: no occurrence, no place and no seed is given twice."""
    key = pair.rollout()
    with ThreadPoolExecutor(AT_ONCE // 4) as threads:
        answers = list(threads.map(lambda n: ask(pair.base_url(n % 2, "r"), key, user("hello")), range(AT_ONCE)))
    calls = pair.calls()

    assert {answer.status_code for answer in answers} == {200}
    assert sorted(call["seed"]["occurrence"] for call in calls) == list(range(AT_ONCE))
    assert len({call["seed"]["value"] for call in calls}) == AT_ONCE
    assert verify_store(pair.store, Looking()).faults == []
