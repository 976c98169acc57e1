"""A call whose engine cannot be reached goes to another like it: the same call, the same seed, on record."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.engine import pool
from tests.fakes import FakeEngine, Fault
from tests.served import RolloutClient, ServedProxy, served, settings_for


@pytest.fixture(autouse=True)
def _nobody_looks_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an engine could be found lost before the call that is to find it lost."""
    monkeypatch.setattr(pool, "WELL_LOOK_S", 3600.0)


@contextmanager
def two_engines(folder: Path, kind: Any = "vllm", **second: Any) -> Iterator[tuple[ServedProxy, list[FakeEngine]]]:
    with (
        FakeEngine(kind) as one,
        FakeEngine(kind, **second) as other,
        served(settings_for(folder, one.url, other.url)) as proxy,
    ):
        yield proxy, [one, other]


def settled(proxy: ServedProxy, engines: list[FakeEngine], **fields: Any) -> tuple[RolloutClient, int]:
    """A rollout with one call made, and the place of its engine."""
    client = proxy.rollout(**fields)
    assert client.chat("first").status_code == 200
    return client, int(client.call()["engine"]["name"].removeprefix("engine-"))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_that_its_engine_never_got_is_served_by_another(tmp_path: Path, kind: Any, *, stream: bool) -> None:
    """The client notices nothing; the record names both, and the seed is what it would have been."""
    with two_engines(tmp_path, kind) as (proxy, engines):
        client, home = settled(proxy, engines, group="g", run="one")
        engines[home].stop()
        if stream:
            client.stream("second")
        else:
            assert client.chat("second").status_code == 200
        moved = client.calls()[-1]
        again = proxy.rollout(group="g", run="two")
        again.chat("second")

        assert moved["engine"]["name"] == f"engine-{1 - home}"
        assert moved["engine"]["unreached"] == [f"engine-{home}"]
        assert moved["failure"] is None
        assert moved["seed"]["value"] == again.call()["seed"]["value"]
        assert moved["completion_token_ids"] == again.call()["completion_token_ids"]


def test_all_choices_of_a_request_move(tmp_path: Path) -> None:
    """Each is a call of its own, and half a set is no answer."""
    with two_engines(tmp_path) as (proxy, engines):
        client, home = settled(proxy, engines)
        engines[home].stop()
        answer = client.chat("second", n=3)

        assert answer.status_code == 200
        assert len(answer.json()["choices"]) == 3
        assert {call["engine"]["name"] for call in client.calls()[1:]} == {f"engine-{1 - home}"}


def test_a_turn_keeps_its_exact_prefix_on_the_other_engine(tmp_path: Path) -> None:
    """The ids mean the same there, so the branch goes on."""
    with two_engines(tmp_path) as (proxy, engines):
        client = proxy.rollout()
        messages = [{"role": "user", "content": "one"}]
        said = client.post({"messages": messages}).json()["choices"][0]["message"]
        home = int(client.call()["engine"]["name"].removeprefix("engine-"))
        engines[home].stop()
        assert client.post({"messages": [*messages, said, {"role": "user", "content": "two"}]}).status_code == 200

        moved = client.calls()[-1]
        assert moved["engine"]["name"] == f"engine-{1 - home}"
        assert moved["prefix"]["supplied"], moved["prefix"]


def test_a_reply_that_had_begun_is_not_asked_for_elsewhere(tmp_path: Path) -> None:
    """What was shown cannot be taken back."""
    with two_engines(tmp_path) as (proxy, engines):
        client, home = settled(proxy, engines)
        engines[home].script(Fault.cut(after_events=2))
        with client.http.stream(
            "POST",
            "/chat/completions",
            json={"messages": [{"role": "user", "content": "second"}], "stream": True},
        ) as response:
            response.read()

        cut = client.calls()[-1]
        assert (cut["failure"]["kind"], cut["engine"]["unreached"]) == ("engine_cut", [])
        assert len(engines[1 - home].requests) == 0


@pytest.mark.parametrize("second", [{"model": "another"}, {"max_model_len": 100}], ids=["other model", "less context"])
def test_a_call_does_not_move_to_an_engine_that_is_not_like_its_own(tmp_path: Path, second: dict[str, Any]) -> None:
    """Another model, or a context that the plan may not fit: the failure is recorded."""
    profiles = {name: {"model": "tiny"} for name in ("train", "validation")} if "model" in second else {}
    with (
        FakeEngine("vllm") as one,
        FakeEngine("vllm", **second) as other,
        served(settings_for(tmp_path, one.url, other.url, profiles=profiles)) as proxy,
    ):
        client = next(client for client, home in (settled(proxy, [one, other]) for _ in range(40)) if home == 0)
        one.stop()
        answer = client.chat("second")

        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_unreachable")
        assert client.calls()[-1]["engine"]["unreached"] == []
        assert all("second" not in str(request.body["messages"]) for request in other.requests)


def test_where_no_engine_is_left_the_failure_names_the_last(tmp_path: Path) -> None:
    """Both were tried."""
    with two_engines(tmp_path) as (proxy, engines):
        client, home = settled(proxy, engines)
        for engine in engines:
            engine.stop()
        answer = client.chat("second")

        lost = client.calls()[-1]
        assert answer.status_code == 502
        assert lost["failure"]["kind"] == "engine_unreachable"
        assert (lost["engine"]["name"], lost["engine"]["unreached"]) == (f"engine-{1 - home}", [f"engine-{home}"])
