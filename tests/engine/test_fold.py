"""The fold: every event counts, and tokens are trusted only where all counts agree."""

from collections.abc import Sequence
from typing import Any

import pytest

from proxy.engine.fold import ReplyFold
from proxy.engine.pool import DIALECTS
from proxy.errors import EngineFault
from proxy.model import Completion, EngineKind
from tests import make

Json = dict[str, Any]

HELLO, THERE, END = 11, 12, 2
PROMPT = [1, 5, 7]
USAGE = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def token(logprob: Any = -0.5) -> Json:
    return {"token": "x", "logprob": logprob, "bytes": [120], "top_logprobs": []}


def event(
    delta: Json | None = None, ids: Sequence[Any] = (), logprobs: Sequence[Any] | None = None, **fields: Any
) -> Json:
    """One of vLLM's events; each id has a logprob unless others are given."""
    told = [-0.5] * len(ids) if logprobs is None else logprobs
    choice = {
        "index": 0,
        "delta": {} if delta is None else delta,
        "logprobs": {"content": [token(value) for value in told]} if told else None,
        "finish_reason": fields.pop("finish", None),
        "token_ids": list(ids),
    }
    return {"choices": [choice], **fields}


START = event({"role": "assistant", "content": ""}, prompt_token_ids=PROMPT)
WORDS = [event({"content": "hello"}, [HELLO]), event({"content": " there"}, [THERE])]
LAST = event({}, [END], finish="stop")
COUNTED: Json = {"choices": [], "usage": USAGE}


def fold(*events: Json, kind: EngineKind = "vllm", **plan: Any) -> ReplyFold:
    folding = ReplyFold(make.plan(**plan), DIALECTS[kind].read_tokens, "reasoning_content")
    for told in events:
        folding.feed(told)
    return folding


def folded(*events: Json, **plan: Any) -> Completion:
    return fold(*events, **plan).finish()


def piece(index: int, call_id: str | None = None, name: str | None = None, arguments: str | None = None) -> Json:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_stream_folds_into_tokens_and_a_message() -> None:
    """The ordinary case."""
    reply = folded(START, *WORDS, LAST, COUNTED)

    assert reply.tokens.prompt_ids == tuple(PROMPT)
    assert reply.tokens.completion_ids == (HELLO, THERE, END)
    assert reply.tokens.logprobs == (-0.5, -0.5, -0.5)
    assert reply.message == {"role": "assistant", "content": "hello there"}
    assert (reply.finish_reason, reply.usage, reply.captured) == ("stop", USAGE, True)


def test_a_whole_reply_is_a_stream_of_one_event() -> None:
    """One path for both."""
    whole = event(ids=[HELLO, THERE, END], finish="stop", usage=USAGE, prompt_token_ids=PROMPT)
    whole["choices"][0]["message"] = {"role": "assistant", "content": "hello there"}

    assert folded(whole) == folded(START, *WORDS, LAST, COUNTED)


def test_empty_deltas_carry_ids() -> None:
    """Half a character and swallowed markup have ids and no text."""
    silent = [event({}, [HELLO]), event({"content": " there"}, [THERE])]

    assert folded(START, *silent, LAST, COUNTED).tokens.completion_ids == (HELLO, THERE, END)


def test_sglangs_ids_come_after_the_end() -> None:
    """Its stream tells all ids in one event behind the finish reason, its logprobs before."""
    end = {"choices": [], "usage": None, "sglext": {"input_ids": PROMPT, "output_ids": [[HELLO, THERE, END]]}}
    told = [event({"content": "hello there"}, logprobs=[-0.5, -0.5]), event({}, logprobs=[-0.5]), event(finish="stop")]
    reply = folded(*told, end, COUNTED, kind="sglang")

    assert reply.captured
    assert reply.tokens.completion_ids == (HELLO, THERE, END)


def test_sglangs_whole_reply_carries_weight_spans() -> None:
    """Tokens get the version that made them."""
    spans = [{"version": "1", "start": 0, "end": 1}, {"version": "2", "start": 1, "end": 3}]
    whole = event(logprobs=[-0.5] * 3, finish="stop", usage=USAGE, metadata={"weight_versions": spans})
    whole["choices"][0] |= {"prompt_token_ids": PROMPT, "response_token_ids": [HELLO, THERE, END]}
    reply = folded(whole, kind="sglang")

    assert reply.captured
    assert reply.weight_versions == tuple(spans)


