"""The data that flows: an Ask becomes a Plan, a Plan gets a Reply, a Reply is kept as a Call.

Values only: nothing here decides or does I/O. Times are seconds since the epoch unless the name says `_s`.

    words      ids, and JSON objects
    rollout    who asks
    ask        what is asked
    parent     what it goes on from
    engine     who answers
    plan       what is decided
    draw       what is written before the engine is asked
    reply      what came back
    call       what is kept
    weights    what trainers do meanwhile
"""

from proxy.model.ask import IDS_PART, RENDERER_ARGUMENTS, Api, Ask, Conversation, VolatileLine, prompt_in
from proxy.model.call import Call, Delivery, DeliveryOutcome, Replayable, Timing
from proxy.model.draw import Claimed, ClaimReason, Draw, RepeatMark, Reservation, Reserved
from proxy.model.engine import EngineFacts, EngineKind, EngineRef, EngineRequest, Finding, LogprobsMode, Proof
from proxy.model.parent import PLAIN_PROMPT, Parent, ParentCandidate, ParentOutcome, ParentSearch, SampledTurn
from proxy.model.plan import Plan, Prefix, Sampling, Seed, SeedSource
from proxy.model.reply import Completion, Failure, Outcome, Segment, Tokens
from proxy.model.rollout import LANE_HEADERS, PINNED_FIELDS, GroupFlag, Identity, Profile, Rollout, RolloutState
from proxy.model.weights import KvFate, Pause, PauseMode, Weights
from proxy.model.words import CallId, JsonObject, RolloutId

__all__ = [
    "IDS_PART",
    "LANE_HEADERS",
    "PINNED_FIELDS",
    "PLAIN_PROMPT",
    "RENDERER_ARGUMENTS",
    "Api",
    "Ask",
    "Call",
    "CallId",
    "ClaimReason",
    "Claimed",
    "Completion",
    "Conversation",
    "Delivery",
    "DeliveryOutcome",
    "Draw",
    "EngineFacts",
    "EngineKind",
    "EngineRef",
    "EngineRequest",
    "Failure",
    "Finding",
    "GroupFlag",
    "Identity",
    "JsonObject",
    "KvFate",
    "LogprobsMode",
    "Outcome",
    "Parent",
    "ParentCandidate",
    "ParentOutcome",
    "ParentSearch",
    "Pause",
    "PauseMode",
    "Plan",
    "Prefix",
    "Profile",
    "Proof",
    "RepeatMark",
    "Replayable",
    "Reservation",
    "Reserved",
    "Rollout",
    "RolloutId",
    "RolloutState",
    "SampledTurn",
    "Sampling",
    "Seed",
    "SeedSource",
    "Segment",
    "Timing",
    "Tokens",
    "VolatileLine",
    "Weights",
    "prompt_in",
]
