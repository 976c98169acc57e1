"""A Call as a row and the row as a `rollpin.call/1` document; docs/records.md explains each field.

Pure: what needs other rows (shared ids, shared messages, deliveries) is put in by the caller.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from proxy import clock
from proxy.ids import pack_ids, unpack_ids
from proxy.model import (
    Call,
    Completion,
    Failure,
    JsonObject,
    Outcome,
    Plan,
    Prefix,
    Profile,
    Segment,
    Tokens,
    VolatileLine,
)
from proxy.record.packing import pack_logprobs, unpack_logprobs

CALL_SCHEMA = "rollpin.call/1"
# A count beyond it is no count.
MOST_REPORTED_TOKENS = 2**31

Columns: TypeAlias = dict[str, Any]

PROXY_DIED = Failure("proxy_died", 503, "the proxy process that made this call ended before its outcome was recorded")
# Failures that say nothing about the draw: somebody cut it.
CUT = frozenset({"client_gone", "engines_paused", "proxy_stopped", "sibling_failed", "store_unavailable"})
LATE = Failure("late", 410, "the rollout was closed before the reply had ended", may_retry=False)

# Fields that a document has from its outcome on; until then, and where they do not apply, they are null.
_UNKNOWN: JsonObject = dict.fromkeys(
    (
        "lane_signals",
        "requested_model",
        "has_tools",
        "sampling",
        "top_logprobs",
        "routed_experts",
        "logprobs_mode",
        "segments",
        "finish_reason",
        "matched_stop",
        "prefix",
        "replayable",
        "message",
        "engine_message",
        "failure",
        "usage",
        "tokens_hash",
        "audit_candidates",
        "engine",
        "profile",
        "volatile",
        "capture",
    )
)


def outcome_columns(call: Call) -> Columns:
    """What the row learns of an outcome, all but the prompt's ids and the shared bodies.

    Raises ValueError where ids do not fit: they are never bent to.
    """
    completion = arrived(call)
    tokens = completion.tokens if completion else Tokens()
    talk, parent = call.plan.ask.conversation, call.plan.parent
    captured = bool(tokens.prompt_ids or tokens.completion_ids)
    return {
        "call_id": call.plan.call_id,
        "state": "failed" if isinstance(call.outcome, Failure) else "done",
        "failure_kind": call.outcome.kind if isinstance(call.outcome, Failure) else None,
        "uncaptured": isinstance(call.outcome, Completion) and not call.outcome.captured,
        "tools_hash": talk.tools_hash,
        "template_hash": talk.template_hash,
        "parent_call_id": parent.call_id,
        "parent_outcome": parent.outcome,
        "parent_reason": parent.reason,
        "prompt_tokens": len(tokens.prompt_ids) or _reported(completion, "prompt_tokens"),
        "completion_tokens": len(tokens.completion_ids) or _reported(completion, "completion_tokens"),
        "completion_ids": pack_ids(tokens.completion_ids) if captured else None,
        "logprobs": pack_logprobs(tokens.logprobs) if captured else None,
        "message": json.dumps(completion.message) if completion else None,
        "prefix_eligible": call.plan.prefix.eligible,
        "prefix_supplied": call.plan.prefix.supplied,
        "prefix_reason": call.plan.prefix.reason,
    }


def arrived(call: Call) -> Completion | None:
    """The whole reply, or the part of one that came before a failure."""
    return call.outcome.partial if isinstance(call.outcome, Failure) else call.outcome


def has_broken(outcome: Outcome) -> bool:
    """Whether a draw failed by itself after its first token: an id, or text, which streams show before their ids."""
    if not isinstance(outcome, Failure) or outcome.kind in CUT or outcome.partial is None:
        return False
    said = outcome.partial.message
    return bool(outcome.partial.tokens.completion_ids or len(said) > 2 or said.get("content"))


def kept_document(call: Call) -> JsonObject:
    """The part of the document that no column holds."""
    plan, completion = call.plan, arrived(call)
    return {
        "lane_signals": dict(plan.ask.identity.lane_signals),
        "requested_model": plan.ask.requested_model,
        "has_tools": plan.ask.has_tools,
        "sampling": _sampling(plan),
        "seed": {name: getattr(plan.seed, name) for name in ("source", "client_seed", "run_seed")},
        "logprobs_mode": plan.engine.facts.logprobs_mode,
        "segments": [_fields(segment) for segment in call.segments],
        "prefix": _prefix(plan.prefix),
        "replayable": {"value": call.replayable.verdict, "reasons": list(call.replayable.reasons)},
        "failure": failure_field(call.outcome) if isinstance(call.outcome, Failure) else None,
        "timing": {
            "asked_at": clock.iso(call.timing.started_at),
            "first_event_s": call.timing.first_event_s,
            "ended_s": call.timing.ended_s,
        },
        "engine": _engine(plan),
        "profile": _profile(plan),
        "volatile": [_fields(line) for line in plan.ask.volatile],
        **(_reply(completion) if completion else {}),
    }


def failure_field(failure: Failure) -> JsonObject:
    return {
        "kind": failure.kind,
        "status": failure.status,
        "message": failure.message,
        "param": failure.param,
        "engine_status": failure.engine_status,
        "detail": failure.detail,
        "may_retry": failure.may_retry,
        "retry_after_s": failure.retry_after_s,
    }


def call_document(row: Mapping[str, Any], ids: bytes | None, extra: JsonObject) -> JsonObject:
    """One call as the outside sees it.

    `row` is the call joined with its rollout, `ids` its packed prompt and completion, `extra` holds deliveries,
    messages and request.
    """
    kept = json.loads(row["document"]) if row["document"] else {}
    return {
        "schema": CALL_SCHEMA,
        **{name: row[name] for name in ("call_id", "request_id", "rollout_id", "run")},
        "group": row["grp"],
        **{name: row[name] for name in ("sample", "attempt", "state", "api", "context")},
        "stream": bool(row["stream"]),
        "parent": _parent(row),
        **_UNKNOWN,
        **kept,
        # Where documents of older versions hold the message, the column holds the same.
        "message": json.loads(row["message"]) if row["message"] else None,
        "seed": _seed(row, kept.get("seed") or {}),
        "timing": kept.get("timing") or _untimed(row),
        "outcome": json.loads(row["outcome"]) if row["outcome"] else None,
        "earlier_failures": json.loads(row["earlier"]),
        **_tokens(row, ids),
        **extra,
    }


def _fields(value: Segment | Prefix | Profile | VolatileLine) -> JsonObject:
    """A flat value by its field names; asdict would copy deeply, and cost as much as all the rest."""
    return {name: getattr(value, name) for name in value.__slots__}


def _prefix(prefix: Prefix) -> JsonObject:
    """All but the ids themselves: where they were supplied they are the prompt's."""
    return {name: value for name, value in _fields(prefix).items() if name not in {"token_ids", "parent_length"}}


