"""What a few tokens prove of an engine: that ids come back whole, seeds settle the tokens, exact prompts are taken.

Some fifty tokens, drawn when an engine appears. It proves nothing for the engine under load or on other hardware: only
together with the engine's own guarantee is a call called replayable.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from proxy.engine.lab import HOT, Draw, Lab
from proxy.errors import EngineFault
from proxy.model import Completion, LogprobsMode, Profile, Proof

SEED, OTHER_SEED = 1_234_567, 7_654_321
# Where a reply is taken up again: behind these of its tokens.
TAKEN_UP_BEHIND = 4
# Of the likeliest tokens the first and the fourth are compared: of five listed the last may be the sampled one instead.
LISTED, COMPARED = 5, 4
# Two logprobs closer than this, in nats, say nothing of the temperature that they were taken at.
LEAST_GAP = 0.05
# How far from 1 a ratio may be: far above rounding, far below the factor that a temperature makes.
TOLERANCE = 0.05
# What went wrong with the line, the engine's queue or its pause, and says nothing of what it draws.
PASSING_FAULTS = frozenset({"engine_unreachable", "engine_stalled", "engine_cut", "engine_busy"})


@dataclass(frozen=True, slots=True)
class Drawn:
    """The draws that a proof is made from."""

    whole: Completion
    streamed: Completion
    other: Completion
    cool: Completion
    """The first token at temperature 1, by the seed of `whole`."""
    taken_up: Completion | None
    """What came behind the prompt and the first tokens of `whole`; None where exact prompts are not taken."""


async def prove(lab: Lab) -> Proof | None:
    """Draw and judge; None where the engine was not there to be asked."""
    if not lab.engine.facts.honours_seeds:
        return Proof(faults=("it says itself that it ignores seeds",))
    try:
        return judge(await draw_all(lab))
    except EngineFault as fault:
        return None if fault.code in PASSING_FAULTS else Proof(faults=(f"it refused a plain call: {fault.message}",))


async def draw_all(lab: Lab) -> Drawn:
    """Everything one after another; without alternatives where the server lists fewer. Raises EngineFault."""
    try:
        return await _draw_all(lab, LISTED)
    except EngineFault as fault:
        if fault.code != "engine_refused":
            raise
        return await _draw_all(lab, 0)


async def _draw_all(lab: Lab, listed: int) -> Drawn:
    whole = await lab.draw(Draw(SEED, top_logprobs=listed))
    return Drawn(
        whole=whole,
        streamed=await lab.draw(Draw(SEED, stream=True)),
        other=await lab.draw(Draw(OTHER_SEED)),
        cool=await lab.draw(Draw(SEED, profile=Profile("probe"), max_tokens=1, top_logprobs=listed)),
        taken_up=await take_up(lab, whole),
    )


async def take_up(lab: Lab, whole: Completion) -> Completion | None:
    """Go on from within a reply, by its own ids."""
    tokens = whole.tokens
    behind = tokens.prompt_ids + tokens.completion_ids[:TAKEN_UP_BEHIND]
    is_safe = whole.captured and len(tokens.completion_ids) > TAKEN_UP_BEHIND
    # NeMo-RL's server puts ids in the place of a turn that it rendered, so it cannot be given a whole prompt.
    is_able = lab.engine.facts.takes_exact_prompts is not False and lab.engine.facts.kind != "nemo_rl"
    if not is_able or not is_safe:
        return None
    rest = len(tokens.completion_ids) - TAKEN_UP_BEHIND
    return await lab.draw(Draw(SEED, max_tokens=rest, prompt_ids=behind))


def judge(drawn: Drawn) -> Proof:
    """What the draws prove."""
    exact = has_taken(drawn)
    return Proof(
        faults=tuple(_faults(drawn)),
        takes_exact_prompts=exact,
        draws_by_position=_goes_on(drawn) if exact else None,
        logprobs=logprobs_of(drawn.whole, drawn.cool),
    )


def _faults(drawn: Drawn) -> Iterator[str]:
    for name, reply in (("whole", drawn.whole), ("streamed", drawn.streamed)):
        if not reply.captured:
            yield f"a {name} reply came without its tokens: {', '.join(reply.capture_gaps)}"
    if drawn.whole.captured and drawn.streamed.captured:
        if drawn.whole.tokens.prompt_ids != drawn.streamed.tokens.prompt_ids:
            yield "streamed and whole, the same messages were different prompts"
        elif drawn.whole.tokens.completion_ids != drawn.streamed.tokens.completion_ids:
            yield "the same seed drew other tokens the second time"
        if drawn.whole.tokens.completion_ids == drawn.other.tokens.completion_ids:
            yield "two seeds drew the same tokens"


def has_taken(drawn: Drawn) -> bool | None:
    """Whether the prompt that was given came back; None where none was."""
    if drawn.taken_up is None:
        return None
    given = drawn.whole.tokens.prompt_ids + drawn.whole.tokens.completion_ids[:TAKEN_UP_BEHIND]
    return drawn.taken_up.tokens.prompt_ids == given


def _goes_on(drawn: Drawn) -> bool:
    assert drawn.taken_up is not None  # noqa: S101  asked for where it was taken
    return drawn.taken_up.tokens.completion_ids == drawn.whole.tokens.completion_ids[TAKEN_UP_BEHIND:]


def logprobs_of(hot: Completion, cool: Completion) -> LogprobsMode | None:
    """Whether logprobs are taken before or after the temperature; None where the likely tokens are too close to tell.

    The gap between two tokens' logprobs is that of their logits, divided by the temperature if it was taken after.
    """
    hot_gap, cool_gap = _gap(hot), _gap(cool)
    if hot_gap is None or cool_gap is None or cool_gap < LEAST_GAP:
        return None
    ratio = hot_gap / cool_gap
    if abs(ratio - 1) < TOLERANCE:
        return "raw"
    return "processed" if abs(ratio * HOT.temperature - 1) < TOLERANCE else None


def _gap(reply: Completion) -> float | None:
    """Between the likeliest and the fourth likeliest first token."""
    listed = reply.logprob_entries[0].get("top_logprobs") if reply.logprob_entries else None
    likely = sorted((entry["logprob"] for entry in listed or ()), reverse=True)
    return likely[0] - likely[COMPARED - 1] if len(likely) >= COMPARED else None
