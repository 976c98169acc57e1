"""The recorded run: which rollout a harness is playing, and which recorded call its request repeats.

A rollout is the recorded one of the same id, else the one in the same place (group, sample, attempt). A call is the one
with the same canonical conversation, occurrence and choice, which are what its seed was made from.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace

from proxy.cassette.departure import Departure, depart
from proxy.model import Ask, JsonObject, Plan, Rollout, RolloutId
from proxy.record.opening import open_reading
from proxy.record.row_store import StoreReading
from proxy.record.store import RolloutFilter
from proxy.request.conversation import read_conversation

PAGE = 1000
# Runs that a refusal names, the newest first.
MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Track:
    """One recorded call, ready to be compared."""

    call: JsonObject
    history: tuple[str, ...]
    tools_agree_with: tuple[str, str]
    """Hashes of its tools and of its template arguments."""


class Tape:
    """A run out of a store that is only read."""

    def __init__(self, run: str, reading: StoreReading, rollouts: Sequence[Rollout]) -> None:
        self.run = run
        self._reading = reading
        self._by_id = {rollout.rollout_id: rollout for rollout in rollouts}
        self._by_place = {(one.group, one.sample, one.attempt): one for one in rollouts}
        self._tracks: dict[RolloutId, tuple[Track, ...]] = {}
        self._played: set[str] = set()
        self.engine: JsonObject = {}
        """What was recorded of the run's engine, by the first call that knows it."""

    async def close(self) -> None:
        await self._reading.close()

    def recorded(self, rollout_id: RolloutId) -> Rollout | None:
        """The recorded rollout of this id, opened anew."""
        rollout = self._by_id.get(rollout_id)
        if rollout is None:
            return None
        return replace(rollout, state="open", expires_at=None, finished_at=None, token_budget=None, outcome=None)

    async def find(self, plan: Plan) -> JsonObject | Departure:
        """The recorded call that a plan repeats, or how its request departs."""
        rollout, conversation = plan.ask.identity.rollout, plan.ask.conversation
        recorded = self._by_id.get(rollout.rollout_id) or self._by_place.get(
            (rollout.group, rollout.sample, rollout.attempt)
        )
        if recorded is None:
            place = f"group {rollout.group!r}, sample {rollout.sample}, attempt {rollout.attempt}"
            return Departure(f"run {self.run!r} holds neither rollout {rollout.rollout_id!r} nor one at {place}")
        tracks = await self._of(recorded)
        draw = (conversation.context, plan.seed.occurrence, plan.seed.choice)
        for track in tracks:
            seed = track.call["seed"]
            if (track.call["context"], seed["occurrence"], seed["choice"]) == draw:
                self._played.add(track.call["call_id"])
                return track.call
        return self._departure(plan.ask, tracks)

    async def load(self) -> None:
        """Find the engine. Raises ValueError where no call of the run came to an end; it names the runs there are."""
        for rollout in self._by_id.values():
            for track in await self._of(rollout):
                self.engine = track.call["engine"]
                return
        held = "no call that came to an end" if self._by_id else "no rollout"
        runs = await _runs(self._reading)
        raise ValueError(f"cassette: the store holds {held} of run {self.run!r}; {_told_runs(runs)}")

    def _departure(self, ask: Ask, tracks: Sequence[Track]) -> Departure:
        """Against the recorded call that shares most of the conversation; of several the first that was not played."""
        if not tracks:
            return Departure("the recorded rollout made no call")
        asked = ask.conversation.history

        def nearness(track: Track) -> tuple[int, bool]:
            same = sum(1 for one, other in zip(asked, track.history, strict=False) if one == other)
            return same, track.call["call_id"] not in self._played

        nearest = max(tracks, key=nearness)
        agree = nearest.tools_agree_with == (ask.conversation.tools_hash, ask.conversation.template_hash)
        return depart(ask, nearest.call, nearest.history, tools_agree=agree)

    async def _of(self, rollout: Rollout) -> tuple[Track, ...]:
        if rollout.rollout_id not in self._tracks:
            calls = [call async for call in self._calls(rollout.rollout_id)]
            self._tracks[rollout.rollout_id] = tuple(_tracks(calls))
        return self._tracks[rollout.rollout_id]

    async def _calls(self, rollout_id: RolloutId) -> AsyncIterator[JsonObject]:
        cursor: str | None = None
        while True:
            page = await self._reading.calls(rollout_id, cursor, PAGE)
            for call in page.items:
                yield call
            if (cursor := page.cursor) is None:
                return


def _tracks(calls: Sequence[JsonObject]) -> Iterator[Track]:
    """Calls that ended; what a dead proxy left has no reply to play."""
    for call in calls:
        if call["messages"] is None or call["engine"] is None:
            continue
        chat = call.get("chat_request") or call["request"]
        told = read_conversation(call["messages"], chat)
        yield Track(call, told.history, (told.tools_hash, told.template_hash))


async def open_tape(run: str, store: str) -> Tape:
    """A run of the store at a URL, which may be in use.

    Raises ValueError where there is nothing to play, StoreDown and StoreUnreadable.
    """
    reading = await open_reading(store)
    try:
        tape = Tape(run, reading, [rollout async for rollout in _rollouts(run, reading)])
        await tape.load()
    except BaseException:
        await reading.close()
        raise
    return tape


async def _runs(reading: StoreReading) -> list[str]:
    """All runs of the store, the newest first."""
    found = dict.fromkeys([rollout.run async for rollout in _rollouts(None, reading)])
    return list(found)[::-1]


def _told_runs(runs: Sequence[str]) -> str:
    if not runs:
        return "it holds no run at all: `store` names another one than the run was recorded in"
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return f"name one that it holds: {', '.join(runs[:MOST_NAMED])}{more}"


async def _rollouts(run: str | None, reading: StoreReading) -> AsyncIterator[Rollout]:
    """Those of one run, or of all."""
    cursor: str | None = None
    while True:
        page = await reading.rollouts(RolloutFilter(run=run), cursor, PAGE)
        for rollout in page.items:
            yield rollout
        if (cursor := page.cursor) is None:
            return
