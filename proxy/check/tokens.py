"""Checks of what comes back: ids, exact prompts, logprobs, and whether all that is sent arrives."""

from collections.abc import Iterator

from proxy.check.bench import Bench, Seen
from proxy.engine.fit import reshapes
from proxy.engine.lab import HOT, Draw
from proxy.engine.proof import LISTED, SEED, has_taken
from proxy.model import Completion, Profile

# From here on a server is known to know the fields that calls rest on.
KNOWS_THE_FIELDS = {"vllm": (0, 32), "sglang": (0, 5, 23), "nemo_rl": (10**9,)}
# Tokens that are drawn to see whether top_k = 1 arrives.
GREEDY_TOKENS = 6
# Tokens, and how many listed beside each, that show a filter which nobody asked for.
SPREAD_TOKENS, SPREAD_LISTED = 32, 20
# Fewer tokens beyond the likeliest than this, of a call with nothing filtered, show nothing.
LEAST_SPREAD = 4
PINNED_BUT_TEMPERATURE = tuple(name for name in HOT.pinned() if name != "temperature")


async def ids(bench: Bench) -> Seen:
    """Whether ids and logprobs came whole, streamed and not."""
    told = [
        f"{name}: {', '.join(reply.capture_gaps)}"
        for name, reply in (("whole", bench.drawn.whole), ("streamed", bench.drawn.streamed))
        if not reply.captured
    ]
    if told:
        return Seen("fail", "; ".join(told))
    count = len(bench.drawn.whole.tokens.completion_ids)
    return Seen("pass", f"{count} ids with as many logprobs, whole and streamed, by the engine's own count")


async def exact_prompts(bench: Bench) -> Seen:
    """Whether a prompt of exact ids came back as it was given."""
    taken = has_taken(bench.drawn)
    if taken:
        return Seen("pass", "the prompt that was given is the one that came back")
    if taken is None and bench.facts.takes_exact_prompts is not False:
        return Seen("skip", "nothing whole had come back to go on from")
    return Seen("warn", "the ids that were given are passed by in silence")


async def path(bench: Bench) -> Seen:
    """Whether everything that is sent arrives: fields that this version knows, and the pin."""
    lost = tuple(_unheard(bench))
    if busy := await bench.must_not_be_disturbed():
        pinned = None
        told = f"; whether the pin arrives was not tried: {busy}"
    else:
        pinned, told = await _pin_arrives(bench), ""
    if pinned is False:
        return Seen("fail", f"{', '.join((*lost, 'top_k'))} do not arrive: something between drops them")
    if lost:
        return Seen(
            "fail", f"{', '.join(lost)} have no effect on a version that knows them: something between drops them"
        )
    return Seen("pass" if pinned else "skip", f"capture fields{' and top_k' if pinned else ''} arrive{told}")


def _unheard(bench: Bench) -> Iterator[str]:
    """Fields without effect that the engine's version is known to know."""
    facts, drawn = bench.facts, bench.drawn
    if version_of(facts.version) < KNOWS_THE_FIELDS[facts.kind]:
        return
    if _lacks_ids(drawn.whole):
        yield "return_token_ids"
    if facts.kind == "sglang" and _lacks_ids(drawn.streamed):
        yield "return_output_ids_in_sglext"
    if facts.takes_exact_prompts is False or has_taken(drawn) is False:
        yield "input_ids" if facts.kind == "sglang" else "kv_transfer_params"
    if not drawn.whole.tokens.logprobs:
        yield "logprobs"


def _lacks_ids(reply: Completion) -> bool:
    return "completion_ids_missing" in reply.capture_gaps


async def _pin_arrives(bench: Bench) -> bool | None:
    """Whether the likeliest token alone is drawn where top_k is 1, hot as it is; None where logprobs do not tell."""
    greedy = Profile("probe", temperature=HOT.temperature, top_k=1)
    reply = await bench.lab.draw(Draw(SEED, profile=greedy, max_tokens=GREEDY_TOKENS, top_logprobs=LISTED))
    if not reply.captured:
        return None
    return all(entry["logprob"] >= max(listed_beside(entry), default=0) for entry in reply.logprob_entries)


async def logprobs(bench: Bench) -> Seen:
    """Whether logprobs are those of what is sampled, for every profile."""
    mode = bench.facts.logprobs_mode
    bent = [profile.name for profile in bench.profiles if reshapes(profile)]
    if mode is None:
        return Seen("skip", "the likeliest tokens were too close to tell")
    if mode != "raw_logprobs":
        return Seen("pass", "taken after the temperature")
    if not bent:
        return Seen("pass", "taken before the temperature, which is the same thing for every profile at present")
    return Seen(bench.worse(), f"raw: taken before temperature and filters, which profile {', '.join(bent)} uses")


async def defaults(bench: Bench) -> Seen:
    """What becomes of sampling fields that a caller leaves out; calls through the proxy leave none out."""
    if busy := await bench.must_not_be_disturbed():
        return Seen("skip", busy)
    pinned = await bench.lab.draw(Draw(SEED, max_tokens=SPREAD_TOKENS, top_logprobs=SPREAD_LISTED))
    bare = await bench.lab.draw(
        Draw(SEED, max_tokens=SPREAD_TOKENS, top_logprobs=SPREAD_LISTED, leave_out=PINNED_BUT_TEMPERATURE)
    )
    if not (pinned.captured and bare.captured):
        return Seen("skip", "without ids and logprobs there is nothing to compare")
    beyond, beyond_bare = spread(pinned), spread(bare)
    if beyond >= LEAST_SPREAD and beyond_bare * 3 < beyond:
        told = f"{beyond_bare} of {SPREAD_TOKENS} tokens beyond the {SPREAD_LISTED} likeliest, and {beyond} when pinned"
        return Seen("warn", f"a top_k or top_p that nobody asked for is put in: {told}")
    if bench.proof.is_passed and pinned.tokens.completion_ids != bare.tokens.completion_ids:
        return Seen("warn", "a call that leaves sampling fields out draws other tokens than the pinned one")
    if not bench.proof.is_passed and beyond < LEAST_SPREAD:
        return Seen("skip", "the model is too sure of itself to tell")
    return Seen("pass", "what a caller leaves out is neutral")


def spread(reply: Completion) -> int:
    """How many tokens were less likely than all that are listed beside them."""
    return sum(entry["logprob"] < min(_others(entry), default=0) for entry in reply.logprob_entries)


def _others(entry: dict[str, object]) -> list[float]:
    """The listed logprobs without the sampled token's own, which vLLM lists among them."""
    return [value for value in listed_beside(entry) if value != entry["logprob"]]


def listed_beside(entry: dict[str, object]) -> list[float]:
    """The logprobs listed beside a sampled token."""
    listed = entry.get("top_logprobs")
    return [one["logprob"] for one in listed] if isinstance(listed, list) else []


def version_of(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with; none where it has none."""
    numbers = list[int]()
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
