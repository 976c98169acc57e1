"""Engines seen, added, drained and removed while the proxy runs."""

from pathlib import Path

import pytest

from proxy.model import Proof
from tests.control.conftest import ENGINE_URL, Control, Told
from tests.fakes import FakeEngine, Fault
from tests.served import served, settings_for

pytestmark = pytest.mark.anyio


async def test_engines_show_what_they_said_and_what_they_cannot_honour(control: Control) -> None:
    """Key and token stay out."""
    control.engine_is(kind="sglang", deterministic=False, version="0.5", context_length=4096, vocabulary=1000)

    (engine,) = (await control.ask("GET", "/engines")).json()["engines"]

    findings = engine.pop("findings")
    assert engine == {
        "name": "engine-0",
        "url": ENGINE_URL,
        "problem": None,
        "draining": False,
        "weight": 1.0,
        "calls": 0,
        "kind": "sglang",
        "version": "0.5",
        "model": "policy",
        "context_length": 4096,
        "vocabulary": 1000,
        "deterministic": False,
        "takes_exact_prompts": None,
        "fingerprint": None,
        "probe": None,
        "weights": {"version": None, "lapsed": None, "epoch": 0, "told_by": None, "flushed": True},
    }
    assert {finding["profile"] for finding in findings} == {"train", "validation"}
    assert all(finding["setting"] == "seed" and finding["remedy"] for finding in findings)


async def test_an_engine_shows_what_its_probe_proved(control: Control) -> None:
    """Its faults in sentences, and its ways."""
    control.engine_is(proof=Proof(faults=("two seeds drew the same tokens",), logprobs="raw"))

    (engine,) = (await control.ask("GET", "/engines")).json()["engines"]

    assert engine["probe"] == {
        "faults": ["two seeds drew the same tokens"],
        "takes_exact_prompts": None,
        "draws_by_position": None,
        "logprobs": "raw",
    }


async def test_an_engine_that_was_never_reached_is_shown_with_its_problem(control: Control) -> None:
    """Unknown facts are null."""
    engine = control.wiring.pool.engines[0]
    engine.ref, engine.problem = None, "does not answer"

    (shown,) = (await control.ask("GET", "/engines")).json()["engines"]

    assert (shown["problem"], shown["kind"], shown["findings"]) == ("does not answer", None, [])


async def test_what_is_wrong_with_an_engine_to_be_added_is_told_and_nothing_is_added(
    control: Control, told: Told
) -> None:
    """The same rules as in the settings, and each URL once."""
    wrong = [{}, {"url": "ftp://x"}, {"url": "http://u:p@e:1"}, {"url": "http://e:1", "weight": 0}, {"url": 3}]
    answers = [await control.ask("POST", "/engines", json=body) for body in wrong]
    twice = await control.ask("POST", "/engines", json={"url": ENGINE_URL})

    assert [answer.status_code for answer in answers] == [400] * len(wrong)
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "engine_exists")
    assert "u:p" not in told(answers[2])
    assert len(control.wiring.pool.engines) == 1


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("POST", "/drain"), ("POST", "/open")])
async def test_an_unknown_engine_is_not_found(control: Control, method: str, path: str) -> None:
    """By its name."""
    answer = await control.ask(method, f"/engines/engine-7{path}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_engine")


async def test_an_added_engine_with_a_key_does_not_show_it(control: Control) -> None:
    """Neither in the answer nor in the list; that it does not answer is its problem."""
    body = {"url": "http://127.0.0.1:2", "api_key": "engine-key-of-tests", "weight": 2.5}
    added = await control.ask("POST", "/engines", json=body)
    listed = await control.ask("GET", "/engines")

    assert (added.status_code, added.json()["name"], added.json()["weight"]) == (201, "engine-1", 2.5)
    assert added.json()["problem"]
    assert "engine-key-of-tests" not in added.text + listed.text


def test_an_engine_takes_over_from_one_that_is_drained_and_removed(tmp_path: Path) -> None:
    """A rollout goes on, on an engine of the same fingerprint, and nothing fails on the way."""
    with (
        FakeEngine("vllm") as old,
        FakeEngine("vllm") as new,
        served(settings_for(tmp_path, old.url)) as proxy,
    ):
        client = proxy.rollout()
        assert client.chat("one").status_code == 200
        added = proxy.control.post("/engines", json={"url": new.url})
        assert (added.status_code, added.json()["problem"]) == (201, None)

        assert proxy.control.post("/engines/engine-0/drain").json()["draining"]
        assert client.chat("two").status_code == 200
        assert proxy.control.post("/engines/engine-0/open").json()["draining"] is False
        assert client.chat("three").status_code == 200
        assert proxy.control.delete("/engines/engine-0").status_code == 200

        assert [call["engine"]["name"] for call in client.calls()] == ["engine-0", "engine-1", "engine-1"]
        assert [engine["name"] for engine in proxy.control.get("/engines").json()["engines"]] == ["engine-1"]


def test_calls_in_flight_on_a_removed_engine_are_served_to_their_end(tmp_path: Path) -> None:
    """Removal closes the door, it cuts nobody off."""
    with FakeEngine("vllm") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        engine.script(Fault.halt())
        client = proxy.rollout()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 20}
        with client.http.stream("POST", "/chat/completions", json=body) as response:
            stream = response.iter_lines()
            next(stream)
            assert proxy.control.get("/engines").json()["engines"][0]["calls"] == 1
            assert proxy.control.delete("/engines/engine-0").json()["calls"] == 1
            engine.go_on()
            lines = [line for line in stream if line]

        assert lines[-1] == "data: [DONE]"
        assert client.call()["state"] == "done"
        assert client.chat().status_code == 503
