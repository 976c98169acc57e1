"""A recorded run served back: the same replies to the same requests, and a diff where a harness departs."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from proxy.app import run_proxy
from proxy.cassette.tape import open_tape
from proxy.settings import Settings
from proxy.settings_sources import WrongSettings, load_settings
from tests.fakes import FakeEngine, Fault, Say
from tests.served import ADMIN, READER, RolloutClient, ServedProxy, served, settings_for

Json = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def converse(client: RolloutClient, *, stream: bool = False, last: str = "why?") -> list[Json]:
    """Two turns with a tool call, as a harness plays them; what came back."""
    asked: list[Json] = [{"role": "user", "content": "add 1 and 2"}]
    first = client.post({"messages": asked, "tools": [TOOL], "tool_choice": "required"}).json()
    said = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "3"}
    body = {"messages": [*asked, said, result, {"role": "user", "content": last}], "tools": [TOOL]}
    if not stream:
        return [first, client.post(body).json()]
    with client.http.stream("POST", "/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return [first, {"lines": [line for line in response.iter_lines() if line]}]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store of a finished run, and its secrets."""
    folder = tmp_path_factory.mktemp("recorded")
    with FakeEngine("sglang") as engine, served(settings_for(folder, engine.url)) as proxy:
        for sample in range(2):
            client = proxy.rollout(rollout_id=f"task-{sample}", run="monday", group="task", sample=sample)
            converse(client)
            client.chat("many", n=2, max_tokens=9)
            client.chat("twice", max_tokens=9)
            client.chat("twice", max_tokens=9)
            client.calls()
        engine.script(Fault.status(500))
        client.chat("fails")
        client.calls()
        proxy.control.post("/rollouts/task-0/finish")
        messages(client)
        client.calls()
    return folder


def messages(client: RolloutClient) -> Json:
    """The same rollout by Anthropic's SDK."""
    sdk = anthropic.Anthropic(
        base_url=client.created["anthropic_base_url"], api_key=client.created["api_key"], max_retries=0
    )
    said = sdk.messages.create(model="policy", max_tokens=20, messages=[{"role": "user", "content": "hi claude"}])
    return dict(said.model_dump())


def cassette_of(folder: Path, run: str = "monday") -> Settings:
    """Settings that name a run and no engine."""
    return Settings(
        port=0,
        cassette=run,
        store=f"sqlite:///{folder / 'rollpin.db'}",
        secrets_file=folder / "secrets.json",
        admin_token=ADMIN,
        read_token=READER,
    )


@pytest.fixture
def proxy(recorded: Path) -> Iterator[ServedProxy]:
    """The run served back; no engine runs any more."""
    with served(cassette_of(recorded)) as running:
        yield running


def client_of(proxy: ServedProxy, rollout_id: str) -> RolloutClient:
    """A harness with the URL and the key that it was given when the run was recorded."""
    key = proxy.wiring.keys.rollout_key(rollout_id)
    base = f"{proxy.url}/rollouts/{rollout_id}"
    return RolloutClient(
        proxy,
        {"rollout_id": rollout_id, "base_url": f"{base}/v1", "anthropic_base_url": base, "api_key": key},
    )


