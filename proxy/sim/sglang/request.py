"""What SGLang accepts, what it refuses in its own words, and what kills it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy import clock
from proxy.sim import ask as asks
from proxy.sim.ask import Ask, EngineDeath, Refusal, Setup
from proxy.sim.reader import Parsing
from proxy.sim.template import Habits, Json, Prompt, Unrenderable, render
from proxy.sim.tokens import VOCABULARY_SIZE, encode

USUAL_MAX_TOKENS = 16
"""Of plain completions."""
NO_PARSING = Parsing(thinking=False, tools=False, is_on=False)
HABITS = Habits(
    reasoning_fields=("reasoning_content",),
    part_joint=" ",
    refuses_bad_arguments=True,
    tool_extras={"defer_loading": None},
    trailing_assistant_role="user",
)


def read(body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
    """Check a chat request as SGLang does; the model's name is not looked at."""
    if "messages" not in body:
        raise mistyped("messages", "missing", "Field required", body)
    if not body["messages"]:
        raise refuse("Messages cannot be empty.")
    if body.get("stream") and body.get("return_token_ids"):
        told = (
            "return_token_ids is not supported with streaming on /v1/chat/completions. "
            "Please set stream=false when using return_token_ids=true."
        )
        raise refuse(told, "BadRequest")
    return _accept(body, headers, setup, _prompt_ids)


def read_plain(body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
    """Check a plain completion; what it leaves out is neutral, whatever the model's files recommend."""
    given = {name: value for name, value in body.items() if value is not None}
    read = _accept({**asks.NEUTRAL, "max_tokens": USUAL_MAX_TOKENS, **given}, headers, setup, _plain_prompt)
    return replace(read, parsing=NO_PARSING, is_plain=True)


def _accept(
    body: Json, headers: Mapping[str, str], setup: Setup, read_prompt: Callable[[Json], tuple[int, ...]]
) -> Ask:
    _check_types(body)
    _check_sampling(body)
    prompt = read_prompt(body)
    limits = asks.limits(body, _max_tokens(body, len(prompt), setup))
    _check_bias(body)
    _check_survival(body, prompt, setup)
    return Ask(
        body=body,
        id=body.get("rid") or asks.fresh_hex(32),
        model=body.get("model") or setup.model,
        created=int(clock.now()),
        prompt=prompt,
        sampling=asks.effective_sampling(body, setup),
        seed=None if body.get("seed") is None else int(body["seed"]),
        n=int(body.get("n") or 1),
        limits=limits,
        parsing=asks.parsing(body, setup),
        headers=headers,
    )


def refuse(message: str, kind: str = "BadRequestError", *, status: int = 400) -> Refusal:
    """An error body, flat."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return Refusal(status, body)


def mistyped(field: str, kind: str, told: str, given: Any) -> Refusal:
    """An error of the request schema."""
    problem = f"{{'type': {kind!r}, 'loc': ('body', {field!r}), 'msg': {told!r}, 'input': {given!r}}}"
    return refuse(f"1 validation error:\n  {problem} [{problem}]", "Bad Request")


def _check_types(body: Json) -> None:
    given = body.get("input_ids")
    if given is not None and not (isinstance(given, list) and all(isinstance(i, int) for i in given)):
        raise mistyped("input_ids", "list_type", "Input should be a valid list", given)
    for name in asks.NEUTRAL:
        if isinstance(body.get(name), str):
            told = "Input should be a valid number, unable to parse string as a number"
            raise mistyped(name, "float_parsing", told, body[name])
    seed = body.get("seed")
    if isinstance(seed, float) and not seed.is_integer():
        told = "Input should be a valid integer, got a number with a fractional part"
        raise mistyped("seed", "int_from_float", told, seed)


def _check_sampling(body: Json) -> None:
    temperature, top_p, seed = body.get("temperature"), body.get("top_p"), body.get("seed")
    if temperature is not None and temperature < 0:
        raise refuse(f"temperature must be a non-negative finite number, got {float(temperature)}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise refuse(f"top_p must be in (0, 1], got {float(top_p)}.")
    if seed is not None and not asks.SEED_LOW <= int(seed) <= asks.SEED_HIGH:
        raise refuse(f"sampling_seed must be in [-2**63, 2**63 - 1], got {seed}.")


def _check_bias(body: Json) -> None:
    for key in body.get("logit_bias") or {}:
        if not 0 <= int(key) < VOCABULARY_SIZE:
            raise refuse(f"logit_bias must has keys in [0, {VOCABULARY_SIZE - 1}], got {int(key)}.")


def _check_survival(body: Json, prompt: Sequence[int], setup: Setup) -> None:
    """Nothing stands between these and the scheduler, which does not outlive them."""
    strangers = [i for i in prompt if not 0 <= i < VOCABULARY_SIZE]
    if strangers:
        raise EngineDeath(f"IndexError: index {strangers[0]} is out of bounds")
    if setup.deterministic and (body.get("min_p") or 0) > 0:
        raise EngineDeath("AssertionError: min_p with sampling seeds")


def _prompt_ids(body: Json) -> tuple[int, ...]:
    """The ids given beside the messages, unchecked, or the rendered messages."""
    given = body.get("input_ids")
    if given is not None:
        return tuple(given)
    try:
        return rendered_ids(body)
    except Unrenderable as problem:
        raise refuse(str(problem)) from None


def _plain_prompt(body: Json) -> tuple[int, ...]:
    """The one prompt of a completion, its ids unchecked; several at once are not imitated."""
    prompt = asks.plain_prompt(body.get("prompt"))
    if not prompt:
        raise refuse("Prompt cannot be empty")
    return prompt


def _max_tokens(body: Json, prompt_tokens: int, setup: Setup) -> int:
    longest = setup.max_model_len
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    if wanted is not None and wanted > longest:
        told = f"max_completion_tokens is too large: {wanted}."
        raise refuse(f"{told}This model supports at most {longest} completion tokens.")
    if prompt_tokens >= longest:
        told = f"The input ({prompt_tokens} tokens) is longer than the model's context length"
        raise refuse(f"{told} ({longest} tokens).")
    if wanted and prompt_tokens + wanted > longest:
        total = prompt_tokens + wanted
        told = (
            f"Requested token count exceeds the model's maximum context length of {longest} tokens. "
            f"You requested a total of {total} tokens: {prompt_tokens} tokens from the input messages and "
            f"{wanted} tokens for the completion. Please reduce the number of tokens in the input messages "
            "or the completion to fit within the limit."
        )
        raise refuse(told)
    if body.get("max_tokens") == 0:
        return 0
    return int(wanted) if wanted else longest - prompt_tokens


def rendered_ids(body: Json) -> tuple[int, ...]:
    """The ids of the messages, as chat and /tokenize make them."""
    prompt = Prompt(
        messages=tuple(body["messages"]),
        tools=shown_tools(body),
        thinking=asks.thinking(body),
        continue_final=bool(body.get("continue_final_message")),
    )
    return encode(render(prompt, HABITS))


def shown_tools(body: Json) -> tuple[Json, ...]:
    """The tools that the prompt tells of: none where none may be called, and the one that a choice names."""
    tools, choice = tuple(body.get("tools") or ()), body.get("tool_choice")
    if choice == "none":
        return ()
    if not isinstance(choice, dict):
        return tools
    return tuple(tool for tool in tools if tool["function"]["name"] == choice["function"]["name"])
