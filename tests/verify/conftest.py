"""A store with a bit of everything, written by a proxy once and copied for each test."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.verify.story import Looking, Report, verify_store
from tests.fakes import FakeEngine, Fault
from tests.served import served, settings_for

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="session", params=["sglang", "vllm"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Turns, choices, tools, a stream, repeats, every API, an interruption, a failure and a deleted rollout."""
    folder = tmp_path_factory.mktemp("played")
    with FakeEngine(request.param) as engine, served(settings_for(folder, engine.url)) as proxy:
        one, two, gone = (proxy.rollout(rollout_id=name, group="task", sample=n) for n, name in enumerate("abc"))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        for more in ("go on", "and?"):
            said = one.post({"messages": messages, "max_tokens": 30}).json()["choices"][0]["message"]
            messages += [said, {"role": "user", "content": more}]
        one.chat("three", n=3, max_tokens=10)
        one.chat("three", max_tokens=10)
        one.chat("three", n=2, max_tokens=10)
        two.stream("add", tools=[TOOL], tool_choice="required")
        two.chat("again", max_tokens=9)
        two.chat("again", max_tokens=9)
        engine.script(Fault.cut(3))
        two.post({"messages": messages})
        gone.chat("bye")
        engine.script(Fault.abort(3))
        assert two.chat("interrupted", chat_template_kwargs={"enable_thinking": False}).status_code == 200
        anthropic = {
            "model": "policy",
            "max_tokens": 12,
            "system": "be brief",
            "messages": [{"role": "user", "content": "hi"}],
        }
        assert two.http.post("/messages", json=anthropic).status_code == 200
        assert two.http.post("/responses", json={"input": "what?", "instructions": "be brief"}).status_code == 200
        assert two.http.post("/completions", json={"prompt": "once upon", "max_tokens": 9}).status_code == 200
        billing = "x-anthropic-billing-header: build=1\nbe brief"
        assert two.post({"messages": [{"role": "system", "content": billing}, *messages]}).status_code == 200
        for client in (one, two, gone):
            client.calls()
        assert max(len(call["segments"] or ()) for call in two.calls()) == 2
        proxy.control.delete("/rollouts/c")
    return folder / "rollpin.db"


@pytest.fixture
def store(played: Path, tmp_path: Path) -> Path:
    """A copy to do harm to."""
    return Path(shutil.copy(played, tmp_path / "copy.db"))


Harm = Callable[..., None]


@pytest.fixture
def harm(store: Path) -> Harm:
    """Change rows behind Rollpin's back."""

    def work(statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(store)) as connection, connection:
            assert connection.execute(statement, values).rowcount, statement
        with closing(sqlite3.connect(store)) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")

    return work


def verified(store: Path, **looking: Any) -> Report:
    return verify_store(store, Looking(**looking))
