"""vLLM's chat dialect (seen on 0.32.0).

Ids come with `return_token_ids`: the prompt's at the top level of the first event or of the whole reply, the sampled
ones in each choice. `include_reasoning: false` would null ids and logprobs, so true is forced.
"""

from proxy.engine.dialect import CHAT_PATH, common_body, engine_messages, plain_fields
from proxy.engine.fold import Arrived
from proxy.model import Ask, EngineKind, EngineRef, EngineRequest, JsonObject, Plan


class VllmDialect:
    """How vLLM is asked and read."""

    kind: EngineKind = "vllm"
    shaping = frozenset(
        {"response_format", "structured_outputs", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens"}
    )

    def encode(self, plan: Plan) -> EngineRequest:
        body = common_body(plan, "reasoning")
        body |= {"return_token_ids": True, "include_reasoning": True}
        if body.get("continue_final_message"):
            body["add_generation_prompt"] = False
        return EngineRequest(CHAT_PATH, body)

    def measure(self, ask: Ask, engine: EngineRef, tools: list[JsonObject]) -> EngineRequest:
        body: JsonObject = {
            "model": engine.facts.model,
            "messages": engine_messages(ask, "reasoning"),
            "add_generation_prompt": not ask.chat.get("continue_final_message"),
        }
        kept = ("chat_template_kwargs", "continue_final_message")
        body |= {name: value for name, value in plain_fields(ask).items() if name in kept}
        if tools:
            body["tools"] = tools
        return EngineRequest("/tokenize", body)

    def read_tokens(self, event: JsonObject, choice: JsonObject) -> Arrived:
        return Arrived(prompt_ids=event.get("prompt_token_ids"), completion_ids=choice.get("token_ids") or [])
