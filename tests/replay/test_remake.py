"""What a recorded call is asked again with."""

from typing import Any

import pytest

from proxy.model import JsonObject
from proxy.replay.remake import barriers, takes

PROMPT, COMPLETION = [1, 2, 3], [10, 11, 12, 13, 14]


def segment(start: int, end: int, **changes: Any) -> JsonObject:
    return {"start": start, "end": end, "seed": 7, "weight_version": None, "engine": "engine-0", **changes}


def call(*segments: JsonObject, finish: str = "stop", **changes: Any) -> JsonObject:
    """As much of a recorded call as its replay reads."""
    made = {
        "state": "done",
        "failure": None,
        "api": "chat",
        "replayable": {"value": "unproven", "reasons": ["no_replay_probe"]},
        "capture": {"complete": True, "gaps": []},
        "messages": [{"role": "user", "content": "hello"}],
        "prompt_token_ids": PROMPT,
        "completion_token_ids": COMPLETION,
        "logprobs": [-0.5] * len(COMPLETION),
        "segments": list(segments or (segment(0, len(COMPLETION)),)),
        "sampling": {"length": {}},
        "finish_reason": finish,
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    ("finish", "length", "context", "room"),
    [
        ("stop", {}, None, 6),
        ("stop", {"max_tokens": 40}, 4096, 6),
        ("stop", {"max_tokens": 5}, 4096, 5),
        ("stop", {}, 8, 5),
        ("length", {"max_tokens": 5}, 4096, 5),
    ],
)
def test_a_reply_that_ended_by_itself_gets_room_for_one_token_more(
    finish: str, length: JsonObject, context: int | None, room: int
) -> None:
    """So that one that would have gone on shows it; never more room than the call had."""
    (take,) = takes(call(finish=finish, sampling={"length": length}), context)

    assert take.max_tokens == room


def test_each_segment_is_a_draw_behind_what_came_before() -> None:
    """With its own seed; only the last may show that it goes on."""
    first, second = takes(call(segment(0, 2), segment(2, 5, seed=8)), None)

    assert (first.prompt_ids, first.seed, first.max_tokens) == ((1, 2, 3), 7, 2)
    assert (second.prompt_ids, second.seed, second.max_tokens) == ((1, 2, 3, 10, 11), 8, 4)
    assert [token.token_id for token in (*first.recorded, *second.recorded)] == COMPLETION


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, ()),
        ({"replayable": {"value": "no", "reasons": ["engine_ignores_seeds"]}}, ("engine_ignores_seeds",)),
        ({"capture": {"complete": False, "gaps": ["prompt_ids_missing"]}}, ("prompt_ids_missing",)),
        ({"state": "reserved"}, ("no_outcome_yet",)),
        ({"state": "failed", "failure": {"kind": "client_gone"}}, ("client_gone",)),
        ({"segments": []}, ("segments_incomplete",)),
        ({"segments": [segment(0, 5, kv_version="w1")]}, ("kv_of_other_weights",)),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ("media_in_prompt",)),
        ({"api": "messages", "chat_request": None}, ("chat_form_not_recorded",)),
    ],
)
def test_what_stands_in_the_way_of_a_replay_is_named(changes: JsonObject, reasons: tuple[str, ...]) -> None:
    """Before any engine is asked."""
    assert barriers(call(**changes)) == reasons
