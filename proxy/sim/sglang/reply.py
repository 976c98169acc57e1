"""The shapes of SGLang's replies, whole and as events."""

from collections.abc import Iterable, Iterator, Sequence

from proxy.sim.ask import Ask, Event, Setup, Spans, experts_of, fresh_hex
from proxy.sim.draw import Completion
from proxy.sim.reader import Delta, Message, ReplyReader, merged, printed_pieces, read_message
from proxy.sim.template import Json
from proxy.sim.tokens import token_bytes


def whole(ask: Ask, completions: Sequence[Completion], setup: Setup, spans: Spans) -> Json:
    """A `chat.completion`."""
    messages = [read_message(c, ask.parsing, keep_tail=True) for c in completions]
    pairs = zip(completions, messages, strict=True)
    told = [{"version": version, "start": start, "end": end} for version, start, end in spans]
    return {
        "id": ask.id,
        "object": "chat.completion",
        "created": ask.created,
        "model": ask.model,
        "choices": [_choice(ask, place, c, m) for place, (c, m) in enumerate(pairs)],
        "usage": _usage(ask, completions, sum(m.reasoning_tokens for m in messages)),
        "metadata": {"weight_version": spans[-1][0], "weight_versions": told},
        **_sglext(ask, completions, setup),
    }


def events(ask: Ask, completions: Sequence[Completion], setup: Setup) -> list[Event]:
    """Roles, tokens, finishes, ids, usage: each choice's finish waits for all tokens."""
    longest = max(len(c.ids) for c in completions)
    tellers = [_Teller(ask, index, c) for index, c in enumerate(completions)]
    events = [Event(_chunk(ask, _stream_choice(t.index, {"role": "assistant", "content": ""})), 0) for t in tellers]
    for start in range(0, longest, setup.tokens_per_event):
        for teller in tellers:
            events.extend(teller.tell(start, start + setup.tokens_per_event))
    for teller in tellers:
        events.extend(teller.flush())
    events.extend(Event(teller.finish(), longest) for teller in tellers)
    if told := _sglext(ask, completions, setup):
        framed = ask.headers.get("x-sglext-ids-framed") == "1"
        payload = {**_chunk(ask), "usage": None, **told}
        events.append(Event(payload, longest, "sglext_ids" if framed else None))
    if ask.include_usage:
        usage = _usage(ask, completions, sum(t.thoughts for t in tellers))
        events.append(Event({**_chunk(ask), "usage": usage}, longest))
    return events


def _choice(ask: Ask, index: int, completion: Completion, message: Message) -> Json:
    called = bool(message.calls)
    ids: Json = {}
    if ask.body.get("return_token_ids") or ask.body.get("return_prompt_token_ids"):
        ids["prompt_token_ids"] = list(ask.prompt)
    if ask.body.get("return_token_ids"):
        ids["response_token_ids"] = list(completion.ids)
    if ask.body.get("return_meta_info"):
        ids["meta_info"] = _meta_info(completion)
    return {
        "index": index,
        "message": _message(message),
        "logprobs": _logprobs(ask, completion, range(len(completion.ids))),
        "finish_reason": _finish(completion, called=called),
        "matched_stop": None if called else completion.matched,
        **ids,
    }


def _meta_info(completion: Completion) -> Json:
    """As the native route tells it: [logprob, id, text], texts left out."""
    sampled = zip(completion.logprobs, completion.ids, strict=True)
    return {
        "output_token_logprobs": [[logprob, token, None] for logprob, token in sampled],
        "output_top_logprobs": [[[logprob, token, None] for token, logprob in tops] for tops in completion.tops],
    }


