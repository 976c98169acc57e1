"""A recorded call made into its plan again, and into the draws that its segments take. Pure.

The engine gets what it got then: the recorded prompt ids by its own door for ids, and every field that shaped the
draw. The conversation travels along because engines want one, and to parse grammars and tools by; it renders nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from proxy import clock
from proxy.model import (
    IDS_PART,
    Ask,
    CallId,
    Conversation,
    EngineRef,
    Identity,
    JsonObject,
    Parent,
    Plan,
    Prefix,
    Profile,
    Rollout,
    Sampling,
    Seed,
)
from proxy.replay.verdict import Sampled

NO_MEDIA = frozenset({"text", "refusal", IDS_PART})
# One token more than is on record shows whether the reply would have gone on.
ONE_MORE = 1
ENDED_BY_LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Take:
    """One segment as a draw of its own."""

    start: int
    seed: int
    weight_version: str | None
    engine: str
    prompt_ids: tuple[int, ...]
    """The call's prompt, and what was generated before the segment."""
    recorded: tuple[Sampled, ...]
    max_tokens: int


def barriers(call: JsonObject) -> tuple[str, ...]:
    """Why a `rollpin.call/1` document cannot be drawn again; empty where it can be tried."""
    return tuple(dict.fromkeys(_barriers(call)))


def _barriers(call: JsonObject) -> Iterator[str]:
    if call["state"] != "done":
        yield call["failure"]["kind"] if call["failure"] else "no_outcome_yet"
        return
    if call["replayable"]["value"] == "no":
        yield from call["replayable"]["reasons"]
    if not call["capture"]["complete"]:
        yield from call["capture"]["gaps"]
    if sum(one["end"] - one["start"] for one in call["segments"]) != len(call["completion_token_ids"] or ()):
        yield "segments_incomplete"
    if any(segment.get("kv_version") is not None for segment in call["segments"]):
        yield "kv_of_other_weights"
    if any(has_media(message) for message in call["messages"]):
        yield "media_in_prompt"
    if call["api"] != "chat" and call.get("chat_request") is None:
        yield "chat_form_not_recorded"


def has_media(message: JsonObject) -> bool:
    """Whether a message holds more than text: ids alone do not bring an image back."""
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") not in NO_MEDIA for part in content)


def takes(call: JsonObject, context_length: int | None) -> tuple[Take, ...]:
    """The draws of a call, one for each segment, in order."""
    prompt, completion = call["prompt_token_ids"], call["completion_token_ids"]
    sampled = tuple(map(Sampled, completion, call["logprobs"]))
    segments = call["segments"]
    return tuple(
        Take(
            start=segment["start"],
            seed=segment["seed"],
            weight_version=segment["weight_version"],
            engine=segment["engine"],
            prompt_ids=(*prompt, *completion[: segment["start"]]),
            recorded=sampled[segment["start"] : segment["end"]],
            max_tokens=_room(call, segment, context_length, is_last=segment is segments[-1]),
        )
        for segment in segments
    )


def _room(call: JsonObject, segment: JsonObject, context_length: int | None, *, is_last: bool) -> int:
    """As many tokens as the segment has; one more where it ended by itself and there was room for one."""
    length: int = segment["end"] - segment["start"]
    if not is_last or call["finish_reason"] == ENDED_BY_LENGTH:
        return length
    limits = [length + ONE_MORE]
    if (asked := call["sampling"]["length"].get("max_tokens")) is not None:
        limits.append(asked - segment["start"])
    if context_length is not None:
        limits.append(context_length - len(call["prompt_token_ids"]) - segment["start"])
    return max(length, min(limits))


def remake(call: JsonObject, take: Take, rollout: Rollout, engine: EngineRef) -> Plan:
    """The plan that a recorded call was made by, for one of its takes: exact ids, one choice, unstreamed."""
    seed, sampling = call["seed"], _sampling(call["sampling"])
    return Plan(
        call_id=CallId(clock.new_id("rp")),
        request_id=clock.new_id("rq"),
        ask=_ask(call, rollout),
        profile=Profile(name=call["profile"]["name"], **call["profile"]["values"]),
        parent=Parent("root", "replay"),
        sampling=_of_take(sampling, take),
        seed=Seed(take.seed, seed["source"], seed["occurrence"], seed["choice"]),
        prefix=_exactly(take.prompt_ids),
        engine=engine,
        started_at=clock.now(),
    )


def _ask(call: JsonObject, rollout: Rollout) -> Ask:
    chat: JsonObject = {**(call.get("chat_request") or call["request"]), "messages": call["messages"]}
    return Ask(
        identity=Identity(rollout, lane_signals={}, idempotency_key=None, retry_count=0),
        api=call["api"],
        body=chat,
        chat=chat,
        messages=tuple(call["messages"]),
        volatile=(),
        conversation=Conversation((), "", "", call["context"], has_assistant=False),
        stream=False,
        choices=1,
        include_usage=True,
        wants_logprobs=False,
        top_logprobs=0,
        requested_model=call["requested_model"],
        has_tools=bool(call["has_tools"]),
    )


def _of_take(sampling: Sampling, take: Take) -> Sampling:
    """Lengths counted from the segment's start, as they were when the rest of an interrupted reply was asked for."""
    shaping = dict(sampling.shaping)
    least = min(shaping.pop("min_tokens", 0) - take.start, take.max_tokens)
    if least > 0:
        shaping["min_tokens"] = least
    return replace(sampling, length=sampling.length | {"max_tokens": take.max_tokens}, shaping=shaping)


def _exactly(ids: tuple[int, ...]) -> Prefix:
    return Prefix(eligible=True, requested=True, supplied=False, length=len(ids), reason="exact", token_ids=ids)


def _sampling(recorded: JsonObject) -> Sampling:
    lists = ("overridden", "constrained", "ignored")
    values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in recorded.items()}
    return Sampling(**values)
