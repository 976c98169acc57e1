"""What is sent to an engine: built from the allow-list alone, complete and the same on every path."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.dialect import engine_messages, renderable_arguments
from proxy.engine.pool import DIALECTS
from proxy.model import Plan
from tests import make

Json = dict[str, Any]

KINDS = pytest.mark.parametrize("kind", DIALECTS)
TOOL = {"type": "function", "function": {"name": "add", "strict": True}}
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def encoded(kind: str, plan: Plan) -> Json:
    return DIALECTS[kind].encode(plan).body  # type: ignore[index]


def body_of(kind: str, *messages: Json, stream: bool = False, **body: Any) -> Json:
    return encoded(kind, make.plan(make.ask(*messages, body=body, stream=stream)))


@KINDS
def test_the_complete_set_the_seed_and_one_choice_are_sent(kind: str) -> None:
    """Nothing is left to the model's generation_config."""
    body = body_of(kind)

    assert {name: body[name] for name in NEUTRAL} == NEUTRAL
    assert (body["seed"], body["n"], body["model"]) == (make.SEED, 1, "policy")


@KINDS
@pytest.mark.parametrize("stream", [True, False])
def test_capture_fields_are_forced(kind: str, *, stream: bool) -> None:
    """Whatever the client sends, ids and logprobs come back."""
    asked = {"logprobs": False, "top_logprobs": None, "include_reasoning": False, "return_token_ids": False}
    body = body_of(kind, stream=stream, **asked)

    assert (body["logprobs"], body["top_logprobs"], body["stream"]) == (True, 0, stream)
    assert body.get("stream_options") == ({"include_usage": True} if stream else None)
    if kind != "sglang":
        assert (body["return_token_ids"], body["include_reasoning"]) == (True, True)
    elif stream:
        assert (body["return_input_ids_in_sglext"], body["return_output_ids_in_sglext"]) == (True, True)
        assert "return_token_ids" not in body
    else:
        assert body["return_token_ids"] is True


@KINDS
def test_the_profiles_model_name_is_sent(kind: str) -> None:
    """Never the client's, which may name an adapter."""
    plan = make.plan(make.ask(body={"model": "policy:adapter"}))
    named = make.plan(plan.ask, profile=make.Profile("train", model="checkpoint-7"))

    assert encoded(kind, plan)["model"] == "policy"
    assert encoded(kind, named)["model"] == "checkpoint-7"


@KINDS
@pytest.mark.parametrize(("choice", "sent"), [(None, "auto"), ("auto", "auto"), ("none", "none"), ("required", "auto")])
def test_tools_come_with_a_choice(kind: str, choice: str | None, sent: str) -> None:
    """A forcing choice travels with the shaping fields; where that was dropped, the model is free."""
    body = body_of(kind, tools=[TOOL], tool_choice=choice)

    assert (body["tools"], body["tool_choice"]) == ([TOOL], sent)


@KINDS
def test_strict_tools_lose_their_strictness_where_it_was_dropped(kind: str) -> None:
    """Else the engine would constrain behind the record's back."""
    asked = make.ask(body={"tools": [TOOL]})
    body = encoded(kind, make.plan(asked, sampling=make.sampling(ignored=("tools.strict",))))

    assert body["tools"] == [{"type": "function", "function": {"name": "add"}}]
    assert asked.body["tools"] == [TOOL]


