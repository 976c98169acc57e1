"""Logprobs of given tokens under an engine's weights of now: how each kind is asked for them, and read.

Both report them before temperature, penalties, bias and filters: the policy's own distribution, whatever a call was
drawn with. Nothing may come out of a cache that other weights filled, so each question has a salt of its own.
"""

from collections.abc import Sequence

from proxy import clock
from proxy.errors import EngineFault
from proxy.model import EngineRef, EngineRequest, JsonObject

GENERATE_PATH = "/generate"
COMPLETIONS_PATH = "/v1/completions"
# A sampling set of the plain class, so that a question does not turn the engine's gate.
PLAIN: JsonObject = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}


def scores_of(engine: EngineRef, model: str, prompt: Sequence[int], completion: Sequence[int]) -> EngineRequest:
    """The question: SGLang's native route generates nothing, vLLM has to generate one token."""
    ids = [*prompt, *completion]
    if engine.facts.kind == "sglang":
        body: JsonObject = {
            "input_ids": ids,
            "sampling_params": {**PLAIN, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "cache_salt": clock.new_id("rs"),
            "stream": False,
        }
        return EngineRequest(GENERATE_PATH, body)
    body = {
        "model": model,
        "prompt": ids,
        **PLAIN,
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "cache_salt": clock.new_id("rs"),
        "stream": False,
    }
    return EngineRequest(COMPLETIONS_PATH, body)


def room_needed(engine: EngineRef) -> int:
    """Tokens of context that a question needs beyond prompt and reply."""
    return 0 if engine.facts.kind == "sglang" else 1


def read_scores(engine: EngineRef, reply: JsonObject, completion: Sequence[int]) -> tuple[float, ...]:
    """A logprob for each token of the reply; raises EngineFault where the answer is not about these tokens."""
    try:
        told = _sglang_scores(reply) if engine.facts.kind == "sglang" else _vllm_scores(reply, completion)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineFault("engine_malformed", 502, "the engine's answer holds no logprobs of the prompt") from error
    pairs = told[len(told) - len(completion) :]
    if [token for token, _logprob in pairs] != list(completion):
        raise EngineFault("engine_malformed", 502, "the engine's logprobs are of other tokens than those asked for")
    return tuple(logprob for _token, logprob in pairs)


def _sglang_scores(reply: JsonObject) -> list[tuple[int, float]]:
    """(id, logprob) of every scored token; the first has none, since nothing was scored before it."""
    _first, *scored = reply["meta_info"]["input_token_logprobs"]
    return [(int(token), float(logprob)) for logprob, token, *_text in scored]


def _vllm_scores(reply: JsonObject, completion: Sequence[int]) -> list[tuple[int, float]]:
    """The last places of the prompt; each lists its own token, and the likeliest where more were asked for."""
    (choice,) = reply["choices"]
    places = choice["prompt_logprobs"]
    scored = places[len(places) - len(completion) :] if len(places) > len(completion) else []
    return [(token, float(place[str(token)]["logprob"])) for token, place in zip(completion, scored, strict=True)]
