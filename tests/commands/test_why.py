"""`rollpin rollouts why`: what a person reads, over sockets, with the engine's own tokenizer."""

import json
from collections.abc import Iterator

import pytest

from tests.commands.conftest import Run
from tests.fakes import FakeEngine, Say
from tests.served import READER, ServedProxy, served, settings_for

BEGIN = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Go."}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A rollout without exact prefixes, whose harness drops the reasoning, and one in which all is well."""
    folder = tmp_path_factory.mktemp("proxy")
    with FakeEngine(request.param) as engine, served(settings_for(folder, engine.url)) as running:
        client = running.rollout(rollout_id="step-12-task-7-0", profile="validation")
        engine.script(Say("It is done.", reasoning="Let me think."))
        told = client.post({"model": "policy", "messages": BEGIN, "tools": TOOLS}).json()["choices"][0]["message"]
        said = {"role": "assistant", "content": told["content"]}
        more = [*BEGIN, said, {"role": "user", "content": "And now?"}]
        for model, messages, fields in (("policy", more, {"tools": TOOLS}), ("small", BEGIN[1:], {})):
            for _ in range(1 if model == "policy" else 3):
                body = {"model": model, "messages": messages, "max_tokens": 8, **fields}
                assert client.post(body).status_code == 200
        client.calls()
        well = running.rollout(rollout_id="well")
        well.chat("hello", max_tokens=4)
        well.calls()
        yield running


def where(proxy: ServedProxy) -> tuple[str, ...]:
    return "--url", proxy.url, "--token", READER


@pytest.mark.parametrize("width", [80, 100])
def test_a_fork_shows_both_sides_as_tokens_with_their_texts(
    proxy: ServedProxy, run: Run, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Within the terminal's width, the first difference marked."""
    monkeypatch.setenv("COLUMNS", str(width))

    done = run("rollouts", "why", "step-12-task-7-0", *where(proxy))

    lines = done.out.splitlines()
    assert (done.status, done.err) == (0, "")
    assert all(len(line) <= width for line in lines)
    (marked,) = [line.split() for line in lines if line.strip().startswith(">")]
    assert marked[3] == '"<think>"'
    assert marked[5] == '"I"'
    assert "main, after call 0" in done.out
    assert "its prompt was tokenised anew" in " ".join(done.out.split())
    assert "-> set `prefix_supply = true` in the profile" in done.out


def test_calls_of_which_the_same_is_to_be_said_stand_together(proxy: ServedProxy, run: Run) -> None:
    """Three titles are one paragraph."""
    done = run("rollouts", "why", "step-12-task-7-0", *where(proxy))

    assert "calls 2, 3, 4  (3 calls)  side" in done.out
    assert done.out.count("asks for another model") == 1


def test_one_call_and_the_document_itself(proxy: ServedProxy, run: Run) -> None:
    """For a person and for a program."""
    document = json.loads(run("rollouts", "why", "step-12-task-7-0", *where(proxy), "--json").out)
    second = document["calls"][0]
    alone = json.loads(
        run("rollouts", "why", "step-12-task-7-0", *where(proxy), "--json", "--call", second["call_id"]).out
    )
    unknown = run("rollouts", "why", "step-12-task-7-0", *where(proxy), "--call", "ca_nope")

    assert document["schema"] == "rollpin.why/1"
    assert alone["calls"] == [second]
    assert second["difference"]["texts_by"] == "engine-0"
    assert (unknown.status, unknown.err) == (1, "rollpin: no call has the id 'ca_nope'\n")


def test_a_rollout_without_anything_to_explain_says_so(proxy: ServedProxy, run: Run) -> None:
    """In one line below its counts."""
    done = run("rollouts", "why", "well", *where(proxy))

    assert done.out.splitlines()[-1] == "nothing to explain: no fork, no exclusion, no refused prefix"
