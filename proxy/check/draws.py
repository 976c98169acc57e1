"""Checks of how tokens are drawn: seeds, company, companions of another class, and going on within a reply."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.check.bench import Bench, Seen
from proxy.engine.lab import HOT, TOKENS, Draw
from proxy.engine.proof import OTHER_SEED, SEED
from proxy.model import Profile

COMPANY = 4
# Tokens of the call that is watched while others run beside it, and how often it is drawn.
WATCHED_TOKENS, WATCHED_TIMES = 24, 3
FILTERING = Profile("probe", temperature=HOT.temperature, top_p=0.9)


async def seeds(bench: Bench) -> Seen:
    """Two seeds, two repeats."""
    drawn, facts = bench.drawn, bench.facts
    if not facts.honours_seeds:
        return Seen(bench.worse(), "seeds are accepted and ignored: the deterministic mode is off")
    if not drawn.whole.captured:
        return Seen("fail", "without ids there is nothing to compare")
    again = drawn.streamed if drawn.streamed.captured else await bench.lab.draw(Draw(SEED))
    if again.tokens.completion_ids != drawn.whole.tokens.completion_ids:
        return Seen(bench.worse(), "the same seed drew other tokens the second time")
    if drawn.other.tokens.completion_ids == drawn.whole.tokens.completion_ids:
        return Seen("fail", "two seeds drew the same tokens: the samples of a group would be one")
    return Seen("pass", "the same seed draws the same tokens, another seed draws others")


async def company(bench: Bench) -> Seen:
    """The same draw, with others of its class beside it."""
    if skipped := _no_draws_to_compare(bench):
        return skipped
    others = [bench.lab.draw(Draw(OTHER_SEED + place)) for place in range(1, COMPANY + 1)]
    watched, *_ = await asyncio.gather(bench.lab.draw(Draw(SEED)), *others)
    if watched.tokens.completion_ids != bench.drawn.whole.tokens.completion_ids:
        return Seen(bench.worse(), f"{COMPANY} calls beside it changed its tokens")
    return Seen("pass", f"{TOKENS} tokens are the same alone and beside {COMPANY} others, which is no guarantee")


async def classes(bench: Bench) -> Seen:
    """The same draw, with calls beside it that filter."""
    if skipped := _no_draws_to_compare(bench):
        return skipped
    if busy := await bench.must_not_be_disturbed():
        return Seen("skip", busy)
    watched = Draw(SEED, max_tokens=WATCHED_TOKENS)
    alone = await bench.lab.draw(watched)
    async with _filtering_calls(bench):
        beside = [await bench.lab.draw(watched) for _ in range(WATCHED_TIMES)]
    if any(reply.tokens.completion_ids != alone.tokens.completion_ids for reply in beside):
        return Seen("warn", "a call with top_p 0.9 beside it changed its tokens")
    return Seen("pass", f"{WATCHED_TIMES} draws beside calls with top_p 0.9 came out the same")


@asynccontextmanager
async def _filtering_calls(bench: Bench) -> AsyncIterator[None]:
    """One call after another that filters, for the length of the block; the first has begun when it starts."""
    begun, is_over = asyncio.Event(), asyncio.Event()

    async def keep_asking() -> None:
        for seed in itertools.count(OTHER_SEED):
            draw = Draw(seed, profile=FILTERING, max_tokens=2 * WATCHED_TOKENS, stream=True)
            await bench.beside.draw(draw, begun)
            if is_over.is_set():
                return

    asking = asyncio.create_task(keep_asking())
    try:
        waiting = asyncio.create_task(begun.wait())
        await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        # The last one is let end: the engine would go on with it for a while, and it would disturb what comes next.
        is_over.set()
        await asking


async def resume(bench: Bench) -> Seen:
    """Prompt and first tokens with the same seed: does it go on with the same draws?"""
    by_position = bench.proof.draws_by_position
    if by_position is None:
        return Seen("skip", "no exact prompt was taken" if bench.facts.honours_seeds else "seeds mean nothing here")
    if by_position:
        return Seen("pass", "behind a partial reply the same seed goes on with the same draws")
    if bench.facts.kind == "sglang" and bench.facts.deterministic:
        return Seen("warn", "behind a partial reply the same seed does not go on as it was")
    return Seen(
        "pass", "the noise begins anew behind a partial reply: an interrupted call gets a new seed for its rest"
    )


async def determinism(bench: Bench) -> Seen:
    """Whether the engine itself promises that batches do not change tokens."""
    match bench.facts.deterministic:
        case True:
            return Seen("pass", "promised by the engine")
        case False:
            return Seen(bench.worse(), "not promised: the mode is off")
        case _:
            return Seen("warn", "the engine does not tell outside its development mode")


def _no_draws_to_compare(bench: Bench) -> Seen | None:
    """Where seeds do not settle tokens there is nothing that could change them."""
    return None if bench.proof.is_passed else Seen("skip", "seeds do not hold even alone")
