"""The shapes of SGLang's plain completions, whole and as events."""

from collections.abc import Sequence

from proxy.sim.ask import Ask, Event, Setup, Spans
from proxy.sim.draw import Completion
from proxy.sim.reader import printed_pieces
from proxy.sim.template import Json
from proxy.sim.tokens import token_bytes


def whole(ask: Ask, completions: Sequence[Completion], spans: Spans) -> Json:
    """A `text_completion`."""
    told = [{"version": version, "start": start, "end": end} for version, start, end in spans]
    return {
        **_head(ask),
        "choices": [_whole_choice(ask, place, one) for place, one in enumerate(completions)],
        "usage": _usage(ask, completions),
        "metadata": {"weight_version": spans[-1][0], "weight_versions": told},
    }


def events(ask: Ask, completions: Sequence[Completion], setup: Setup) -> list[Event]:
    """An event for some tokens of each choice in turn, then the usage."""
    size, longest = setup.tokens_per_event, max(len(one.ids) for one in completions)
    texts = [printed_pieces(one, keep_tail=True) for one in completions]
    told = list[Event]()
    for start in range(0, max(longest, 1), size):
        for index, one in enumerate(completions):
            places = range(start, min(start + size, len(one.ids)))
            if places or not start:
                text = "".join(texts[index][places.start : places.stop])
                told.append(Event(_piece(ask, index, one, places, text), min(start + size, longest)))
    if ask.include_usage:
        told.append(Event({**_head(ask), "choices": [], "usage": _usage(ask, completions)}, longest))
    return told


def _piece(ask: Ask, index: int, completion: Completion, places: range, text: str) -> Json:
    choice = _choice(ask, index, completion, places, text)
    if places.start:
        choice.pop("prompt_token_ids", None)
    if places.stop < len(completion.ids):
        choice |= {"finish_reason": None, "matched_stop": None}
    return {**_head(ask), "choices": [choice], "usage": None}


def _whole_choice(ask: Ask, index: int, completion: Completion) -> Json:
    text = "".join(printed_pieces(completion, keep_tail=True))
    return _choice(ask, index, completion, range(len(completion.ids)), text)


def _choice(ask: Ask, index: int, completion: Completion, places: range, text: str) -> Json:
    ids: Json = {}
    if ask.body.get("return_token_ids"):
        ids = {
            "token_ids": list(completion.ids[places.start : places.stop]),
            "prompt_token_ids": list(ask.prompt),
        }
    return {
        "index": index,
        "text": text,
        "logprobs": _logprobs(ask, completion, places),
        "finish_reason": completion.finish,
        "matched_stop": completion.matched,
        **ids,
    }


def _logprobs(ask: Ask, completion: Completion, places: range) -> Json | None:
    """Lists side by side; offsets are not counted."""
    if ask.logprobs is None:
        return None
    tops = [
        {token_bytes(token).decode(errors="replace"): logprob for token, logprob in completion.tops[place]}
        for place in places
        if completion.tops
    ]
    return {
        "text_offset": [-1] * len(places),
        "token_logprobs": [completion.logprobs[place] for place in places],
        "tokens": [token_bytes(completion.ids[place]).decode(errors="replace") for place in places],
        "top_logprobs": tops if ask.logprobs else [],
    }


def _usage(ask: Ask, completions: Sequence[Completion]) -> Json:
    prompt, sampled = len(ask.prompt), sum(len(one.ids) for one in completions)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + sampled,
        "completion_tokens": sampled,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def _head(ask: Ask) -> Json:
    return {"id": ask.id, "object": "text_completion", "created": ask.created, "model": ask.model}
