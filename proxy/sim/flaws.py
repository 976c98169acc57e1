"""Replies with something missing or wrong in them."""

from collections.abc import Iterator
from dataclasses import replace

from proxy.sim.ask import Event
from proxy.sim.script import FaultKind
from proxy.sim.template import Json


def spoil(events: list[Event], flaw: FaultKind) -> list[Event]:
    """The same reply with the flaw. A whole reply is one event."""
    match flaw:
        case "no_ids":
            return _without_ids(events)
        case "no_usage":
            kept = [e for e in events if e.payload.get("choices") or "sglext" in e.payload]
            return [replace(e, payload=_without(e.payload, "usage")) for e in kept]
        case "wrong_count":
            _drop_last_id(events)
        case "no_logprobs":
            for choice in _choices(events):
                choice["logprobs"] = None
        case "null_logprob":
            _drop_first_logprob([c["logprobs"] for c in _choices(events) if c.get("logprobs")])
        case "no_finish":
            for choice in _choices(events):
                choice["finish_reason"] = None
    return events


def _choices(events: list[Event]) -> Iterator[Json]:
    for event in events:
        yield from event.payload.get("choices", ())


def _without(payload: Json, *names: str) -> Json:
    return {name: value for name, value in payload.items() if name not in names}


def _without_ids(events: list[Event]) -> list[Event]:
    for choice in _choices(events):
        for name in ("token_ids", "response_token_ids", "prompt_token_ids"):
            choice.pop(name, None)
    kept = [e for e in events if not (e.payload.get("sglext") and not e.payload.get("choices"))]
    return [replace(e, payload=_without(e.payload, "prompt_token_ids", "sglext")) for e in kept]


def _drop_first_logprob(told: list[Json]) -> None:
    if told and "content" in told[0]:
        told[0]["content"][0]["logprob"] = None
    elif told:
        told[0]["token_logprobs"][0] = None


def _drop_last_id(events: list[Event]) -> None:
    lists: dict[str, list[int]] = {}
    for event in events:
        for choice in event.payload.get("choices", ()):
            lists.update({n: choice[n] for n in ("token_ids", "response_token_ids") if choice.get(n)})
        output = event.payload.get("sglext", {}).get("output_ids")
        if output and output[0]:
            lists["output_ids"] = output[0]
    for ids in lists.values():
        ids.pop()
