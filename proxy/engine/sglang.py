"""SGLang's dialect (seen on 0.5.23).

In chat a whole reply carries ids in its choice with `return_token_ids`, which a stream refuses; a stream carries them
in one `sglext` event after the one that shows the end. Plain completions carry them in their choices either way.
Weight versions are in the metadata of whole replies only. Exact prompt ids go in by `input_ids`; the messages then only
serve its checks. An id outside the vocabulary would kill the server.
"""

from collections.abc import Sequence
from typing import Any

from proxy.engine.completions import COMPLETIONS_PATH, completion_body
from proxy.engine.dialect import CHAT_PATH, common_body, render_body, tool_choice
from proxy.engine.fold import Arrived, Candidates
from proxy.engine.names import exchange_name
from proxy.model import Ask, EngineKind, EngineRef, EngineRequest, JsonObject, Plan


class SglangDialect:
    """How SGLang is asked and read."""

    kind: EngineKind = "sglang"
    reasoning_key = "reasoning_content"
    # It hands the role to the template, and many (Qwen's among them) print nothing for one that they do not know.
    developer_role = "system"
    shaping = frozenset({"response_format", "regex", "ebnf", "logit_bias", "min_tokens"})

    def encode(self, plan: Plan) -> EngineRequest:
        if plan.ask.api == "completions":
            return EngineRequest(COMPLETIONS_PATH, completion_body(plan) | {"rid": exchange_name(plan.call_id)})
        body = common_body(plan, self)
        body |= {"rid": exchange_name(plan.call_id), "separate_reasoning": True, "stream_reasoning": True}
        if plan.ask.stream:
            body |= {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}
        else:
            body |= {"return_token_ids": True}
        if plan.audit_top:
            body |= {"return_meta_info": True, "top_logprobs": max(plan.ask.top_logprobs, plan.audit_top)}
        if plan.prefix.requested:
            body["input_ids"] = list(plan.prefix.token_ids)
        return EngineRequest(CHAT_PATH, body)

    def render(
        self, ask: Ask, engine: EngineRef, messages: Sequence[JsonObject], *, generation_prompt: bool = True
    ) -> EngineRequest:
        body = render_body(ask, engine, messages)
        if not generation_prompt:
            body["add_generation_prompt"] = False
        # Its chat drops the tools from the prompt where none may be called, and renders the effort.
        if body.get("tools"):
            body["tool_choice"] = tool_choice(ask)
        if ask.chat.get("reasoning_effort") is not None:
            body["reasoning_effort"] = ask.chat["reasoning_effort"]
        return EngineRequest("/tokenize", body)

    def decode(self, engine: EngineRef, ids: Sequence[int]) -> EngineRequest:
        body = {"model": engine.facts.model, "tokens": list(ids), "skip_special_tokens": False}
        return EngineRequest("/detokenize", body)

    def read_tokens(self, event: JsonObject, choice: JsonObject) -> Arrived:
        extra = event.get("sglext") or {}
        sampled = extra.get("output_ids")
        return Arrived(
            prompt_ids=choice.get("prompt_token_ids") or extra.get("input_ids"),
            completion_ids=choice.get("response_token_ids") or choice.get("token_ids") or (sampled or [[]])[0],
            weight_versions=_weight_versions(event.get("metadata")),
            candidates=_candidates(choice.get("meta_info")),
            routed_experts=extra.get("routed_experts"),
        )


def _weight_versions(metadata: Any) -> list[JsonObject]:
    """Spans of the reply's metadata; a lone version is told by the engine for the whole reply."""
    if not isinstance(metadata, dict):
        return []
    spans = metadata.get("weight_versions") or []
    return [{"version": span["version"], "start": int(span["start"]), "end": int(span["end"])} for span in spans]


def _candidates(meta_info: Any) -> list[Candidates]:
    """The likeliest tokens of each draw, by id; in a whole reply alone, and only where meta_info was asked for."""
    tops = meta_info.get("output_top_logprobs") if isinstance(meta_info, dict) else None
    return [tuple((int(token), float(logprob)) for logprob, token, *_text in top) for top in tops or ()]