def _message(message: Message) -> Json:
    """Words before a call lose their outer blanks; an unfinished call is dropped."""
    calls = [
        {"id": _call_id(), "index": place, "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(message.calls)
    ]
    return {
        "role": "assistant",
        "content": message.content.strip() if calls else message.content,
        "reasoning_content": message.reasoning or None,
        **({"tool_calls": calls} if calls else {}),
    }


def _call_id() -> str:
    return f"call_{fresh_hex(24)}"


def _finish(completion: Completion, *, called: bool) -> str:
    return "tool_calls" if called and completion.finish == "stop" else completion.finish


def _logprobs(ask: Ask, completion: Completion, places: Sequence[int]) -> Json | None:
    if ask.logprobs is None:
        return None
    content = []
    for place in places:
        token_id, logprob = completion.ids[place], completion.logprobs[place]
        top = [_token(i, lp) for i, lp in completion.tops[place]]
        content.append({**_token(token_id, logprob), "top_logprobs": top})
    return {"content": content}


def _token(token_id: int, logprob: float) -> Json:
    printed = token_bytes(token_id)
    return {"token": printed.decode(errors="replace"), "bytes": list(printed), "logprob": logprob}


def _usage(ask: Ask, completions: Sequence[Completion], thoughts: int) -> Json:
    prompt_tokens, completion_tokens = len(ask.prompt), sum(len(c.ids) for c in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": thoughts,
        "completion_tokens_details": {"reasoning_tokens": thoughts} if thoughts else None,
    }


def _sglext(ask: Ask, completions: Sequence[Completion], setup: Setup) -> Json:
    """The ids asked for by the body or by headers, the first choice's experts, or nothing."""
    told: Json = {}
    if ask.body.get("return_input_ids_in_sglext") or ask.headers.get("x-sglext-return-input-ids") == "1":
        told["input_ids"] = list(ask.prompt)
    if ask.body.get("return_output_ids_in_sglext") or ask.headers.get("x-sglext-return-output-ids") == "1":
        told["output_ids"] = [list(c.ids) for c in completions]
    if ask.body.get("return_routed_experts") and setup.mixture:
        told["routed_experts"] = experts_of(completions[0].ids)
    return {"sglext": told} if told else {}


def _chunk(ask: Ask, *choices: Json) -> Json:
    return {
        "id": ask.id,
        "object": "chat.completion.chunk",
        "created": ask.created,
        "model": ask.model,
        "choices": list(choices),
    }


def _stream_choice(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {
        "index": index,
        "delta": {"reasoning_content": None, **delta},
        "logprobs": logprobs,
        "finish_reason": None,
        "matched_stop": None,
    }


class _Teller:
    """Tells one choice, token by token."""

    def __init__(self, ask: Ask, index: int, completion: Completion) -> None:
        self.index = index
        self._ask, self._completion = ask, completion
        self._is_aborted = completion.finish == "abort"
        self._texts = printed_pieces(completion, keep_tail=not self._is_aborted)
        self._reader = ReplyReader(ask.parsing)
        self._called = False

    @property
    def thoughts(self) -> int:
        """Reasoning tokens told so far."""
        return self._reader.reasoning_tokens

    def tell(self, start: int, stop: int) -> list[Event]:
        """The events of some tokens: reasoning or content carries their logprobs, else an extra event does."""
        places = range(start, min(stop, len(self._completion.ids)))
        read = [d for p in places for d in self._reader.feed(self._completion.ids[p], self._texts[p])]
        untold = _logprobs(self._ask, self._completion, places) if places else None
        return [Event(payload, places.stop) for payload in self._payloads(read, untold)]

    def flush(self) -> list[Event]:
        """The event by which an abort tells what was waited with."""
        if not self._is_aborted:
            return []
        whole = "".join(printed_pieces(self._completion, keep_tail=True))
        tail = whole[len("".join(self._texts)) :]
        return [Event(payload, len(self._completion.ids)) for payload in self._payloads(self._reader.cut(tail), None)]

    def _payloads(self, read: Iterable[Delta], untold: Json | None) -> Iterator[Json]:
        for delta in merged(list(read)):
            if delta.kind in ("call", "arguments"):
                yield self._call(delta)
                continue
            name = "content" if delta.kind == "content" else "reasoning_content"
            yield _chunk(self._ask, _stream_choice(self.index, {name: delta.text}, untold))
            untold = None
        if untold is not None:
            yield _chunk(self._ask, _stream_choice(self.index, {}, untold))

    def _call(self, delta: Delta) -> Json:
        """A piece of a tool call; these events come from another encoder and spell every null out."""
        opens = delta.kind == "call"
        self._called = True
        call = {
            "id": _call_id() if opens else None,
            "index": delta.index,
            "type": "function",
            "function": {"name": delta.text if opens else None, "arguments": "" if opens else delta.text},
        }
        spelled = {"role": None, "content": None, "tool_calls": [call]}
        return {**_chunk(self._ask, _stream_choice(self.index, spelled)), "usage": None}

    def finish(self) -> Json:
        """The closing event of the choice."""
        reason = _finish(self._completion, called=self._called)
        ending = {"finish_reason": reason, "matched_stop": self._completion.matched}
        return _chunk(self._ask, {**_stream_choice(self.index, {}), **ending})
