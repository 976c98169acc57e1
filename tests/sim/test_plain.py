"""Plain completions have the fields that the real engines' have, and what they draw is what chat would draw."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from proxy.sim.tokens import encode
from tests.fakes import FakeEngine

ENGINES = pytest.mark.parametrize("engine", ["vllm", "sglang"], indirect=True)
ASKED = {"prompt": "import os\n", "max_tokens": 5, "temperature": 1, "seed": 7, "logprobs": 1, "return_token_ids": True}
CHOICES = {
    "vllm": "index text logprobs finish_reason stop_reason token_ids prompt_logprobs prompt_token_ids routed_experts",
    "sglang": "index text logprobs finish_reason matched_stop token_ids prompt_token_ids",
}
WHOLE = {
    "vllm": "id object created model choices service_tier system_fingerprint usage kv_transfer_params "
    "ec_transfer_params metrics",
    "sglang": "id object created model choices usage metadata",
}
LISTS = {"text_offset", "token_logprobs", "tokens", "top_logprobs"}


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    """One of each kind."""
    with FakeEngine(request.param) as fake:
        yield fake


def ask(engine: FakeEngine, **fields: Any) -> Any:
    return httpx.post(f"{engine.url}/v1/completions", json=ASKED | fields)


def events(engine: FakeEngine, **fields: Any) -> list[Any]:
    lines = ask(engine, stream=True, **fields).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [httpx.Response(200, text=line.removeprefix("data: ")).json() for line in lines[:-2]]


@ENGINES
def test_a_whole_reply_has_the_fields_of_a_real_one(engine: FakeEngine) -> None:
    """As they were seen on both engines."""
    reply = ask(engine).json()
    (choice,) = reply["choices"]

    assert set(reply) == set(WHOLE[engine._engine.kind].split())
    assert set(choice) == set(CHOICES[engine._engine.kind].split())
    assert set(choice["logprobs"]) == LISTS
    assert choice["prompt_token_ids"] == list(encode("import os\n"))
    assert {len(told) for told in choice["logprobs"].values()} == {len(choice["token_ids"])}


@ENGINES
def test_a_stream_tells_the_prompt_once_and_the_ids_as_they_come(engine: FakeEngine) -> None:
    """And ends with the usage, where it is asked for."""
    whole = ask(engine).json()["choices"][0]
    *told, last = events(engine, stream_options={"include_usage": True})
    choices = [event["choices"][0] for event in told]

    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice.get("prompt_token_ids") for choice in choices][1:] == [None] * (len(choices) - 1)
    assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], len(whole["prompt_token_ids"]))
    assert all(not event.get("usage") for event in told)


@ENGINES
def test_a_text_and_its_ids_draw_the_same(engine: FakeEngine) -> None:
    """The prompt is the ids, however it was given."""
    texts = [ask(engine, prompt=prompt).json()["choices"][0]["text"] for prompt in ("ab", list(encode("ab")))]

    assert texts[0] == texts[1]


@ENGINES
def test_a_length_of_16_is_usual(engine: FakeEngine) -> None:
    """As in OpenAI's API."""
    assert len(ask(engine, max_tokens=None, ignore_eos=True).json()["choices"][0]["token_ids"]) == 16


def test_only_vllm_knows_a_foreign_id() -> None:
    """SGLang looks it up, and is no more."""
    with FakeEngine("vllm") as vllm, FakeEngine("sglang") as sglang:
        assert ask(vllm, prompt=[1, 999]).status_code == 400
        with pytest.raises(httpx.RemoteProtocolError):
            ask(sglang, prompt=[1, 999])
        sglang.wait()
        assert not sglang.is_alive
