"""vLLM's dialect (seen on 0.32.0).

Ids come with `return_token_ids`: the prompt's at the top level of the first event or of the whole reply (of plain
completions in the choice there), the sampled ones in each choice. `include_reasoning: false` would null ids and
logprobs, so true is forced. Exact prompt ids go in by `kv_transfer_params`, needing no connector; the messages are then
not rendered.
"""

from collections.abc import Sequence

from proxy.engine.completions import COMPLETIONS_PATH, completion_body
from proxy.engine.dialect import CHAT_PATH, common_body, render_body
from proxy.engine.fold import Arrived
from proxy.model import Ask, EngineKind, EngineRef, EngineRequest, JsonObject, Plan


class VllmDialect:
    """How vLLM is asked and read."""

    kind: EngineKind = "vllm"
    reasoning_key = "reasoning"
    # It looks whether the template knows the role, and puts `system` in its place where not.
    developer_role = "developer"
    shaping = frozenset(
        {"response_format", "structured_outputs", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens"}
    )

    def encode(self, plan: Plan) -> EngineRequest:
        if plan.ask.api == "completions":
            return EngineRequest(COMPLETIONS_PATH, completion_body(plan))
        body = common_body(plan, self)
        body |= {"return_token_ids": True, "include_reasoning": True}
        if body.get("continue_final_message"):
            body["add_generation_prompt"] = False
        if plan.prefix.requested:
            body["kv_transfer_params"] = {"prompt_token_ids": list(plan.prefix.token_ids)}
        return EngineRequest(CHAT_PATH, body)

    def render(
        self, ask: Ask, engine: EngineRef, messages: Sequence[JsonObject], *, generation_prompt: bool = True
    ) -> EngineRequest:
        body = render_body(ask, engine, messages)
        if arguments := template_arguments(ask, body.get("chat_template_kwargs") or {}):
            body["chat_template_kwargs"] = arguments
        body["add_generation_prompt"] = generation_prompt and not body.get("continue_final_message")
        return EngineRequest("/tokenize", body)

    def decode(self, engine: EngineRef, ids: Sequence[int]) -> EngineRequest:
        return EngineRequest("/detokenize", {"model": engine.facts.model, "tokens": list(ids)})

    def read_tokens(self, event: JsonObject, choice: JsonObject) -> Arrived:
        prompt_ids = event.get("prompt_token_ids") or choice.get("prompt_token_ids")
        return Arrived(
            prompt_ids=prompt_ids,
            completion_ids=choice.get("token_ids") or [],
            routed_experts=choice.get("routed_experts"),
        )


def template_arguments(ask: Ask, given: JsonObject) -> JsonObject:
    """What chat hands to the template, which `/tokenize` knows under one name only (ChatCompletionRequest of 0.32.0).

    An effort switches thinking on, and `none` off, unless the request says otherwise.
    """
    told = {name: ask.chat[name] for name in ("documents", "reasoning_effort") if ask.chat.get(name) is not None}
    if "reasoning_effort" in told and "enable_thinking" not in given:
        told["enable_thinking"] = told["reasoning_effort"] != "none"
    return {**given, **told}
