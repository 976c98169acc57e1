"""One recorded call's tokens scored under the engine's weights of now. Whatever goes wrong is a result too."""

from collections.abc import AsyncIterator, Collection, Iterator

from proxy import metrics
from proxy.engine.parts import WEIGHTS_CHANGED
from proxy.errors import EngineFault
from proxy.model import CallId, EngineFacts, EngineRef, JsonObject, Rollout
from proxy.replay.choose import open_engines
from proxy.replay.door import confirmed, with_engines
from proxy.replay.mismatch import Mismatch, Rescore, incomparable, mismatch_of
from proxy.replay.remake import has_media
from proxy.replay.score import read_scores, room_needed, scores_of
from proxy.replay.story import as_they_come, look_anew, recorded_calls
from proxy.replay.verdict import NO_SUCH_ENGINE
from proxy.wiring import Wiring


async def rescore_rollout(
    rollout: Rollout, wiring: Wiring, *, only: Collection[str] = ()
) -> AsyncIterator[tuple[JsonObject, Rescore]]:
    """Each call with its rescore, in the order in which they are ready."""
    await look_anew(wiring)
    async for page in recorded_calls(rollout, wiring, only):
        async for call, rescore in as_they_come([_with(call, wiring) for call in page]):
            yield call, rescore


async def rescore_call(call: JsonObject, wiring: Wiring) -> Rescore:
    """Score one call where that can be done, and count what came of it; its turn at the engine is waited for."""
    rescore = await _rescored(call, wiring)
    means = rescore.mismatch.document()
    metrics.rescored(rescore.word, means["mean_absolute_difference"], means["kl_k3"])
    return rescore


async def _rescored(call: JsonObject, wiring: Wiring) -> Rescore:
    call_id = CallId(call["call_id"])
    if reasons := tuple(_barriers(call)):
        return Rescore(call_id, reasons)
    try:
        async with wiring.aside, with_engines(wiring):
            return await _scored(call, wiring)
    except EngineFault as fault:
        return Rescore(call_id, (fault.code, fault.message), has_failed=True)


async def _scored(call: JsonObject, wiring: Wiring) -> Rescore:
    """The same, with the engines."""
    call_id = CallId(call["call_id"])
    engine = next((one for one in open_engines(wiring.pool) if knows_the_ids(one.facts, call["engine"])), None)
    if engine is None:
        return Rescore(call_id, (NO_SUCH_ENGINE,))
    if reason := _too_long(call, engine):
        return Rescore(call_id, (reason,))
    try:
        before = await wiring.weights.look(engine)
        logprobs, asked = await _scores(call, engine, wiring)
        after = await wiring.weights.look(asked)
    except EngineFault as fault:
        return Rescore(call_id, (fault.code, fault.message), has_failed=True, engine=engine.name)
    if (before.epoch, before.version) != (after.epoch, after.version):
        return Rescore(call_id, (WEIGHTS_CHANGED,), has_failed=True, engine=engine.name)
    bars = incomparable(call)
    mismatch = Mismatch() if bars else mismatch_of(call["logprobs"], logprobs)
    return Rescore(
        call_id,
        logprobs=logprobs,
        incomparable=bars,
        mismatch=mismatch,
        engine=engine.name,
        weight_version=after.version,
    )


def knows_the_ids(facts: EngineFacts, recorded: JsonObject) -> bool:
    """Whether ids mean the same to an engine as to the recorded one; its version and its weights may be others."""
    if (facts.kind, facts.model) != (recorded["kind"], recorded["model"]):
        return False
    theirs = recorded.get("fingerprint")
    return theirs is None or facts.fingerprint in {None, theirs}


def _barriers(call: JsonObject) -> Iterator[str]:
    if call["state"] != "done":
        yield call["failure"]["kind"] if call["failure"] else "no_outcome_yet"
    elif not call["capture"]["complete"]:
        yield from call["capture"]["gaps"]
    elif any(has_media(message) for message in call["messages"]):
        yield "media_in_prompt"


def _too_long(call: JsonObject, engine: EngineRef) -> str | None:
    """Why the engine would refuse the ids, or die of them."""
    ids = (*call["prompt_token_ids"], *call["completion_token_ids"])
    size, length = engine.facts.vocabulary, engine.facts.context_length
    if size is not None and any(not 0 <= token < size for token in ids):
        return "id_out_of_vocabulary"
    return "context_is_full" if length is not None and len(ids) + room_needed(engine) > length else None


async def _scores(call: JsonObject, engine: EngineRef, wiring: Wiring) -> tuple[tuple[float, ...], EngineRef]:
    """The logprobs, and the engine as it was seen behind them. Raises EngineFault."""
    model = call["profile"]["values"]["model"] or engine.facts.model
    request = scores_of(engine, model, call["prompt_token_ids"], call["completion_token_ids"])
    async with wiring.upstream.ask(engine, request, call["call_id"]) as events:
        opened = wiring.upstream.connections.opened(engine.url)
        replies = [event async for event in events]
    if len(replies) != 1:
        raise EngineFault("engine_malformed", 502, f"{len(replies)} events where one reply was asked for")
    logprobs = read_scores(engine, replies[0], call["completion_token_ids"])
    return logprobs, await confirmed(engine, opened, wiring)


async def _with(call: JsonObject, wiring: Wiring) -> tuple[JsonObject, Rescore]:
    return call, await rescore_call(call, wiring)
