"""Exact prefixes on real engines: twelve turns with tools in every echo style, proven, and scored by transformers."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from proxy.model import JsonObject
from tests.echoes import STYLES, Style, as_it_came
from tests.live.engines.start import running
from tests.live.harness import AS_STREAM, LOGPROB_TOLERANCE, Site, Tell, at_once, largest_difference, plain, site_before
from tests.live.speaking import ONE_CALL, TWO_CALLS, WORDS, shaped
from tests.served import RolloutClient

TURNS = 12
SHAPES = (ONE_CALL, TWO_CALLS, WORDS, None)
SYSTEM = {"role": "system", "content": "You add numbers."}


def follow_up(message: JsonObject, turn: int) -> list[JsonObject]:
    calls = message.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": f"And {turn}? <|im_end|> naïve\n"}]
    results = [json_result(turn), ""]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=False)
    ]


def json_result(turn: int) -> str:
    return f'{{"sum": {turn}, "said": "ok \\"{turn}\\""}}\n'


def converse(site: Site, client: RolloutClient, style: Style, *, thinks: bool, stream: bool) -> list[JsonObject]:
    """Twelve turns, each reply echoed in a style; the calls as recorded."""
    messages: list[JsonObject] = [SYSTEM, {"role": "user", "content": "Add 1 and 2."}]
    # A thought that is cut cannot be gone on from, so those who think always speak in a shape.
    shapes = [shape for shape in SHAPES if shape or not thinks]
    for turn, shape in zip(range(TURNS), itertools.cycle(shapes), strict=False):
        said = reply(client, {"messages": messages, **shaped(site.kind, shape, thinks=thinks)}, stream=stream)
        messages += [style(said), *follow_up(said, turn)]
    return client.calls()


def reply(client: RolloutClient, body: JsonObject, *, stream: bool) -> JsonObject:
    if not stream:
        answer = client.post({"model": "policy", **body})
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0]["message"])
    with client.http.stream("POST", "/chat/completions", json={"model": "policy", **body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        call_id = response.headers["x-rollpin-call-id"]
        assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
    return next(dict(call["message"]) for call in client.calls() if call["call_id"] == call_id)


def test_twelve_turns_in_every_echo_style_are_one_proven_sequence(site: Site, tell: Tell) -> None:
    """Whole and streamed, with thoughts and without; each eligible call is supplied, and the ids that came prove it."""
    told = [(style, place % 2 == 0, place % 3 == 0) for place, style in enumerate(STYLES)]
    conversations: list[Callable[[], list[JsonObject]]] = [
        lambda style=style, thinks=thinks, stream=stream: converse(
            site, site.rollout(f"supply-{style.__name__}"), style, thinks=thinks, stream=stream
        )
        for style, thinks, stream in told
    ]
    runs = at_once(conversations)
    calls = list(itertools.chain.from_iterable(runs))
    scored = plain(calls)
    worst = largest_difference(site.engine, scored)
    tell(f"{site.kind}: supply on: {joints_told(site, runs)} in {len(STYLES)} echo styles of {TURNS} turns")
    tell(f"{site.kind}: supply on: {len(scored)} of {len(calls)} calls scored, within {worst:.1e} of transformers")

    for (style, *_how), run in zip(told, runs, strict=True):
        assert len(run) == TURNS, style
        assert_one_sequence(site, style.__name__, run)
    assert worst < LOGPROB_TOLERANCE


def joints_told(site: Site, runs: Sequence[Sequence[JsonObject]]) -> str:
    """How the turns of some conversations hang together, as their ids have it, in a line."""
    pairs = [pair for calls in runs for pair in itertools.pairwise(calls)]
    whole = sum(goes_on(earlier, later) for earlier, later in pairs)
    branches = sum(len(branches_of(site, calls[0]["rollout_id"])) for calls in runs)
    return f"{whole} of {len(pairs)} joints unbroken, {branches} branches of {len(runs)} conversations"


def goes_on(earlier: JsonObject, later: JsonObject) -> bool:
    """Whether a call was drawn behind the very ids of the one before it."""
    so_far = earlier["prompt_token_ids"] + earlier["completion_token_ids"]
    return bool(later["prompt_token_ids"][: len(so_far)] == so_far)


def assert_one_sequence(site: Site, name: str, calls: Sequence[JsonObject]) -> None:
    reasons = [(call["prefix"]["reason"], call["prefix"]["detail"]) for call in calls]
    assert all(call["prefix"]["supplied"] for call in calls[1:]), (name, reasons)
    assert all(itertools.starmap(goes_on, itertools.pairwise(calls))), name
    branches = branches_of(site, calls[0]["rollout_id"])
    assert len(branches) == 1, name
    assert branches[0]["token_ids"] == calls[-1]["prompt_token_ids"] + calls[-1]["completion_token_ids"]


def branches_of(site: Site, rollout_id: str) -> list[JsonObject]:
    return list(site.proxy.control.get(f"/rollouts/{rollout_id}/trajectory").json()["branches"])


def test_with_supply_off_the_same_conversation_drifts(site: Site, tell: Tell) -> None:
    """The control experiment: the template's own renders, and how many sequences are left of the one."""
    site.proxy.control.put("/profiles/bare", json={"prefix_supply": False})
    client = site.rollout("supply-off", profile="bare")
    calls = converse(site, client, as_it_came, thinks=True, stream=False)
    tell(f"{site.kind}: supply off: {joints_told(site, [calls])}")

    assert len(calls) == TURNS
    assert not all(itertools.starmap(goes_on, itertools.pairwise(calls)))
    assert len(branches_of(site, client.rollout_id)) > 1


@AS_STREAM
def test_the_small_real_model_goes_on_from_its_own_ids(real_model: Site, tell: Tell, stream: bool) -> None:  # noqa: FBT001
    """Its template drops tools and calls altogether: what it would render is another conversation."""
    assert_goes_on(real_model, tell, stream=stream)


def test_the_small_real_model_goes_on_from_its_own_ids_on_sglang_too(tmp_path: Path, tell: Tell) -> None:
    """Whole and streamed, on an engine of its own."""
    with running("sglang", "smollm2") as engine, site_before(engine, tmp_path) as site:
        for stream in (False, True):
            assert_goes_on(site, tell, stream=stream)


def assert_goes_on(site: Site, tell: Tell, *, stream: bool) -> None:
    client = site.rollout(f"real-{stream}")
    messages: list[JsonObject] = [{"role": "user", "content": "Name a colour."}]
    for turn in range(3):
        said = reply(client, {"messages": messages, "max_tokens": 24}, stream=stream)
        messages += [said, {"role": "user", "content": f"Another one, number {turn}."}]
    calls = client.calls()
    worst = largest_difference(site.engine, calls)
    tell(f"{site.kind}, smollm2: supply on: {len(calls)} calls within {worst:.1e} of transformers")

    assert_one_sequence(site, "smollm2", calls)
    assert worst < LOGPROB_TOLERANCE
