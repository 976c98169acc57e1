"""SGLang's chat dialect (seen on 0.5.23).

A whole reply carries ids in its choice with `return_token_ids`, which a stream refuses; a stream carries them in one
`sglext` event after the one that shows the end. Weight versions are in the metadata of whole replies only.
"""

from typing import Any

from proxy.engine.dialect import CHAT_PATH, common_body, engine_messages, plain_fields
from proxy.engine.fold import Arrived
from proxy.model import Ask, EngineKind, EngineRef, EngineRequest, JsonObject, Plan


class SglangDialect:
    """How SGLang is asked and read."""

    kind: EngineKind = "sglang"
    shaping = frozenset({"response_format", "regex", "ebnf", "logit_bias", "min_tokens"})

    def encode(self, plan: Plan) -> EngineRequest:
        body = common_body(plan, "reasoning_content")
        body |= {"rid": plan.call_id, "separate_reasoning": True, "stream_reasoning": True}
        if plan.ask.stream:
            body |= {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}
        else:
            body |= {"return_token_ids": True}
        return EngineRequest(CHAT_PATH, body)

    def measure(self, ask: Ask, engine: EngineRef, tools: list[JsonObject]) -> EngineRequest:
        body: JsonObject = {"model": engine.facts.model, "messages": engine_messages(ask, "reasoning_content")}
        kept = ("chat_template_kwargs", "continue_final_message")
        body |= {name: value for name, value in plain_fields(ask).items() if name in kept}
        if tools:
            body["tools"] = tools
        return EngineRequest("/tokenize", body)

    def read_tokens(self, event: JsonObject, choice: JsonObject) -> Arrived:
        extra = event.get("sglext") or {}
        sampled = extra.get("output_ids")
        return Arrived(
            prompt_ids=choice.get("prompt_token_ids") or extra.get("input_ids"),
            completion_ids=choice.get("response_token_ids") or (sampled[0] if sampled else []),
            weight_versions=_weight_versions(event.get("metadata")),
        )


def _weight_versions(metadata: Any) -> list[JsonObject]:
    """Spans of the reply's metadata; a lone version is told by the engine for the whole reply."""
    if not isinstance(metadata, dict):
        return []
    spans = metadata.get("weight_versions") or []
    return [{"version": span["version"], "start": int(span["start"]), "end": int(span["end"])} for span in spans]