def _sampling(plan: Plan) -> JsonObject:
    sampling = plan.sampling
    return {
        "asked": sampling.asked,
        "effective": dict(sampling.effective),
        "overridden": list(sampling.overridden),
        "constrained": list(sampling.constrained),
        "ignored": list(sampling.ignored),
        "length": sampling.length,
        "shaping": sampling.shaping,
    }


def _engine(plan: Plan) -> JsonObject:
    facts = plan.engine.facts
    return {
        "name": plan.engine.name,
        "kind": facts.kind,
        "version": facts.version,
        "model": facts.model,
        "deterministic": facts.deterministic,
        "vocabulary": facts.vocabulary,
        "fingerprint": facts.fingerprint,
        "unreached": [engine.name for engine in plan.unreached],
    }


def _profile(plan: Plan) -> JsonObject:
    values = _fields(plan.profile)
    return {"name": values.pop("name"), "values": values}


def _reply(completion: Completion) -> JsonObject:
    return {
        "top_logprobs": list(completion.logprob_entries) or None,
        "routed_experts": list(completion.routed_experts) or None,
        "finish_reason": completion.finish_reason,
        "matched_stop": completion.matched_stop,
        "audit_candidates": [list(map(list, one)) for one in completion.candidates] or None,
        "engine_message": completion.engine_message,
        "usage": completion.usage,
        "capture": {"complete": completion.captured, "gaps": list(completion.capture_gaps)},
    }


def _reported(completion: Completion | None, name: str) -> int:
    """The engine's own count, for a reply whose ids are missing."""
    count = (completion.usage or {}).get(name) if completion else None
    return count if type(count) is int and 0 <= count < MOST_REPORTED_TOKENS else 0


def _parent(row: Mapping[str, Any]) -> JsonObject | None:
    if row["parent_outcome"] is None:
        return None
    return {
        "call_id": row["parent_call_id"],
        "outcome": row["parent_outcome"],
        "reason": row["parent_reason"],
    }


def _seed(row: Mapping[str, Any], kept: JsonObject) -> JsonObject:
    return {
        "value": row["seed"],
        "source": kept.get("source"),
        "occurrence": row["occurrence"],
        "choice": row["choice"],
        "client_seed": kept.get("client_seed"),
        "run_seed": kept.get("run_seed"),
    }


def _untimed(row: Mapping[str, Any]) -> JsonObject:
    return {"asked_at": clock.iso(row["asked_at"]), "first_event_s": None, "ended_s": None}


def _tokens(row: Mapping[str, Any], ids: bytes | None) -> JsonObject:
    if ids is None:
        return dict.fromkeys(("prompt_token_ids", "completion_token_ids", "logprobs"))
    prompt_bytes = len(ids) - len(row["completion_ids"])
    return {
        "prompt_token_ids": unpack_ids(ids[:prompt_bytes]),
        "completion_token_ids": unpack_ids(ids[prompt_bytes:]),
        "logprobs": unpack_logprobs(row["logprobs"]),
    }
