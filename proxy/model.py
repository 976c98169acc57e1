"""The data that flows: an Ask becomes a Plan, a Plan gets a Reply, a Reply is kept as a Call.

Values only: nothing here decides or does I/O. Times are seconds since the epoch unless the name says `_s`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NewType, TypeAlias

RolloutId = NewType("RolloutId", str)
CallId = NewType("CallId", str)
JsonObject: TypeAlias = dict[str, Any]

Api = Literal["chat", "messages", "responses", "completions"]
EngineKind = Literal["vllm", "sglang", "nemo_rl"]
RolloutState = Literal["open", "finished", "expired", "deleted"]

# The complete set that decides how a token is drawn; each is sent with every call.
PINNED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)

# Names under chat_template_kwargs that are not the template's but the renderer's: they would replace the template, the
# messages or the tools, or change what the renderer returns.
RENDERER_ARGUMENTS = frozenset(
    {
        "chat_template",
        "conversation",
        "messages",
        "tools",
        "documents",
        "tokenize",
        "tokenizer_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "processor_kwargs",
        "mm_processor_kwargs",
    }
)


# Headers by which real harnesses tell their main agent from its sub-agents.
LANE_HEADERS = (
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "x-session-id",
    "x-parent-session-id",
    "session-id",
    "thread-id",
    "x-codex-parent-thread-id",
    "x-openai-subagent",
    "x-litellm-session-id",
    "user-agent",
)

# --- who asks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of sampling values; what every call of a rollout is pinned to."""

    name: str
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens_cap: int | None = None
    """Most tokens a call may generate; None leaves it to the client and the model's context."""
    prefix_supply: bool = True
    """Whether the engine is given the exact ids of the conversation so far."""
    model: str | None = None
    """Name sent to the engine; None sends the engine's own served name."""

    def pinned(self) -> dict[str, float | int]:
        """The complete sampling set, by the engines' field names."""
        return {name: getattr(self, name) for name in PINNED_FIELDS}

    @property
    def is_greedy(self) -> bool:
        """Whether the seed decides nothing."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt of a harness at one task."""

    rollout_id: RolloutId
    run: str
    group: str
    sample: int
    attempt: int
    profile: str
    sampling: Mapping[str, float | int]
    """Values that differ from the profile's for this rollout alone."""
    state: RolloutState
    created_at: float
    expires_at: float | None
    finished_at: float | None = None
    token_budget: int | None = None
    metadata: JsonObject = field(default_factory=dict)
    outcome: JsonObject | None = None
    revision: int = 0
    """Raised by each change after the first read could have happened: outcomes, late results."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose call this is, and what the client's headers say of it."""

    rollout: Rollout
    lane_signals: Mapping[str, str]
    """Headers of known harnesses that tell the main agent from sub-agents; recorded, never in seeds."""
    idempotency_key: str | None
    retry_count: int

    @property
    def rollout_id(self) -> RolloutId:
        return self.rollout.rollout_id


# --- what is asked ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Conversation:
    """The canonical form of what the model is shown, as hashes."""

    history: tuple[str, ...]
    """Chain hash after 0, 1, … n messages; the last stands for all of them."""
    tools_hash: str
    template_hash: str
    context: str
    """One hash over history, tools and template arguments: what seeds and repeats are keyed by."""
    has_assistant: bool


@dataclass(frozen=True, slots=True)
class VolatileLine:
    """A line of the client's that changes on each request and was put to a fixed value."""

    message: int
    rule: str
    original: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One model call as the harness put it."""

    identity: Identity
    api: Api
    body: JsonObject
    """The client's body, untouched."""
    chat: JsonObject
    """The same request in the fields of chat completions, which all decisions read; for chat the body itself."""
    messages: tuple[JsonObject, ...]
    """The messages as the engine is to see them: the client's, volatile lines settled."""
    volatile: tuple[VolatileLine, ...]
    conversation: Conversation
    stream: bool
    choices: int
    """n: how many replies to draw."""
    include_usage: bool
    wants_logprobs: bool
    top_logprobs: int
    requested_model: str | None
    has_tools: bool
    left_out: tuple[str, ...] = ()
    """What of the client's body has no chat form: top-level fields by name, parts of others as `field.part`."""
    engine_call_ids: Mapping[str, str] = field(default_factory=dict)
    """Tool-call ids that the client echoes -> the engine's own, once they were looked up."""


# The part of a plain prompt's message that holds token ids.
IDS_PART = "token_ids"


