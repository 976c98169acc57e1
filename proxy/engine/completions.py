"""How plain completions are asked for: vLLM 0.32.0 and SGLang 0.5.23 take the same fields."""

from proxy.engine.dialect import engine_model
from proxy.model import Ask, EngineRef, EngineRequest, JsonObject, Plan, prompt_in

COMPLETIONS_PATH = "/v1/completions"


def completion_body(plan: Plan) -> JsonObject:
    """Prompt, complete pinned set, length, shape and seed; ids and logprobs are asked for whatever the client did."""
    body: JsonObject = {
        "model": engine_model(plan),
        "prompt": list(plan.prefix.token_ids) if plan.prefix.requested else prompt_in(plan.ask),
        **plan.sampling.effective,
        **plan.sampling.length,
        **plan.sampling.shaping,
        "seed": plan.seed.value,
        "n": 1,
        "logprobs": plan.ask.top_logprobs,
        "return_token_ids": True,
        "stream": plan.ask.stream,
    }
    return body | ({"stream_options": {"include_usage": True}} if plan.ask.stream else {})


def measured_text(ask: Ask, engine: EngineRef) -> EngineRequest:
    """The question how many tokens a prompt in text takes."""
    return EngineRequest("/tokenize", {"model": engine.facts.model, "prompt": prompt_in(ask)})