def calls_on_record(folder: Path) -> list[Json]:
    with closing(sqlite3.connect(f"file:{folder / 'rollpin.db'}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("select * from calls order by number")]


def words(reply: Json) -> Json:
    return dict(reply["choices"][0]["message"])


def test_the_same_requests_get_the_recorded_replies(proxy: ServedProxy, recorded: Path) -> None:
    """With the rollout's old URL and key, though it was finished; tool-call ids included."""
    said = [words(reply) for reply in converse(client_of(proxy, "task-0"))]
    copy = sqlite3.connect(f"file:{recorded / 'rollpin.db'}?mode=ro", uri=True)
    told = copy.execute("select message from calls where rollout_id = 'task-0' order by seq limit 2").fetchall()
    copy.close()
    assert said == [json.loads(message) for (message,) in told]


def test_a_stream_is_played_as_a_stream(proxy: ServedProxy) -> None:
    """Whichever way the call was recorded."""
    whole = words(converse(client_of(proxy, "task-0"))[1])
    lines = converse(client_of(proxy, "task-1"), stream=True)[1]["lines"]

    assert lines[-1] == "data: [DONE]"
    assert whole["content"] is not None
    assert any('"finish_reason":"' in line for line in lines)


def test_choices_and_repeats_come_in_their_order(proxy: ServedProxy) -> None:
    """Each occurrence its own reply; the samples of a group their own."""
    one, two = client_of(proxy, "task-0"), client_of(proxy, "task-1")
    many = [choice["message"] for choice in one.chat("many", n=2, max_tokens=9).json()["choices"]]
    first, second = (words(one.chat("twice", max_tokens=9).json()) for _ in range(2))
    other = words(two.chat("twice", max_tokens=9).json())

    assert many[0] != many[1]
    assert first != second
    assert other not in (first, second)


def test_a_recorded_failure_is_played_as_that_failure(proxy: ServedProxy) -> None:
    """A harness's own retries can be tested on it."""
    answer = client_of(proxy, "task-1").chat("fails")

    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_error")


def test_a_draw_that_was_given_up_is_given_up_again(tmp_path: Path) -> None:
    """A harness that went on asking comes to the reply that the recorded one came to."""

    def insist(client: RolloutClient) -> list[int]:
        return [client.chat("hello").status_code for _try in range(3)]

    broken = Fault.wrong_count(Say("this draw breaks"))
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        engine.script(broken, broken, Say("this one does not"))
        client = proxy.rollout(rollout_id="task-0", run="monday")
        recorded_statuses = insist(client)
        client.calls()
    with served(cassette_of(tmp_path)) as proxy:
        played_statuses = insist(client_of(proxy, "task-0"))

    assert played_statuses == recorded_statuses == [502, 502, 200]


def test_the_first_departure_is_a_diff_in_the_error(proxy: ServedProxy) -> None:
    """Message by message against the nearest recorded call; the SDK is told not to try again."""
    client = client_of(proxy, "task-0")
    reply = converse(client, last="why not?")[1]
    text = reply["error"]["message"]

    assert reply["error"]["code"] == "cassette_departure"
    assert "departs from the recorded run at message 3" in text
    assert "  message 0 user: the same" in text.splitlines()
    assert '- message 3 user, recorded: "why?"' in text.splitlines()
    assert '+ message 3 user, asked: "why not?"' in text.splitlines()


def test_other_tools_are_named_as_the_departure(proxy: ServedProxy) -> None:
    """Where the messages are the recorded ones."""
    answer = client_of(proxy, "task-0").chat("twice", tools=[TOOL])
    text = answer.json()["error"]["message"]

    assert "tools or template arguments differ" in text
    assert text.splitlines()[1:] == ["- tools recorded: none", "+ tools asked: add"]


def test_once_more_than_recorded_is_a_departure(proxy: ServedProxy) -> None:
    """There is no third draw to play."""
    client = client_of(proxy, "task-0")
    answers = [client.chat("twice", max_tokens=9) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert "once more than was recorded" in answers[2].json()["error"]["message"]
    assert answers[2].headers["x-should-retry"] == "false"


def test_a_trainer_may_open_the_rollouts_anew(proxy: ServedProxy) -> None:
    """By their place in the group, under ids of its own."""
    created = proxy.control.post("/groups", json={"run": "again", "group": "task", "size": 2}).json()["rollouts"]
    client = RolloutClient(proxy, created[1])
    said = words(client.chat("twice", max_tokens=9).json())

    assert said == words(client_of(proxy, "task-1").chat("twice", max_tokens=9).json())


def test_a_rollout_that_was_never_recorded_says_so(proxy: ServedProxy) -> None:
    """With its own place."""
    client = proxy.rollout(group="elsewhere", sample=5)
    text = client.chat("hello").json()["error"]["message"]

    assert "holds neither rollout" in text
    assert "group 'elsewhere', sample 5" in text


def test_other_apis_are_played_in_their_own_form(proxy: ServedProxy) -> None:
    """And their departures told in it."""
    client = client_of(proxy, "task-1")
    said = messages(client)
    sdk = openai.OpenAI(base_url=client.created["base_url"], api_key=client.created["api_key"], max_retries=0)

    assert said["role"] == "assistant"
    assert said["content"]
    with pytest.raises(openai.BadRequestError, match="departs from the recorded run"):
        sdk.responses.create(model="policy", input="never asked")


def test_nothing_of_it_is_recorded(recorded: Path) -> None:
    """The store is as it was, and the scratch is gone with the proxy."""
    before = calls_on_record(recorded)
    with served(cassette_of(recorded)) as proxy:
        client_of(proxy, "task-0").chat("twice", max_tokens=9)
        scratch = proxy.wiring.store._path
        assert scratch.exists()
        assert scratch != recorded / "rollpin.db"

    assert calls_on_record(recorded) == before
    assert not scratch.parent.exists()


def test_a_wrong_key_opens_nothing_here_either(proxy: ServedProxy) -> None:
    """A cassette holds somebody's conversations."""
    answer = httpx.post(
        f"{proxy.url}/rollouts/task-0/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "twice"}]},
        headers={"authorization": "Bearer rk-task-0-0000"},
    )

    assert answer.status_code == 401


@pytest.mark.anyio
async def test_a_run_that_is_not_there_stops_the_start(recorded: Path, tmp_path: Path) -> None:
    """Status 2, and no scratch is left."""
    for name in ("rollpin.db", "secrets.json"):
        shutil.copy(recorded / name, tmp_path / name)

    assert await run_proxy(cassette_of(tmp_path, "tuesday"), lambda _server, _wiring: None) == 2


@pytest.mark.anyio
async def test_an_unknown_run_is_refused_with_the_runs_that_there_are(recorded: Path, tmp_path: Path) -> None:
    """Newest first, so that a typing error is mended without another tool; an empty store says so."""
    with pytest.raises(ValueError, match=r"no rollout of run 'mondey'; name one that it holds: monday$"):
        await open_tape("mondey", cassette_of(recorded).store)
    with served(settings_for(tmp_path, "http://127.0.0.1:1")):
        pass
    with pytest.raises(ValueError, match="it holds no run at all"):
        await open_tape("monday", cassette_of(tmp_path).store)


def test_engines_need_not_be_named_for_a_cassette(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for anything else they must be."""
    monkeypatch.chdir(tmp_path)

    assert load_settings(["--cassette", "monday"]).cassette == "monday"
    with pytest.raises(WrongSettings, match="engines: name at least one"):
        load_settings([])
