"""The shapes of vLLM's plain completions, whole and as events."""

from collections.abc import Sequence

from proxy.sim.ask import Ask, Event, Setup
from proxy.sim.draw import Completion
from proxy.sim.reader import printed_pieces
from proxy.sim.scoring import score
from proxy.sim.template import Json
from proxy.sim.tokens import decode, pieces, token_bytes
from proxy.sim.vllm.reply import FINGERPRINT, stop_reason


def whole(ask: Ask, completions: Sequence[Completion]) -> Json:
    """A `text_completion`."""
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return {
        **_head(ask),
        "choices": [_whole_choice(ask, place, one) for place, one in enumerate(completions)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(ask, completions) | details,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def events(ask: Ask, completions: Sequence[Completion], setup: Setup) -> list[Event]:
    """An event for some tokens of each choice in turn, then the usage."""
    size, longest = setup.tokens_per_event, max(len(one.ids) for one in completions)
    texts = [printed_pieces(one, keep_tail=False) for one in completions]
    told = list[Event]()
    for start in range(0, max(longest, 1), size):
        for index, one in enumerate(completions):
            places = range(start, min(start + size, len(one.ids)))
            if places or not start:
                text = "".join(texts[index][places.start : places.stop])
                told.append(Event(_piece(ask, index, one, places, text), min(start + size, longest)))
    if ask.include_usage:
        usage = {"choices": [], "usage": _usage(ask, completions), "system_fingerprint": FINGERPRINT}
        told.append(Event({**_head(ask), **usage}, longest))
    return told


def _whole_choice(ask: Ask, index: int, completion: Completion) -> Json:
    return {
        "index": index,
        "text": "".join(printed_pieces(completion, keep_tail=False)),
        "logprobs": _logprobs(ask, completion, range(len(completion.ids))),
        "finish_reason": completion.finish,
        "stop_reason": stop_reason(ask, completion),
        "token_ids": list(completion.ids) if ask.body.get("return_token_ids") else None,
        "prompt_logprobs": _prompt_logprobs(ask),
        "prompt_token_ids": list(ask.prompt) if ask.body.get("return_token_ids") else None,
        "routed_experts": None,
    }


def _prompt_logprobs(ask: Ask) -> list[Json | None] | None:
    """At each place but the first the token that stands there, by its id; alternatives are not simulated."""
    if ask.body.get("prompt_logprobs") is None:
        return None
    scores = zip(ask.prompt[1:], score(ask.prompt, ask.model)[1:], strict=True)
    told = ({"logprob": logprob, "rank": 1, "decoded_token": decode((token,))} for token, logprob in scores)
    return [None, *({str(token): one} for token, one in zip(ask.prompt[1:], told, strict=True))]


def _piece(ask: Ask, index: int, completion: Completion, places: range, text: str) -> Json:
    is_last, gives_ids = places.stop == len(completion.ids), bool(ask.body.get("return_token_ids"))
    choice = {
        "index": index,
        "text": text,
        "logprobs": _logprobs(ask, completion, places),
        "finish_reason": completion.finish if is_last else None,
        "stop_reason": stop_reason(ask, completion) if is_last else None,
        "prompt_token_ids": list(ask.prompt) if gives_ids and not places.start else None,
        "token_ids": list(completion.ids[places.start : places.stop]) if gives_ids else None,
    }
    return {**_head(ask), "choices": [choice]}


def _logprobs(ask: Ask, completion: Completion, places: range) -> Json | None:
    """Lists side by side; each token is among its own alternatives."""
    if ask.logprobs is None:
        return None
    texts = pieces(completion.ids, keep_tail=False)
    return {
        "text_offset": [sum(map(len, texts[:place])) for place in places],
        "token_logprobs": [completion.logprobs[place] for place in places],
        "tokens": [texts[place] for place in places],
        "top_logprobs": [_tops(ask, completion, texts[place], place) for place in places],
    }


def _tops(ask: Ask, completion: Completion, text: str, place: int) -> Json:
    others = completion.tops[place][: ask.logprobs or 0] if completion.tops else ()
    told = {token_bytes(token).decode(errors="replace"): logprob for token, logprob in others}
    return {text: completion.logprobs[place], **told}


def _usage(ask: Ask, completions: Sequence[Completion]) -> Json:
    prompt, sampled = len(ask.prompt), sum(len(one.ids) for one in completions)
    return {"prompt_tokens": prompt, "total_tokens": prompt + sampled, "completion_tokens": sampled}


def _head(ask: Ask) -> Json:
    return {"id": ask.id, "object": "text_completion", "created": ask.created, "model": ask.model}
