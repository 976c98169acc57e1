"""Exact prefixes on real engines: twelve turns with tools in every echo style, proven, and scored by transformers."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.model import JsonObject
from tests.echoes import STYLES, Style, as_it_came
from tests.live.engines.reference_client import reference_logprobs
from tests.live.engines.start import running
from tests.live.harness import ADD_TOOL, CALL_PATTERN, LOGPROB_TOLERANCE, NO_THINKING, Site, at_once
from tests.served import RolloutClient, served, settings_for

TURNS = 12
THINK_END, SECOND_END = "1019", "1015"
# Random weights say something that can be parsed only where each token is steered.
ONE_CALL = CALL_PATTERN
TWO_CALLS = (
    r'<tool_call>\n\{ "name": "add", "arguments": \{"b": [0-9]{1,3},"a": [0-9]{1,2}\.0\}\}\n</tool_call>\n'
    r'<tool_call>\n\{"name": "add", "arguments": \{"a":  [0-9]{1,3}\}\}\n</tool_call>'
)
WORDS = r" [a-z]{3,8} [a-z]{3,8}\. "
SHAPES = (ONE_CALL, TWO_CALLS, WORDS, None)
SYSTEM = {"role": "system", "content": "You add numbers."}


def asked(site: Site, shape: str | None, *, thinks: bool) -> JsonObject:
    """What makes the model speak in a shape; without one it babbles until it is cut."""
    # Thoughts end soon, and only by their own mark; what ends a turn is the first end token.
    bias = {SECOND_END: -100} | ({THINK_END: 6} if thinks else {})
    body: JsonObject = {"tools": [ADD_TOOL], "max_tokens": 190, "logit_bias": bias} | ({} if thinks else NO_THINKING)
    if shape is None:
        return {name: body[name] for name in body if name != "logit_bias"} | {"max_tokens": 12}
    return body | ({"structured_outputs": {"regex": shape}} if site.kind == "vllm" else {"regex": shape})


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
        said = reply(client, {"messages": messages, **asked(site, shape, thinks=thinks)}, stream=stream)
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


def test_twelve_turns_in_every_echo_style_are_one_proven_sequence(site: Site) -> None:
    """Whole and streamed, with thoughts and without; each eligible call is supplied, and the ids that came prove it."""
    told = [(style, place % 2 == 0, place % 3 == 0) for place, style in enumerate(STYLES)]
    conversations: list[Callable[[], list[JsonObject]]] = [
        lambda style=style, thinks=thinks, stream=stream: converse(
            site, site.rollout(f"supply-{style.__name__}"), style, thinks=thinks, stream=stream
        )
        for style, thinks, stream in told
    ]
    runs = at_once(conversations)

    for (style, *_how), calls in zip(told, runs, strict=True):
        assert len(calls) == TURNS, style
        assert_one_sequence(site, style.__name__, calls)
    assert_scored(site, list(itertools.chain.from_iterable(runs)))


def assert_one_sequence(site: Site, name: str, calls: Sequence[JsonObject]) -> None:
    reasons = [(call["prefix"]["reason"], call["prefix"]["detail"]) for call in calls]
    assert all(call["prefix"]["supplied"] for call in calls[1:]), (name, reasons)
    for earlier, later in itertools.pairwise(calls):
        so_far = earlier["prompt_token_ids"] + earlier["completion_token_ids"]
        assert later["prompt_token_ids"][: len(so_far)] == so_far, name
    branches = branches_of(site, calls[0]["rollout_id"])
    assert len(branches) == 1, name
    assert branches[0]["token_ids"] == calls[-1]["prompt_token_ids"] + calls[-1]["completion_token_ids"]


def assert_scored(site: Site, calls: Sequence[JsonObject]) -> None:
    """Recorded logprobs are those of the weights on the very sequence; of steered tokens engines tell others."""
    scored = [call for call in calls if not call["sampling"]["constrained"]]
    rows: Any = [{"prompt": call["prompt_token_ids"], "completion": call["completion_token_ids"]} for call in scored]
    reference = reference_logprobs(site.engine, rows)
    worst = max(
        abs(ours - theirs)
        for call, expected in zip(scored, reference, strict=True)
        for ours, theirs in zip(call["logprobs"], expected, strict=True)
    )
    print(f"{site.kind}: {len(scored)} of {len(calls)} calls scored, largest difference {worst:.1e}")
    assert scored
    assert worst < LOGPROB_TOLERANCE


def branches_of(site: Site, rollout_id: str) -> list[JsonObject]:
    return list(site.proxy.control.get(f"/rollouts/{rollout_id}/trajectory").json()["branches"])


def test_with_supply_off_the_same_conversation_drifts(site: Site) -> None:
    """The control experiment: the template's own renders, and how many sequences are left of the one."""
    site.proxy.control.put("/profiles/bare", json={"prefix_supply": False})
    client = site.rollout("supply-off", profile="bare")
    calls = converse(site, client, as_it_came, thinks=True, stream=False)
    broken = sum(
        later["prompt_token_ids"][: len(earlier["prompt_token_ids"] + earlier["completion_token_ids"])]
        != earlier["prompt_token_ids"] + earlier["completion_token_ids"]
        for earlier, later in itertools.pairwise(calls)
    )
    branches = branches_of(site, client.rollout_id)

    print(f"{site.kind}: supply off: {broken} of {TURNS - 1} joints broken, {len(branches)} branches instead of 1")
    assert broken > 0
    assert len(branches) > 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_small_real_model_goes_on_from_its_own_ids(real_model: Site, stream: bool) -> None:  # noqa: FBT001
    """Its template drops tools and calls altogether: what it would render is another conversation."""
    assert_goes_on(real_model, stream=stream)


def test_the_small_real_model_goes_on_from_its_own_ids_on_sglang_too(tmp_path: Path) -> None:
    """Whole and streamed, on an engine of its own."""
    with running("sglang", "smollm2") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        for stream in (False, True):
            assert_goes_on(Site(engine, proxy), stream=stream)


def assert_goes_on(site: Site, *, stream: bool) -> None:
    client = site.rollout(f"real-{stream}")
    messages: list[JsonObject] = [{"role": "user", "content": "Name a colour."}]
    for turn in range(3):
        said = reply(client, {"messages": messages, "max_tokens": 24}, stream=stream)
        messages += [said, {"role": "user", "content": f"Another one, number {turn}."}]
    calls = client.calls()

    assert_one_sequence(site, "smollm2", calls)
    assert_scored(site, calls)