@KINDS
def test_messages_hold_known_fields_only(kind: str) -> None:
    """A client's extra keys reach no engine."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}", "x": 1}, "index": 0}
    body = body_of(
        kind,
        {"role": "user", "content": "a", "name": "ann", "x": 1},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c", "content": "6", "x": 1},
    )

    assert body["messages"] == [
        {"role": "user", "content": "a", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "6", "tool_call_id": "c"},
    ]


@pytest.mark.parametrize(("kind", "name"), [("vllm", "reasoning"), ("sglang", "reasoning_content")])
@pytest.mark.parametrize("echoed", ["reasoning", "reasoning_content"])
def test_echoed_reasoning_goes_under_the_engines_name(kind: str, name: str, echoed: str) -> None:
    """However the client calls it."""
    (message,) = body_of(kind, make.assistant("4") | {echoed: "hm"})["messages"]

    assert message == {"role": "assistant", "content": "4", name: "hm"}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a":1}', '{"a":1}'),
        ({"a": 1}, '{"a": 1}'),
        ('{"a": ', "{}"),
        ("[1]", "{}"),
        ("6", "{}"),
        ("", "{}"),
        (None, "{}"),
        (5, "{}"),
        ("[" * 100_000, "{}"),
    ],
)
def test_arguments_can_always_be_rendered(written: object, sent: str) -> None:
    """A template iterates a mapping, and SGLang refuses anything else."""
    assert renderable_arguments(written) == sent


@pytest.mark.parametrize(("kind", "role"), [("vllm", "developer"), ("sglang", "system"), ("nemo_rl", "developer")])
def test_what_a_developer_says_is_not_lost(kind: str, role: str) -> None:
    """Where the engine leaves an unknown role to the template, most templates print nothing for it."""
    sent = body_of(kind, {"role": "developer", "content": "be brief"}, make.user())["messages"]

    assert sent[0] == {"role": role, "content": "be brief"}


@KINDS
def test_a_prompt_is_rendered_as_it_is_asked(kind: str) -> None:
    """The same messages, tools and template arguments, and nothing else."""
    asked = make.ask(body={"tools": [TOOL], "chat_template_kwargs": {"x": 1}, "temperature": 0.1})
    dialect = DIALECTS[kind]  # type: ignore[index]
    request = dialect.render(asked, make.engine(), engine_messages(asked, dialect))

    assert request.path == "/tokenize"
    own = {"add_generation_prompt", "tool_choice"}
    assert set(request.body) - own == {"model", "messages", "tools", "chat_template_kwargs"}
    assert request.body["messages"] == encoded(kind, make.plan(asked))["messages"]


@KINDS
def test_tools_that_are_hidden_from_the_model_are_hidden_in_renders(kind: str) -> None:
    """SGLang drops them from the prompt where none may be called, and its /tokenize must be told."""
    asked = make.ask(body={"tools": [TOOL], "tool_choice": "none", "reasoning_effort": "low"})
    body = DIALECTS[kind].render(asked, make.engine(), asked.messages).body  # type: ignore[index]

    told = {name: body[name] for name in ("tool_choice", "reasoning_effort") if name in body}
    assert told == ({"tool_choice": "none", "reasoning_effort": "low"} if kind == "sglang" else {})


@pytest.mark.parametrize(
    ("effort", "given", "told"),
    [
        ("none", {}, {"reasoning_effort": "none", "enable_thinking": False}),
        ("high", {"x": 1}, {"x": 1, "reasoning_effort": "high", "enable_thinking": True}),
        ("none", {"enable_thinking": True}, {"reasoning_effort": "none", "enable_thinking": True}),
    ],
)
def test_vllm_renders_with_the_effort_as_its_chat_does(effort: str, given: Json, told: Json) -> None:
    """Its /tokenize has no such field: without it a thought would be begun where chat begins none."""
    asked = make.ask(body={"reasoning_effort": effort, "chat_template_kwargs": given, "documents": [{"t": "d"}]})
    body = DIALECTS["vllm"].render(asked, make.engine(), asked.messages).body

    assert body["chat_template_kwargs"] == {**told, "documents": [{"t": "d"}]}


@KINDS
def test_exact_ids_go_in_by_the_engines_own_door(kind: str) -> None:
    """And only where they are to be supplied."""
    prefix = make.plan().prefix
    exact = replace(prefix, requested=True, token_ids=(1, 2, 3), length=3, parent_length=2)
    doors = {
        "vllm": {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}},
        "sglang": {"input_ids": [1, 2, 3]},
        "nemo_rl": {"required_prefix_token_ids": [1, 2]},
    }
    names = {name for door in doors.values() for name in door}

    sent = encoded(kind, make.plan(prefix=exact))
    assert {name: sent[name] for name in names & set(sent)} == doors[kind]
    assert not names & set(encoded(kind, make.plan(prefix=prefix)))
