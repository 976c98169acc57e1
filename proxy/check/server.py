"""Checks of what the server says of itself, without a token drawn."""

from proxy.check.bench import Bench, Seen
from proxy.engine.answer import decoded_text, rendered_ids, told_error
from proxy.engine.connections import KEEPALIVE_EXPIRY_S
from proxy.errors import EngineFault

# Somewhat longer than the proxy itself keeps an idle connection.
IDLE_S = KEEPALIVE_EXPIRY_S + 0.5
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}

# Words of a message in the middle of a conversation.
LATER = "From here on, mind the seventh gap."


async def identity(bench: Bench) -> Seen:
    """Kind, version, model, context and vocabulary."""
    facts = bench.facts
    told = f"{facts.kind} {facts.version}, model {facts.model}, context {facts.context_length or 'unknown'}"
    if facts.vocabulary is None:
        return Seen("warn", f"{told}; the size of its vocabulary is unknown, so no id can be checked")
    return Seen("pass", f"{told}, vocabulary {facts.vocabulary}")


async def rendering(bench: Bench) -> Seen:
    """Whether it renders on request."""
    if bench.facts.fingerprint is None:
        return Seen("warn", "/tokenize does not render messages: no fingerprint, and no exact prefixes")
    return Seen("pass", f"/tokenize renders messages and tools; fingerprint {bench.facts.fingerprint[7:19]}")


async def later_system(bench: Bench) -> Seen:
    """Whether the template prints a system message that is not the first, or at least a user's in its place."""
    if bench.facts.fingerprint is None:
        return Seen("skip", "/tokenize does not render messages")
    refused = await _refused_later(bench, "system")
    if refused is None:
        return Seen("pass", "a system message behind the first words is printed where it stands")
    if (as_users := await _refused_later(bench, "user")) is not None:
        return Seen("warn", f"{refused}; told as the user's: {as_users}", "serve another chat template")
    if bench.later_system == "as_user":
        return Seen("pass", f"{refused}; it is told as the user's")
    return Seen("warn", refused)


async def _refused_later(bench: Bench, role: str) -> str | None:
    """What the template has against a message of this role behind the first words; None where it prints it."""
    hello = {"role": "user", "content": "Hello."}
    said = {"role": "assistant", "content": "Hello."}
    answer = await bench.ask("/tokenize", {"messages": [hello, said, {"role": role, "content": LATER}, hello]})
    if answer.status == 400:
        return f"refused: {told_error(answer)[:120]}"
    ids = rendered_ids(answer) or ()
    text = decoded_text(await bench.ask("/detokenize", {"tokens": list(ids), "skip_special_tokens": False}))
    if text is None:
        raise EngineFault("engine_malformed", 502, f"/tokenize or /detokenize answered nothing of use: {answer.text}")
    return None if LATER in text else "left out without a word"


async def parsers(bench: Bench) -> Seen:
    """Whether tool calls and reasoning come as fields."""
    if bench.facts.kind == "sglang":
        names = {"tool": "tool_call_parser", "reasoning": "reasoning_parser"}
        found = {word: bench.facts.details.get(name) for word, name in names.items()}
        told = ", ".join(f"{word} {name or 'none'}" for word, name in found.items())
        return Seen("pass" if found["tool"] else "warn", told)
    refused = await bench.refused_ask({"tools": [TOOL], "tool_choice": "auto"})
    if refused is None or "logit_bias" in refused:
        return Seen("pass" if refused else "skip", "tools are taken" if refused else "the engine did not tell")
    return Seen("warn", f"tools are refused: {refused[:120]}")


async def weights(bench: Bench) -> Seen:
    """Where the version of the weights is told."""
    if bench.facts.kind == "sglang":
        version = bench.facts.details.get("weight_version")
        return Seen("pass" if version else "warn", f"/model_info tells {version!r}" if version else "not told")
    told = await bench.get("/weight_info")
    if isinstance(told, dict) and told.get("weight_version") is not None:
        return Seen("pass", f"/weight_info tells {told['weight_version']!r}")
    return Seen("warn", "not told outside the development mode")


async def truncation(bench: Bench) -> Seen:
    """Whether prompts that are too long are refused."""
    if bench.facts.auto_truncates:
        return Seen("fail", "prompts that are too long are cut without a word")
    return Seen("pass", "prompts that are too long are refused")


async def keep_alive(bench: Bench) -> Seen:
    """Whether idle connections live longer than the proxy keeps them."""
    if await bench.upstream.stays_open(bench.lab.engine.url, IDLE_S):
        return Seen("pass", f"idle connections live for {IDLE_S:g} s and more")
    return Seen("warn", f"idle connections are closed within {IDLE_S:g} s, which now and then meets a call")