def prompt_in(ask: Ask) -> str | list[int]:
    """The text or the ids that a plain completion has instead of a conversation."""
    content: Any = ask.messages[0]["content"]
    prompt: str | list[int] = content if isinstance(content, str) else content[0][IDS_PART]
    return prompt


# Why a call has no parent yet whose prompt has no turns: what it goes on from only tokens tell, once they are known.
PLAIN_PROMPT = "plain_prompt"

ParentOutcome = Literal["root", "resolved", "unresolved"]


@dataclass(frozen=True, slots=True)
class Parent:
    """The call whose reply this request goes on from, or why there is none."""

    outcome: ParentOutcome
    reason: str
    call_id: CallId | None = None
    told_from: int | None = None
    """Place of the first of the request's messages that tell the parent's reply."""


@dataclass(frozen=True, slots=True)
class ParentCandidate:
    """An earlier call of the rollout that answered a beginning of the conversation at hand."""

    call_id: CallId
    history: str
    """Chain hash of what it answered."""
    message: JsonObject
    """The reply as the client got it."""
    ids_hash: str
    """Equal only where prompt and sampled ids are all equal; the call's own where they are not whole."""
    is_delivered: bool


@dataclass(frozen=True, slots=True)
class ParentSearch:
    """What a rollout holds that a request could go on from."""

    candidates: tuple[ParentCandidate, ...] = ()
    knows_history: bool = False
    """Whether the rollout ever asked a beginning of this conversation; if not, its assistant turns are foreign."""
    engine_call_ids: Mapping[str, str] = field(default_factory=dict)
    """Of the tool-call ids that were asked for: the client's -> the engine's own."""


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """What a recorded call put into the sequence, and how its reply ended."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    finish_reason: str | None
    matched_stop: int | str | None
    """What the engine says ended it: a stop string, or the id of a token that is not the first end token."""
    stops: tuple[str, ...]
    """Stop strings of its request."""
    has_stop_ids: bool
    """Whether its request named token ids to stop at."""
    reasoning: str
    engine_kind: str
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the client asked of the sampler and what the engine is told."""

    effective: Mapping[str, float | int]
    """The profile's complete set, as sent."""
    asked: JsonObject
    """Every sampling, length, stop and shaping value that the client sent."""
    overridden: tuple[str, ...]
    length: JsonObject
    """max_tokens and stop fields as sent; max_tokens absent means the rest of the context."""
    shaping: JsonObject
    """Fields that bend the distribution and were passed on."""
    constrained: tuple[str, ...]
    """Names of the shaping fields in force; such tokens are not plain samples of the policy."""
    ignored: tuple[str, ...]
    """Names of client fields that were not passed on."""

    @property
    def max_tokens(self) -> int | None:
        value = self.length.get("max_tokens")
        return value if isinstance(value, int) else None


SeedSource = Literal["minted", "client", "mixed"]


@dataclass(frozen=True, slots=True)
class Seed:
    """The seed of one call and how it came about."""

    value: int
    source: SeedSource
    occurrence: int
    choice: int
    client_seed: int | None = None
    run_seed: int | None = None
    """The root that it was minted from; None where the client's seed alone decides."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Whether the exact ids of the conversation so far were given to the engine."""

    eligible: bool
    """Whether there is a parent whose ids the profile wants to be supplied."""
    requested: bool
    """Whether they were sent."""
    supplied: bool
    """Whether the ids that came back prove that the engine took them."""
    length: int
    """Ids sent."""
    reason: str
    """`exact`, `substituted` or `cut` (how the parent's turn ended), or why nothing was sent."""
    detail: str = ""
    drift_at: int | None = None
    """First place at which a render of the same history would have departed from the ids supplied; None: nowhere."""
    token_ids: tuple[int, ...] = field(default=(), repr=False)
    parent_length: int = 0
    """How many of the ids are the parent's prompt and reply; the tail follows."""

    @property
    def outcome(self) -> Literal["supplied", "unproven", "refused", "none"]:
        """What became of it, in a word; `none` where there was nothing to supply."""
        if self.supplied:
            return "supplied"
        if self.requested:
            return "unproven"
        return "refused" if self.eligible else "none"


# --- the engine -------------------------------------------------------------------------------------------------