GAPS: dict[str, tuple[list[Json], tuple[str, ...]]] = {
    "no prompt ids": ([*WORDS, LAST, COUNTED], ("prompt_ids_missing",)),
    "no ids at all": (
        [event({"content": "hi"}, logprobs=[-1.0]), event(finish="stop"), COUNTED],
        ("prompt_ids_missing", "completion_ids_missing", "logprobs_misaligned"),
    ),
    "an id lost": ([START, WORDS[0], LAST, COUNTED], ("completion_count_mismatch",)),
    "an id doubled": ([START, *WORDS, WORDS[1], LAST, COUNTED], ("completion_count_mismatch",)),
    "a prompt of another length": (
        [event({}, prompt_token_ids=[1, 2]), *WORDS, LAST, COUNTED],
        ("prompt_count_mismatch",),
    ),
    "no usage": ([START, *WORDS, LAST], ("usage_missing",)),
    "no logprobs": (
        [START, *(event({}, [i], logprobs=[]) for i in (HELLO, THERE)), event({}, [END], [], finish="stop"), COUNTED],
        ("logprobs_misaligned",),
    ),
    "a logprob too many": (
        [START, event({}, [HELLO, THERE], [-0.5] * 3), LAST, COUNTED],
        ("logprobs_misaligned",),
    ),
    "null": ([START, event({}, [HELLO, THERE], [None, -0.5]), LAST, COUNTED], ("logprob_not_a_number",)),
    "NaN": ([START, event({}, [HELLO, THERE], [float("nan"), -1]), LAST, COUNTED], ("logprob_not_a_number",)),
    "infinity": ([START, event({}, [HELLO, THERE], [float("-inf"), -1]), LAST, COUNTED], ("logprob_not_a_number",)),
    "vLLM's word for it": ([START, event({}, [HELLO, THERE], [-9999.0, -1]), LAST, COUNTED], ("logprob_not_a_number",)),
    "above zero": ([START, event({}, [HELLO, THERE], [0.5, -1]), LAST, COUNTED], ("logprob_not_a_number",)),
    "true": ([START, event({}, [HELLO, THERE], [True, -1]), LAST, COUNTED], ("logprob_not_a_number",)),
    "text": ([START, event({}, [HELLO, THERE], ["-1", -1]), LAST, COUNTED], ("logprob_not_a_number",)),
    "an id beyond the vocabulary": ([START, event({}, [HELLO, 1000]), LAST, COUNTED], ("id_out_of_vocabulary",)),
    "a prompt id beyond the vocabulary": (
        [event({}, prompt_token_ids=[1, 2, 1000]), *WORDS, LAST, COUNTED],
        ("id_out_of_vocabulary",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "gaps"), list(GAPS.values()), ids=list(GAPS))
def test_tokens_that_cannot_be_trusted_say_why(events: list[Json], gaps: tuple[str, ...]) -> None:
    """Never silence."""
    reply = folded(*events)

    assert (reply.capture_gaps, reply.captured) == (gaps, False)


def test_a_hair_above_zero_is_rounding() -> None:
    """Half-precision arithmetic lifts certain tokens over it."""
    assert folded(START, event({}, [HELLO, THERE], [1e-6, 0.0]), LAST, COUNTED).captured


def test_without_a_known_vocabulary_large_ids_pass() -> None:
    """An engine that would not say is not second-guessed."""
    plan = {"engine": make.engine(vocabulary=None)}

    assert folded(START, event({}, [HELLO, 200_000]), LAST, COUNTED, **plan).captured


def test_tool_calls_are_put_together_from_pieces() -> None:
    """Two calls, interleaved, ids and names told once; the client gets derived ids, the record both."""
    pieces = [
        [piece(0, "engine-a", "add")],
        [piece(0, arguments='{"a"')],
        [piece(1, "engine-b", "sub", "{"), piece(0, arguments=": 1}")],
        [piece(1, arguments="}")],
    ]
    reply = folded(START, *(event({"tool_calls": told}) for told in pieces), *WORDS, LAST, COUNTED)
    said = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in reply.engine_message["tool_calls"]]

    assert said == [("engine-a", "add", '{"a": 1}'), ("engine-b", "sub", "{}")]
    assert [c["function"] for c in reply.message["tool_calls"]] == [
        c["function"] for c in reply.engine_message["tool_calls"]
    ]
    assert not {c["id"] for c in reply.message["tool_calls"]} & {"engine-a", "engine-b"}


@pytest.mark.parametrize("engines_name", ["reasoning", "reasoning_content"])
def test_reasoning_has_one_name(engines_name: str) -> None:
    """vLLM and SGLang call it differently; the record says `reasoning`, the client's name is a setting."""
    reply = folded(START, event({engines_name: "h"}), event({engines_name: "m"}), *WORDS, LAST, COUNTED)

    assert reply.engine_message["reasoning"] == "hm"
    assert reply.message == {"role": "assistant", "content": "hello there", "reasoning_content": "hm"}


def test_a_refusal_is_kept() -> None:
    """It is part of the message."""
    assert folded(START, event({"refusal": "no"}), *WORDS, LAST, COUNTED).message["refusal"] == "no"


def test_a_message_without_words_has_null_content() -> None:
    """As OpenAI has it for a reply of tool calls only."""
    assert folded(event({}, prompt_token_ids=PROMPT), LAST).message == {"role": "assistant", "content": None}


