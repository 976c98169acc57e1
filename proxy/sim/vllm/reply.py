"""The shapes of vLLM's replies, whole and as events."""

from collections.abc import Sequence

from proxy.sim.ask import Ask, Event, Setup, fresh_hex
from proxy.sim.draw import Completion
from proxy.sim.reader import Delta, Message, ReplyReader, merged, printed_pieces, read_message
from proxy.sim.template import Json
from proxy.sim.tokens import TURN_END, pieces, token_bytes

FINGERPRINT = "vllm-0.32.0-simulated"


def whole(ask: Ask, completions: Sequence[Completion]) -> Json:
    """A `chat.completion`."""
    messages = [read_message(c, ask.parsing, keep_tail=False) for c in completions]
    thoughts = sum(m.reasoning_tokens for m in messages)
    usage = _usage(ask, sum(len(c.ids) for c in completions), thoughts, details=True)
    pairs = zip(completions, messages, strict=True)
    return {
        "id": ask.id,
        "object": "chat.completion",
        "created": ask.created,
        "model": ask.model,
        "choices": [_choice(ask, place, c, m) for place, (c, m) in enumerate(pairs)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage,
        "prompt_logprobs": None,
        "prompt_token_ids": list(ask.prompt) if ask.body.get("return_token_ids") else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def events(ask: Ask, completions: Sequence[Completion], setup: Setup) -> list[Event]:
    """`chat.completion.chunk`s: a role for each choice, then the tokens in turn, then the usage."""
    events = [Event(_first(ask, index), 0) for index in range(len(completions))]
    tellers = [_Teller(ask, index, c, setup) for index, c in enumerate(completions)]
    size = setup.tokens_per_event
    longest = max(len(c.ids) for c in completions)
    for start in range(0, max(longest, 1), size):
        for teller in tellers:
            events.extend(teller.tell(start))
    events.extend(teller.tell_abort() for teller in tellers if teller.is_aborted and not teller.is_mute)
    if ask.include_usage:
        total, thoughts = sum(len(c.ids) for c in completions), sum(t.thoughts for t in tellers)
        usage = {"usage": _usage(ask, total, thoughts), "system_fingerprint": FINGERPRINT}
        events.append(Event({**_chunk(ask, []), **usage}, longest))
    return events


def _hides(ask: Ask) -> bool:
    """With reasoning left out, a parser at work takes ids and logprobs with it."""
    return ask.body.get("include_reasoning") is False and ask.parsing.is_on


def _choice(ask: Ask, index: int, completion: Completion, message: Message) -> Json:
    hidden = _hides(ask)
    places, texts = range(len(completion.ids)), pieces(completion.ids, keep_tail=False)
    return {
        "index": index,
        "message": message_of(ask.body, message),
        "logprobs": None if hidden else _logprobs(ask, completion, places, texts),
        "finish_reason": _finish(ask, completion, called=bool(message.calls)),
        "stop_reason": stop_reason(ask, completion),
        "token_ids": list(completion.ids) if ask.body.get("return_token_ids") and not hidden else None,
        "routed_experts": None,
    }


def message_of(body: Json, message: Message) -> Json:
    """The message of a reply to this request; an unfinished call stays in the content."""
    content = message.content + message.half_call
    calls = [
        {"id": _call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in message.calls
    ]
    shows = body.get("include_reasoning") is not False
    return {
        "role": "assistant",
        "content": content or None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": calls} if calls else {}),
        "reasoning": (message.reasoning or None) if shows else None,
    }


def _call_id() -> str:
    return f"chatcmpl-tool-{fresh_hex(16)}"


def _finish(ask: Ask, completion: Completion, *, called: bool) -> str:
    """A call turns `stop` into `tool_calls`, unless the request named the function."""
    named = isinstance(ask.body.get("tool_choice"), dict)
    return "tool_calls" if called and completion.finish == "stop" and not named else completion.finish


def stop_reason(ask: Ask, completion: Completion) -> int | str | None:
    """The model's own end token goes without saying."""
    is_own = completion.matched == TURN_END and TURN_END not in ask.limits.stop_token_ids
    return None if is_own else completion.matched


def _logprobs(ask: Ask, completion: Completion, places: Sequence[int], texts: Sequence[str]) -> Json | None:
    if ask.logprobs is None:
        return None
    return {
        "content": [
            {**_token(texts[p], completion.logprobs[p]), "top_logprobs": _top(ask, completion, texts[p], p)}
            for p in places
        ]
    }


def _top(ask: Ask, completion: Completion, text: str, place: int) -> list[Json]:
    """The token itself, then the likeliest others, as many as were asked for."""
    own = completion.ids[place]
    others = [told for told in completion.tops[place] if told[0] != own]
    ranked = [(own, completion.logprobs[place]), *others][: ask.logprobs or 0]
    return [_token(text if i == own else token_bytes(i).decode(errors="replace"), lp) for i, lp in ranked]


def _token(text: str, logprob: float) -> Json:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _usage(ask: Ask, completion_tokens: int, thoughts: int, *, details: bool = False) -> Json:
    prompt_tokens = len(ask.prompt)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        **({"prompt_tokens_details": None} if details else {}),
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }


def _chunk(ask: Ask, choices: list[Json]) -> Json:
    return {
        "id": ask.id,
        "object": "chat.completion.chunk",
        "created": ask.created,
        "model": ask.model,
        "choices": choices,
    }


def _first(ask: Ask, index: int) -> Json:
    delta = {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    usage = {"usage": _usage(ask, 0, 0)} if ask.continuous_usage else {}
    ids = list(ask.prompt) if ask.body.get("return_token_ids") else None
    return {**_chunk(ask, [choice]), **usage, "prompt_token_ids": ids, "prompt_text": None}


class _Teller:
    """Tells one choice, some tokens at a time."""

    def __init__(self, ask: Ask, index: int, completion: Completion, setup: Setup) -> None:
        self._ask, self._index, self._completion = ask, index, completion
        self._size = setup.tokens_per_event
        self._texts = printed_pieces(completion, keep_tail=False)
        self._shown = pieces(completion.ids, keep_tail=False)
        self._reader = ReplyReader(ask.parsing)
        self._called = False

    @property
    def thoughts(self) -> int:
        """Reasoning tokens told so far."""
        return self._reader.reasoning_tokens

    @property
    def is_aborted(self) -> bool:
        """The choice was ended from outside, which takes an event without tokens."""
        return self._completion.finish == "abort"

    @property
    def is_mute(self) -> bool:
        """The choice was ended before its first token: then not even that is told."""
        return self.is_aborted and not self._completion.ids

    def tell(self, start: int) -> list[Event]:
        """The event for the tokens from here on; none once the choice is over, or when it would be empty."""
        total = len(self._completion.ids)
        if start >= max(total, 1) or self.is_mute:
            return []
        places = range(start, min(start + self._size, total))
        deltas = [d for p in places for d in self._reader.feed(self._completion.ids[p], self._texts[p])]
        self._called = self._called or any(d.kind == "call" for d in deltas)
        is_last = places.stop == total and not self.is_aborted
        choice = self._choice(_delta(self._ask, merged(deltas)), places, is_last=is_last)
        tells = choice["delta"] or is_last or choice["logprobs"] is not None or choice["token_ids"] is not None
        return [self._event(choice, places.stop)] if tells else []

    def tell_abort(self) -> Event:
        """The event that ends an aborted choice."""
        end = len(self._completion.ids)
        return self._event(self._choice({}, range(end, end), is_last=True), end)

    def _event(self, choice: Json, told: int) -> Event:
        payload = _chunk(self._ask, [choice])
        if self._ask.continuous_usage:
            payload["usage"] = _usage(self._ask, told, self.thoughts)
        if choice["finish_reason"] is not None and not self._ask.include_usage:
            payload["system_fingerprint"] = FINGERPRINT
        return Event(payload, told)

    def _choice(self, delta: Json, places: range, *, is_last: bool) -> Json:
        ask, completion, hidden = self._ask, self._completion, _hides(self._ask)
        finish = _finish(ask, completion, called=self._called) if is_last else None
        asked = ask.body.get("return_token_ids") and not hidden
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": None if hidden or not places else _logprobs(ask, completion, places, self._shown),
            "finish_reason": finish,
            **({"stop_reason": stop_reason(ask, completion)} if is_last else {}),
            "token_ids": list(completion.ids[places.start : places.stop]) if asked else None,
        }


def _delta(ask: Ask, deltas: Sequence[Delta]) -> Json:
    result: Json = {}
    for delta in deltas:
        match delta.kind:
            case "content":
                result["content"] = result.get("content", "") + delta.text
            case "reasoning":
                if ask.body.get("include_reasoning") is not False:
                    result["reasoning"] = result.get("reasoning", "") + delta.text
            case "call":
                call = {"id": _call_id(), "type": "function", "index": delta.index}
                result.setdefault("tool_calls", []).append({**call, "function": {"name": delta.text}})
            case "arguments":
                call = {"index": delta.index, "function": {"arguments": delta.text}}
                result.setdefault("tool_calls", []).append(call)
    return result
