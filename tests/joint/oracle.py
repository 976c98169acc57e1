"""The one right tail of a case, found without any of the proxy's ideas.

The request is rendered whole, with neutral words wherever a text looks like markup, and cut before the header of the
first new message, which a nonce finds. What the family prints between an end token and a header was written by hand
(`families`). Where no tail is right the oracle says why; the proxy must refuse then.

A turn that was cut inside a call has a right tail only if the half call was echoed as text: then a fresh render holds
it too, and nothing that was sampled is lost.
"""

import re
from dataclasses import dataclass

from proxy.model import JsonObject
from tests.joint.case import Case
from tests.joint.texts import NONCE

# Stands in the place of a new text that is blank, so that it can be found.
STAND_IN = "noncezzz"


@dataclass(frozen=True, slots=True)
class MustRefuse:
    """No tail is right."""

    why: str


def right_tail(case: Case) -> str | MustRefuse:
    """The tail's text, markup and all."""
    if why := _is_hopeless(case):
        return MustRefuse(why)
    filled = _blanks_filled(case.neutral, case.stop)
    text = case.engine.text(filled)
    header = _first_header(case, text, filled)
    if isinstance(header, MustRefuse):
        return header
    plain = case.engine.text(case.neutral)
    if plain[: header.start()] != text[: header.start()]:
        return MustRefuse("a blank text changes what stands before it")
    tail = _from_the_end_on(case, plain, header)
    return tail if isinstance(tail, MustRefuse) else case.literals.real(tail)


def _is_hopeless(case: Case) -> str | None:
    if case.stop == len(case.messages):
        return "nothing is new"
    if "'type': 'image" in str(case.messages):
        return "an image is among the messages"
    if any(message["role"] == "assistant" for message in case.messages[case.stop :]):
        return "an assistant's turn is among the new messages"
    if case.finish == "length in reasoning":
        return "cut in reasoning"
    if case.finish == "length in a call" and not case.whole_echo:
        return "cut in a call, and half of it was not echoed"
    return None


def _blanks_filled(messages: tuple[JsonObject, ...], stop: int) -> tuple[JsonObject, ...]:
    """A stand-in with its own last letter for each new message without a nonce."""
    filled = list(messages)
    for place, letter in zip(range(stop, len(filled)), "abcdefgh", strict=False):
        if not NONCE.search(str(filled[place]["content"])):
            filled[place] = {**filled[place], "content": STAND_IN[:-1] + letter}
    return tuple(filled)


def _first_header(case: Case, text: str, messages: tuple[JsonObject, ...]) -> re.Match[str] | MustRefuse:
    """The header before the earliest new message, if all of them and nothing else stand behind the parent's turn."""
    old = {nonce for message in messages[: case.stop] for nonce in NONCE.findall(str(message))}
    seen_last = max((found.end() for found in NONCE.finditer(text) if found[0] in old), default=0)
    places = list[int]()
    for message in messages[case.stop :]:
        for nonce in NONCE.findall(str(message["content"])):
            spots = [spot.start() for spot in re.finditer(nonce, text)]
            if not spots:
                return MustRefuse("a new message is not printed")
            if spots[0] < seen_last:
                return MustRefuse("old text stands behind new text")
            places += spots
    headers = [found for found in re.finditer(case.family.header, text) if found.end() <= min(places)]
    return headers[-1] if headers else MustRefuse("no header before the new message")


def _from_the_end_on(case: Case, text: str, header: re.Match[str]) -> str | MustRefuse:
    """What follows the turn's end: the joint, the new messages, the generation prompt."""
    family, before, behind = case.family, text[: header.start()], text[header.start() :]
    if case.end is None:
        close = family.text_end if family.close is None else family.close
        printed = close + next((family.joints[end] for end in family.joints if close.endswith(end)), "")
        return printed + behind if before.endswith(printed) else MustRefuse("the template does not close the turn")
    if case.end in family.header_ends and behind.startswith(case.end):
        return behind.removeprefix(case.end)
    for end in (case.end, family.pairs.get(case.end)):
        if end in family.joints and before.endswith(end + family.joints[end]):
            return family.joints[end] + behind
    return MustRefuse("the template does not print that end there")