def test_a_reply_without_a_finish_reason_was_cut() -> None:
    """An end is said, never assumed."""
    with pytest.raises(EngineFault) as fault:
        folded(START, *WORDS, COUNTED)

    assert fault.value.code == "engine_cut"


def test_the_partial_is_what_arrived() -> None:
    """A failure's record keeps its tokens."""
    partial = fold(START, *WORDS).partial()

    assert partial.tokens.completion_ids == (HELLO, THERE)
    assert (partial.finish_reason, partial.message["content"]) == (None, "hello there")


def test_the_end_is_noticed_at_the_finish_reason() -> None:
    """What comes from then on is held."""
    folding = fold(START, *WORDS)

    assert not folding.ended
    folding.feed(LAST)
    assert folding.ended


@pytest.mark.parametrize(("wants", "kept"), [(True, 3), (False, 0)])
def test_whole_logprob_objects_are_kept_only_where_asked(*, wants: bool, kept: int) -> None:
    """They are many times the size of a number."""
    asked = make.ask(wants_logprobs=wants)

    assert len(folded(START, *WORDS, LAST, COUNTED, asked=asked).logprob_entries) == kept


@pytest.mark.parametrize(
    "frame",
    [
        {"error": {"message": "broke", "code": 500}},
        {"error": "broke"},
        {"object": "error", "message": "broke", "code": 500},
        {"detail": "broke"},
    ],
)
def test_an_error_frame_is_the_engines_fault(frame: Json) -> None:
    """Each engine's form of it."""
    with pytest.raises(EngineFault, match="broke") as fault:
        fold(START, frame)

    assert fault.value.code == "engine_error"


ODD_EVENTS: dict[str, Json] = {
    "no choices": {"id": "x"},
    "choices of another type": {"choices": "x"},
    "a delta that is text": {"choices": [{"index": 0, "delta": "x"}]},
    "a tool call that is null": {"choices": [{"index": 0, "delta": {"tool_calls": [None]}}]},
    "tool calls that are a number": {"choices": [{"index": 0, "delta": {"tool_calls": 5}}]},
    "a function that is text": {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": "x"}]}}]},
    "arguments that are an object": {
        "choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "x", "arguments": {"a": 1}}}]}}]
    },
    "a logprob that is null": {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [None]}}]},
    "logprobs that are a number": {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": 5}}]},
    "ids that are a number": {"choices": [{"index": 0, "delta": {}, "token_ids": 5}]},
    "an id that is text": event({}, ["12"]),
    "an id that is true": event({}, [True]),
    "an id that is a fraction": event({}, [1.5]),
    "an id below zero": event({}, [-1]),
    "an id that no record can hold": event({}, [2**31]),
    "a finish reason that is an object": {"choices": [{"index": 0, "delta": {}, "finish_reason": {"type": "stop"}}]},
    "a logprob of no token": {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [{"logprob": -1}]}}]},
    "candidates that are a number": {
        "choices": [{"index": 0, "delta": {}, "logprobs": {"content": [token() | {"top_logprobs": 1.5}]}}]
    },
    "a candidate that is text": {
        "choices": [{"index": 0, "delta": {}, "logprobs": {"content": [token() | {"top_logprobs": ["x"]}]}}]
    },
    "usage that is text": {"choices": [], "usage": "x"},
    "a count that is a fraction": {"choices": [], "usage": USAGE | {"prompt_tokens": 3.0}},
    "details of the prompt that are text": {"choices": [], "usage": USAGE | {"prompt_tokens_details": "x"}},
    "details of the reply that are true": {"choices": [], "usage": USAGE | {"completion_tokens_details": True}},
    "prompt ids that are a number": {"choices": [{"index": 0, "delta": {}}], "prompt_token_ids": 5},
}


ODD_SPANS = [5, [5], [{}], [{"version": "1", "start": None, "end": 1}], [{"version": "1", "start": "x", "end": 1}]]


@pytest.mark.parametrize("spans", ODD_SPANS, ids=str)
def test_weight_spans_of_another_form_are_the_engines_fault(spans: object) -> None:
    """Tokens under an unknown version are not guessed at."""
    with pytest.raises(EngineFault, match="unknown form"):
        fold(event(finish="stop", metadata={"weight_versions": spans}), kind="sglang")


@pytest.mark.parametrize("odd", list(ODD_EVENTS.values()), ids=list(ODD_EVENTS))
def test_an_event_of_another_form_is_the_engines_fault(odd: Json) -> None:
    """It becomes a failure on record, not a crash of the turn."""
    with pytest.raises(EngineFault) as fault:
        fold(odd)

    assert fault.value.code == "engine_malformed"


def test_a_malformed_event_leaves_a_partial() -> None:
    """What came before it is kept."""
    folding = fold(START, *WORDS)
    with pytest.raises(EngineFault):
        folding.feed({"choices": [{"index": 0, "delta": "x"}]})

    assert folding.partial().tokens.completion_ids == (HELLO, THERE)
