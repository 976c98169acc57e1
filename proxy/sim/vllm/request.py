"""What vLLM accepts and what it refuses, in its own words."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from proxy import clock
from proxy.sim import ask as asks
from proxy.sim.ask import Ask, Refusal, Setup
from proxy.sim.reader import Parsing
from proxy.sim.template import Habits, Json, Prompt, Unrenderable, render
from proxy.sim.tokens import VOCABULARY_SIZE, encode

USUAL_MAX_TOKENS = 16
"""Of plain completions."""
NO_PARSING = Parsing(thinking=False, tools=False, is_on=False)
HABITS = Habits(reasoning_fields=("reasoning", "reasoning_content"), part_joint="\n", refuses_bad_arguments=False)


def read(body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
    """Check a chat request in the order vLLM does."""
    _check_types(body, "messages")
    return _accept(body, headers, setup, _prompt_ids)


def read_plain(body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
    """Check a plain completion in the same order."""
    _check_types(body, "prompt")
    short = {**body, "max_tokens": USUAL_MAX_TOKENS if body.get("max_tokens") is None else body["max_tokens"]}
    read = _accept(short, headers, setup, _plain_prompt)
    return replace(read, id=read.id.replace("chatcmpl-", "cmpl-"), parsing=NO_PARSING, is_plain=True)


def _accept(
    body: Json, headers: Mapping[str, str], setup: Setup, read_prompt: Callable[[Json], tuple[int, ...]]
) -> Ask:
    if body.get("model", setup.model) != setup.model:
        message = f"The model `{body['model']}` does not exist. Valid aliases: {setup.model}."
        raise refuse(message, "model", status=404)
    _check_sampling(body)
    prompt = read_prompt(body)
    _check_bias(body)
    name = headers.get("x-request-id") or body.get("request_id") or asks.fresh_hex(16)
    return Ask(
        body=body,
        id=f"chatcmpl-{name}",
        model=setup.model,
        created=int(clock.now()),
        prompt=prompt,
        sampling=asks.effective_sampling(body, setup),
        seed=None if body.get("seed") in (None, -1) else int(body["seed"]),
        n=int(body.get("n") or 1),
        limits=asks.limits(body, _max_tokens(body, len(prompt), setup)),
        parsing=asks.parsing(body, setup),
        headers=headers,
    )


def refuse(message: str, param: str | None = None, *, status: int = 400, value: Any = None) -> Refusal:
    """An error of vLLM's own validation, which appends the parameter to its message."""
    detail = "" if value is None else f", value={value}"
    text = message if param is None or status == 404 else f"{message} (parameter={param}{detail})"
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return Refusal(status, {"error": {"message": text, "type": kind, "param": param, "code": status}})


def mistyped(field: str, kind: str, told: str, given: Any) -> Refusal:
    """An error of the request schema."""
    message = f"1 validation error:\n  {{'type': {kind!r}, 'loc': 'body.{field}', 'msg': {told!r}, 'input': {given!r}}}"
    error = {"message": message, "type": "Bad Request", "param": f"body.{field}", "code": 400}
    return Refusal(400, {"error": error})


def _check_types(body: Json, needed: str) -> None:
    if needed not in body:
        raise mistyped(needed, "missing", "Field required", f"<dict of {len(body)} items>")
    for name in asks.NEUTRAL:
        given = body.get(name)
        if isinstance(given, str):
            told = "Input should be a valid number, unable to parse string as a number"
            raise mistyped(name, "float_parsing", told, given)
    seed = body.get("seed")
    if isinstance(seed, float) and not seed.is_integer():
        told = "Input should be a valid integer, got a number with a fractional part"
        raise mistyped("seed", "int_from_float", told, seed)
    if seed is not None and int(seed) > asks.SEED_HIGH:
        told = f"Input should be less than or equal to {asks.SEED_HIGH}"
        raise mistyped("seed", "less_than_equal", told, seed)
    if seed is not None and int(seed) < asks.SEED_LOW:
        told = f"Input should be greater than or equal to {asks.SEED_LOW}"
        raise mistyped("seed", "greater_than_equal", told, seed)


def _check_sampling(body: Json) -> None:
    temperature, top_p, most = body.get("temperature"), body.get("top_p"), body.get("max_tokens")
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {float(temperature)}."
        raise refuse(message, "temperature", value=float(temperature))
    if top_p is not None and not 0 < top_p <= 1:
        raise refuse(f"top_p must be in (0, 1], got {float(top_p)}.", "top_p", value=float(top_p))
    if most is not None and most < 1:
        raise refuse(f"max_tokens must be at least 1, got {most}.", "max_tokens", value=most)
    if (body.get("top_logprobs") or 0) > 20:
        wanted = body["top_logprobs"]
        message = f"Requested sample logprobs of {wanted}, which is greater than max allowed: 20"
        raise refuse(message, "logprobs", value=wanted)


def _check_bias(body: Json) -> None:
    unknown = [int(k) for k in body.get("logit_bias") or {} if not 0 <= int(k) < VOCABULARY_SIZE]
    if unknown:
        message = (
            f"token_id(s) {unknown} in logit_bias contain out-of-vocab token ids. Vocabulary size: {VOCABULARY_SIZE}"
        )
        raise refuse(message, "logit_bias", value=unknown)


def _prompt_ids(body: Json) -> tuple[int, ...]:
    """The ids given beside the messages, or the rendered messages."""
    name = "kv_transfer_params.prompt_token_ids"
    given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    if given is None:
        return rendered_ids(body, HABITS)
    if not asks.is_id_list(given):
        told = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers."
        raise refuse(told, name)
    unknown = [i for i in given if i >= VOCABULARY_SIZE]
    if unknown:
        raise refuse(f"Token id {unknown[0]} is out of vocabulary", name)
    return tuple(given)


def _plain_prompt(body: Json) -> tuple[int, ...]:
    """The one prompt of a completion; several at once are not imitated."""
    prompt = asks.plain_prompt(body["prompt"])
    if not prompt:
        raise refuse("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    unknown = [i for i in prompt if i >= VOCABULARY_SIZE]
    if unknown:
        raise refuse(f"Token id {unknown[0]} is out of vocabulary", "prompt")
    return prompt


def rendered_ids(body: Json, habits: Habits) -> tuple[int, ...]:
    prompt = Prompt(
        messages=tuple(body["messages"]),
        tools=tuple(body.get("tools") or ()),
        thinking=asks.thinking(body),
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final=bool(body.get("continue_final_message")),
    )
    try:
        return encode(render(prompt, habits))
    except Unrenderable:
        told = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise refuse(told) from None


def _max_tokens(body: Json, prompt_tokens: int, setup: Setup) -> int:
    longest = setup.max_model_len
    if prompt_tokens > longest:
        told = (
            f"This model's maximum context length is {longest} tokens. However, your prompt contains at least "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise refuse(told, "input_tokens", value=prompt_tokens)
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    if wanted is None:
        return longest - prompt_tokens
    if wanted > longest:
        told = (
            f"max_tokens={wanted} cannot be greater than max_model_len={longest}. Please request fewer output tokens."
        )
        raise refuse(told, "max_tokens", value=wanted)
    if prompt_tokens + wanted > longest:
        told = (
            f"This model's maximum context length is {longest} tokens. However, you requested {wanted} output "
            f"tokens and your prompt contains at least {prompt_tokens} input tokens, for a total of at least "
            f"{prompt_tokens + wanted} tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens."
        )
        raise refuse(told, "input_tokens", value=prompt_tokens)
    return int(wanted)
