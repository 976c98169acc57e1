"""A generation request as an engine understands it, and the refusals both engines share."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy import clock
from proxy.sim.draw import Limits
from proxy.sim.reader import Parsing
from proxy.sim.scenario import Scenario
from proxy.sim.shaping import Sampling
from proxy.sim.template import Json
from proxy.sim.tokens import encode

PauseMode = Literal["abort", "retract", "in_place", "wait", "keep"]
Spans = tuple[tuple[str, int, int], ...]
"""Which weight version made which tokens: version, start, end."""
SEED_LOW, SEED_HIGH = -(2**63), 2**63 - 1
GENERATION_CONFIG = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
"""What the model's own files recommend, and both engines apply to whatever a request leaves out."""
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine was started."""

    model: str = "tiny"
    deterministic: bool = True
    """SGLang's flag; vLLM honours seeds either way."""
    max_model_len: int = 4096
    token_delay_s: float = 0.0
    tokens_per_event: int = 1
    parsers: bool = True
    """Reasoning and tool-call parsers are on."""
    dev_mode: bool = False
    """vLLM's development endpoints are there."""
    neutral_defaults: bool = False
    """What a request leaves out is neutral, and not what the model's files recommend."""
    raw_logprobs: bool | None = None
    """Whether logprobs are taken before the temperature; None for the engine's usual way."""
    auto_truncates: bool = False
    """SGLang's flag to cut prompts that are too long; only told, since nothing here is cut."""
    api_servers: int = 1
    """How many processes of vLLM take requests; of several, none tells when it began."""
    scale_out: bool = True
    """vLLM's endpoints that render and derender are there."""
    mixture: bool = False
    """The model is a mixture of experts, and the server was started to tell which were at work."""
    weight_version: str = "default"
    """The trainer's label for the weights."""
    weights: str = ""
    """The weights themselves: where they were loaded from. They and their label change while the engine runs."""
    scenario: Scenario | None = None
    """The agent that speaks; None for the toy model's own words."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for generation, checked and with every default filled in."""

    body: Json
    id: str
    model: str
    created: int
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int | None
    n: int
    limits: Limits
    parsing: Parsing
    headers: Mapping[str, str]
    is_plain: bool = False
    """It has a prompt instead of a conversation, and its reply is text."""
    sent: Json = field(default_factory=dict)
    """The body as the client sent it; `body` is that, or what it comes to in chat."""

    @property
    def stream(self) -> bool:
        """The reply is to come as events."""
        return bool(self.body.get("stream"))

    @property
    def include_usage(self) -> bool:
        """The stream is to end with the usage."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def continuous_usage(self) -> bool:
        """Every event is to carry the usage so far."""
        options = self.body.get("stream_options") or {}
        return self.include_usage and bool(options.get("continuous_usage_stats"))

    @property
    def logprobs(self) -> int | None:
        """How many alternatives come with each token's logprob; None for no logprobs at all."""
        if self.is_plain:
            asked = self.body.get("logprobs")
            return None if asked is None else int(asked)
        return int(self.body.get("top_logprobs") or 0) if self.body.get("logprobs") else None


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    payload: Json
    tokens: int
    """How many tokens of each choice have been told when it is out."""
    name: str | None = None


class Refusal(Exception):
    """The engine won't take the request; it answers with an error body."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(f"{status} {body}")
        self.status, self.body = status, body


class EngineDeath(Exception):
    """The request brings the whole server down."""


def experts_of(ids: Sequence[int]) -> str:
    """Which experts drew these tokens: of no meaning but that it hangs on them."""
    return base64.b64encode(bytes(token_id % 8 for token_id in ids)).decode()


def fresh_hex(digits: int) -> str:
    """So many random hexadecimal digits, 32 at most, for ids that no two replies share."""
    return clock.new_id("").removeprefix("_")[:digits]


def effective_sampling(body: Mapping[str, Any], setup: Setup) -> Sampling:
    """The request's settings, then the model's recommendation where that counts, then the neutral value."""
    given = {name: body[name] for name in NEUTRAL if body.get(name) is not None}
    chosen = {**NEUTRAL, **({} if setup.neutral_defaults else GENERATION_CONFIG), **given}
    bias = tuple(sorted((int(k), float(v)) for k, v in (body.get("logit_bias") or {}).items()))
    return Sampling(
        temperature=float(chosen["temperature"]),
        top_p=float(chosen["top_p"]),
        top_k=int(chosen["top_k"]),
        min_p=float(chosen["min_p"]),
        repetition_penalty=float(chosen["repetition_penalty"]),
        presence_penalty=float(chosen["presence_penalty"]),
        frequency_penalty=float(chosen["frequency_penalty"]),
        logit_bias=bias,
    )


def limits(body: Mapping[str, Any], max_tokens: int) -> Limits:
    """What ends the reply."""
    stop = body.get("stop") or ()
    return Limits(
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        ignore_eos=bool(body.get("ignore_eos")),
        min_tokens=int(body.get("min_tokens") or 0),
    )


def is_id_list(value: Any) -> bool:
    """A non-empty list of whole numbers that could be token ids."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value)
    )


def plain_prompt(value: Any) -> tuple[int, ...] | None:
    """The ids of one prompt, given as text or as ids; None where it is neither."""
    if isinstance(value, str):
        return encode(value)
    return tuple(value) if is_id_list(value) else None


def thinking(body: Mapping[str, Any]) -> bool:
    """The request leaves thinking on, as it is by default."""
    return bool((body.get("chat_template_kwargs") or {}).get("enable_thinking", True))


def parsing(body: Mapping[str, Any], setup: Setup) -> Parsing:
    """Which parsers will be at work."""
    has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
    is_on = setup.parsers
    return Parsing(thinking=is_on and thinking(body), tools=is_on and has_tools, is_on=is_on)
