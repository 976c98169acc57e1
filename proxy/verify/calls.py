"""Recorded calls held against what they say of themselves: tokens, segments, seeds, contexts, parents. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from proxy.counted import counted
from proxy.ids import pack_ids
from proxy.model import JsonObject
from proxy.record.packing import ids_hash, pack_logprobs, tokens_hash
from proxy.request.conversation import read_conversation
from proxy.request.seed import mint_seed, seed_from_client
from proxy.verify.faults import CheckName, Fault

# Rounding may lift a logprob of a certain token a hair above 0.
MOST_LOGPROB = 1e-4


@dataclass(frozen=True, slots=True)
class Known:
    """What a call is held against beside itself."""

    run_seed: int | None
    """For records that do not name theirs."""
    order: Mapping[str, int]
    """Place of every call of the rollout."""
    states: Mapping[str, str]
    ids_hashes: Mapping[str, str | None]
    """By which equal replies are told, where calls have one."""


def check_call(call: JsonObject, known: Known) -> Iterator[Fault]:
    """Every fault of one `rollpin.call/1` document."""
    if call["state"] not in {"done", "failed"}:
        return
    yield from _check_tokens(call, known)
    yield from _check_segments(call)
    yield from _check_seeds(call, known)
    yield from _check_context(call)
    yield from _check_parent(call, known)


def _fault(call: JsonObject, check: CheckName, message: str) -> Fault:
    return Fault(check, message, call["rollout_id"], call["call_id"])


def _check_tokens(call: JsonObject, known: Known) -> Iterator[Fault]:
    """Ids are within the vocabulary; those of a whole reply have a logprob each, and are as many as the engine said."""
    prompt, completion = call["prompt_token_ids"], call["completion_token_ids"]
    if prompt is None:
        if call["state"] == "done" and call["capture"]["complete"]:
            yield _fault(call, "tokens", "said to be complete, and has no ids")
        return
    size = (call["engine"] or {}).get("vocabulary")
    if size is not None and (strange := [token for token in (*prompt, *completion) if not 0 <= token < size]):
        yield _fault(call, "tokens", f"id {strange[0]} is beyond the vocabulary of {size}")
    if call.get("tokens_hash") not in {None, _hash_of(call)}:
        yield _fault(call, "tokens", "ids or logprobs are not those that were recorded")
    # Calls of early versions were given the other hash, which covers more.
    if known.ids_hashes[call["call_id"]] not in {
        None,
        ids_hash(pack_ids(prompt), pack_ids(completion)),
        _hash_of(call),
    }:
        yield _fault(call, "tokens", "the hash by which equal replies are told is not that of these ids")
    if call["state"] != "done" or not call["capture"]["complete"]:
        return
    logprobs = call["logprobs"]
    if len(logprobs) != len(completion):
        yield _fault(
            call, "tokens", f"{counted(len(completion), 'sampled id')} and {counted(len(logprobs), 'logprob')}"
        )
    if not all(math.isfinite(value) and value <= MOST_LOGPROB for value in logprobs):
        yield _fault(call, "tokens", "a logprob that is none")
    yield from _check_usage(call, len(prompt), len(completion))


def _hash_of(call: JsonObject) -> str:
    ids = pack_ids(call["prompt_token_ids"]) + pack_ids(call["completion_token_ids"])
    return tokens_hash(ids, pack_logprobs(call["logprobs"]))


def _check_usage(call: JsonObject, prompt: int, completion: int) -> Iterator[Fault]:
    usage = call["usage"] or {}
    for name, count in (("prompt_tokens", prompt), ("completion_tokens", completion)):
        if usage.get(name) not in {None, count}:
            yield _fault(
                call, "tokens", f"{counted(count, 'id')} on record, and the engine counted {usage[name]} {name}"
            )


def _check_segments(call: JsonObject) -> Iterator[Fault]:
    """Segments cover the reply from its first token to its last, without a gap."""
    length, segments = len(call["completion_token_ids"] or ()), call["segments"] or []
    if not length and not segments:
        return
    ends = [0, *(segment["end"] for segment in segments)]
    starts = [*(segment["start"] for segment in segments), length]
    if ends != starts or any(start >= end for start, end in pairwise(ends)):
        told = ", ".join(f"{segment['start']} to {segment['end']}" for segment in segments) or "none"
        yield _fault(call, "segments", f"{counted(length, 'sampled id')}, and segments {told}")


def _check_seeds(call: JsonObject, known: Known) -> Iterator[Fault]:
    """The seed is what identity, conversation and occurrence give; later segments may have their index in theirs."""
    first = minted(call, known.run_seed)
    if first is None:
        return
    if call["seed"]["value"] != first:
        yield _fault(call, "seeds", f"seed {call['seed']['value']}, and its identity and context give {first}")
        return
    for index, segment in enumerate(call["segments"] or ()):
        allowed = {first, minted(call, known.run_seed, index)} if index else {first}
        if segment["seed"] not in allowed:
            yield _fault(call, "seeds", f"segment {index} has seed {segment['seed']}, and {first} was to be drawn with")


def minted(call: JsonObject, run_seed: int | None, *segment: int) -> int | None:
    """The seed that a call was to have; None where its run seed is not known."""
    seed = call["seed"]
    if seed["source"] == "client":
        return seed_from_client(seed["client_seed"], seed["choice"]) if not segment else None
    root = seed.get("run_seed", run_seed) if seed.get("run_seed") is not None else run_seed
    if root is None or seed["source"] is None:
        return None
    mixed = (seed["client_seed"],) if seed["source"] == "mixed" else ()
    who = (call["group"], call["sample"], call["attempt"])
    return mint_seed(root, *who, call["context"], seed["occurrence"], seed["choice"], *mixed, *segment)


def _check_context(call: JsonObject) -> Iterator[Fault]:
    """The context is the hash of the messages, tools and template arguments on record."""
    chat = call["request"] if call["api"] == "chat" else call.get("chat_request")
    if chat is None or call["messages"] is None:
        return
    found = read_conversation(call["messages"], chat).context
    if found != call["context"]:
        yield _fault(
            call, "contexts", f"the recorded conversation hashes to {found[:23]}…, not {call['context'][:23]}…"
        )


def _check_parent(call: JsonObject, known: Known) -> Iterator[Fault]:
    """A parent is an earlier call of the rollout that was answered."""
    parent = call["parent"] or {}
    named = parent.get("call_id")
    if named is None:
        if parent.get("outcome") == "resolved":
            yield _fault(call, "parents", "resolved, and names no parent")
        return
    if known.order.get(named, len(known.order)) >= known.order[call["call_id"]]:
        yield _fault(call, "parents", f"{named} is no earlier call of this rollout")
    elif known.states[named] != "done":
        yield _fault(call, "parents", f"{named} was never answered")