LogprobsMode = Literal["raw", "processed"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a few tokens proved of an engine (engine/proof.py)."""

    faults: tuple[str, ...] = ()
    """What its ids or seeds do not hold to, in sentences; empty where the probe was passed."""
    takes_exact_prompts: bool | None = None
    """Whether exact prompt ids came back; None where none were given."""
    draws_by_position: bool | None = None
    """Whether the same seed goes on with the same draws behind a prompt and a partial reply."""
    logprobs: LogprobsMode | None = None
    """Whether logprobs are taken before the temperature or after it; None where the draws did not tell."""

    @property
    def is_passed(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine said of itself when it was probed."""

    kind: EngineKind
    version: str
    model: str
    context_length: int | None
    vocabulary: int | None
    """Ids are 0 … vocabulary-1; None when the engine would not say."""
    deterministic: bool | None
    """Whether the engine guarantees that batching does not change tokens; None when it does not tell."""
    auto_truncates: bool = False
    takes_exact_prompts: bool | None = None
    """Whether it reads the prompt ids that a chat request gives it; None where the answer told neither way."""
    fingerprint: str | None = None
    """Equal where kind, model, tokenizer and template are (engine/fingerprint.py); None where it would not render."""
    details: JsonObject = field(default_factory=dict)
    proof: Proof | None = None
    """What its draws proved; None before they were made."""

    @property
    def logprobs_mode(self) -> str | None:
        """What it says of itself, unless its draws show that they are raw; None where neither tells."""
        shown = self.proof.logprobs if self.proof else None
        told: str | None = self.details.get("logprobs_mode")
        return "raw_logprobs" if shown == "raw" else told or (f"{shown}_logprobs" if shown else None)

    @property
    def honours_seeds(self) -> bool:
        """SGLang ignores seeds unless it runs in deterministic mode."""
        return self.kind != "sglang" or bool(self.deterministic)


@dataclass(frozen=True, slots=True)
class EngineRef:
    """One engine of the pool, as a call saw it."""

    name: str
    url: str
    facts: EngineFacts
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a profile on an engine that its owner should know, and what mends it."""

    profile: str
    engine: str
    setting: str
    severity: Literal["warn", "refuse"]
    """`refuse` findings keep the profile off the engine."""
    message: str
    remedy: str

    def line(self) -> str:
        """All of it on one line."""
        return f"profile {self.profile} on {self.engine}: {self.setting}: {self.message}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is sent: a path below the engine's URL and a body built from the allow-list."""

    path: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class Plan:
    """Every decision about one call, made before the engine is asked; nothing changes it later."""

    call_id: CallId
    request_id: str
    ask: Ask
    profile: Profile
    parent: Parent
    sampling: Sampling
    seed: Seed
    prefix: Prefix
    engine: EngineRef
    started_at: float
    unreached: tuple[EngineRef, ...] = ()
    """Engines that it was planned for first and that could not be reached."""
    audit_top: int = 0
    """How many candidates of each draw are kept for the seed audit; no client sees them."""
    tries: int = 0
    """How often the same draw was tried before, and failed."""


# --- the engine's weights -----------------------------------------------------------------------------------------

PauseMode = Literal["abort", "retract", "in_place", "wait", "keep"]
"""SGLang's and vLLM's own words for what becomes of calls that run: docs/weights.md."""
KvFate = Literal["renewed", "kept", "unknown"]


@dataclass(frozen=True, slots=True)
class Pause:
    """A stop of all engines that a trainer asked for; in force until it is resumed, whatever its lease says."""

    pause_id: str
    mode: PauseMode
    asked_at: float
    lease_until: float
    """From here on calls that wait are told so, and new ones are refused."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What is known of one engine's weights."""

    url: str
    version: str | None = None
    """The trainer's name for them; None where nobody told."""
    epoch: int = 0
    """Raised with each change: a name that comes back is not the same weights."""
    told_by: Literal["engine", "trainer"] | None = None
    is_flushed: bool = True
    """Whether the engine's prefix cache was emptied after they came, or they were its first."""
    kv: KvFate = "unknown"
    """What became of the cache of calls that ran while they came."""


# --- what came back ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids and logprobs of one reply; completion_ids and logprobs are aligned, one per sampled token."""

    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural logarithms, as the engine reported them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Generated tokens start … end-1 under one seed, one engine and one weight version."""

    start: int
    end: int
    seed: int
    weight_version: str | None
    engine: str
    kv_version: str | None = None
    """The weights that computed the cache of what stands before, where a pause kept it across an update."""
    notes: tuple[str, ...] = ()
    """What is not certain of the versions, as docs/weights.md lists it; empty where all is."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply that came to its end, or the part of one that did."""

    tokens: Tokens
    finish_reason: str | None
    message: JsonObject
    """The assistant message as the client got it."""
    engine_message: JsonObject
    """The same as the engine said it: its own tool-call ids and field names."""
    usage: JsonObject | None
    weight_versions: tuple[JsonObject, ...] = ()
    """Spans {version, start, end} where the engine reports them."""
    logprob_entries: tuple[Any, ...] = ()
    """Per token, the engine's whole logprob object; kept only where the client asked for logprobs."""
    matched_stop: int | str | None = None
    """What the engine says ended the reply: a stop string, or the id of a token that is not the first end token."""
    candidates: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token, (id, logprob) of the likeliest in its draw; kept only for the seed audit."""
    routed_experts: tuple[str, ...] = ()
    """Which experts each token went through, in the engine's own packing; one for each part that has it."""
    capture_gaps: tuple[str, ...] = ()
    """Why ids or logprobs cannot be trusted; empty means that every count agreed."""

    @property
    def captured(self) -> bool:
        """Whether the tokens are whole and aligned."""
        return not self.capture_gaps


@dataclass(frozen=True, slots=True)
class Failure:
    """An exchange that went wrong, as data."""

    kind: str
    """A word from docs/records.md: engine_unreachable, engine_cut, client_gone, …"""
    status: int
    """HTTP status that the client gets, or would have got."""
    message: str
    param: str | None = None
    engine_status: int | None = None
    detail: str | None = None
    """The cause as the network told it; on record, not told to the client."""
    may_retry: bool = True
    retry_after_s: int | None = None
    partial: Completion | None = None
    """What had arrived; never trained on."""


Outcome: TypeAlias = Completion | Failure


@dataclass(frozen=True, slots=True)
class Timing:
    """When things happened; durations in seconds from started_at."""

    started_at: float
    first_event_s: float | None
    ended_s: float


@dataclass(frozen=True, slots=True)
class Replayable:
    """Whether the same tokens can be drawn again, and what stands in the way."""

    verdict: Literal["yes", "no", "unproven"]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call with its outcome: what the store keeps."""

    plan: Plan
    outcome: Outcome
    segments: tuple[Segment, ...]
    timing: Timing
    replayable: Replayable


# --- what the store is told -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draw:
    """One choice of a request: a call to be, and how its seed follows from the request's occurrence."""

    call_id: CallId
    choice: int
    mint: Callable[[int], int]
    """Seed from occurrence; pure."""


@dataclass(frozen=True, slots=True)
class RepeatMark:
    """What tells a retry from a deliberate repeat."""

    ask_hash: str
    """Equal for identical requests: same lane, context, effective sampling, length, stop and shaping fields."""
    idempotency_key: str | None
    is_retry: bool
    """Whether the client's SDK says that this is not its first try."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is written before the engine is asked: a row for each choice, and the first delivery of each."""

    request_id: str
    rollout_id: RolloutId
    context: str
    history: str
    draws: tuple[Draw, ...]
    repeat: RepeatMark
    delivery_id: str
    api: Api
    stream: bool
    asked_at: float
    lease_until: float
    owner: str
    """The proxy process that answers for it; leases of a dead owner end at once on a store with one owner."""
    exclusive_seed: bool = False
    """Refuse a seed that another sample of the group holds on the same context."""
    most_calls: int | None = None
    """Refuse a new draw by which the rollout would have more calls; a claim adds none."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """A new draw: the lowest occurrence that no other call of (rollout, context) holds, and the seed of each choice."""

    occurrence: int
    seeds: tuple[int, ...]
    reason: Literal["new", "draw_abandoned"] = "new"


ClaimReason = Literal["idempotency_key", "failed", "client_gone", "retry_count"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A repeat of earlier calls: no new draw, one more delivery of theirs."""

    request_id: str
    call_ids: tuple[CallId, ...]
    occurrence: int
    seeds: tuple[int, ...]
    standing: Literal["running", "recorded", "again"]
    """`again`: the draw failed, and the rows are reserved anew for another try with the same seeds."""
    reason: ClaimReason
    tries: int = 0
    """How often the draw was tried before, and failed."""


DeliveryOutcome = Literal["delivered", "client_gone", "error_told", "lost"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """How one client's reading of a request's calls ended."""

    delivery_id: str
    ended_at: float
    outcome: DeliveryOutcome
    events: int
    """Events handed to the client's socket."""


@dataclass(frozen=True, slots=True)
class GroupFlag:
    """Something that is wrong with a group as a whole."""

    flag: Literal["collapsed"]
    raised_at: float
    detail: JsonObject
