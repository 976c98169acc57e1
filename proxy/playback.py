"""A recorded reply in the place of an engine's: the calls of a cassette, or how a request departs from them."""

import structlog

from proxy.cassette.departure import Departure
from proxy.cassette.tape import Tape
from proxy.exchange import Exchanged
from proxy.model import Failure, JsonObject, Outcome
from proxy.recorded import completion_of, whole_event
from proxy.running import Running

log = structlog.get_logger()


async def play_all(running: Running, tape: Tape) -> tuple[Exchanged, ...]:
    """The recorded outcome of every choice; a reply is held until the turn is over, like an engine's."""
    return tuple([await _play(running, tape, place) for place in range(len(running.head.plans))])


async def _play(running: Running, tape: Tape, place: int) -> Exchanged:
    plan = running.head.plans[place]
    found = await tape.find(plan)
    if isinstance(found, Departure):
        log.warning("the harness departs", rollout_id=plan.ask.identity.rollout_id, departure="\n" + found.text)
        return Exchanged(plan, Failure("cassette_departure", 400, found.text, may_retry=False), None)
    outcome = outcome_of(found)
    if not isinstance(outcome, Failure):
        running.hold(plan.seed.choice, whole_event(found))
    return Exchanged(plan, outcome, None)


def outcome_of(call: JsonObject) -> Outcome:
    """What a recorded call came to; one that failed fails again, in the same words and after as much of its reply.

    A draw that broke after its first token is given up after some tries, here as it was when it was recorded.
    """
    told = call["failure"]
    if told is None:
        return completion_of(call)
    partial = None if call["message"] is None else completion_of(call)
    return Failure(
        kind=told["kind"],
        status=told["status"],
        message=told["message"],
        param=told["param"],
        may_retry=told["may_retry"],
        retry_after_s=told["retry_after_s"],
        partial=partial,
    )
