"""Exact prefixes over sockets: what engines are given, what proves it, and what becomes of the rest."""

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.model import SampledTurn
from proxy.request.joint_turn import Answer, Habits, Question, Tail
from proxy.sim.engine import Kind
from proxy.supply import Template, barrier, ended_by_itself, exact_prefix, prove
from tests import make
from tests.api.harness import Leaver, asked, until
from tests.echoes import STYLES, Style, as_it_came, without_reasoning
from tests.fakes import FakeEngine, Say, ToolSay
from tests.fakes.tokens import decode
from tests.served import RolloutClient, ServedProxy, served, settings_for

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "number"}}},
        },
    }
]
CALL = ToolSay("bash", '{ "command":"echo é",  "n": 2.0}')
# What the model says, turn by turn, in spellings that no template would repeat.
SAID = (
    Say("I look.\n", reasoning="Hm. ", calls=(CALL,)),
    Say("", calls=(CALL, ToolSay("bash", '{"n":1e2,"command": "ls"}'))),
    Say("  Done, I think. ", reasoning="So."),
    Say("", calls=(ToolSay("bash", '{"command": "unfinished'),)),
    Say("It is 4."),
)


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    with FakeEngine(request.param, max_model_len=20_000) as engine:
        yield engine


@pytest.fixture(scope="module")
def proxy(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path_factory.mktemp("supply"), engine.url)) as proxy:
        yield proxy


def follow_up(message: dict[str, Any], turn: int) -> list[dict[str, Any]]:
    """What a harness says to a reply: a result for each call, else the next task."""
    calls = message.get("tool_calls") or []
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"out {turn} <|im_end|> ünï\n" if i == 0 else ""}
        for i, call in enumerate(calls)
    ]
    return results or [{"role": "user", "content": f"And {turn}?"}]


def talk(client: RolloutClient, engine: FakeEngine, turns: int, style: Style, *, stream: bool = False) -> None:
    """A conversation of so many turns, each reply echoed in a style."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    for turn, say in zip(range(turns), itertools.cycle(SAID), strict=False):
        engine.script(say)
        said = reply(client, messages, stream=stream)
        messages += [style(said), *follow_up(said, turn)]


def reply(client: RolloutClient, messages: list[dict[str, Any]], *, stream: bool = False) -> dict[str, Any]:
    asked = {"model": "policy", "messages": messages, "tools": TOOLS}
    if not stream:
        answer = client.post(asked)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0]["message"])
    with client.http.stream("POST", "/chat/completions", json={**asked, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        for _line in response.iter_lines():
            pass
    return dict(client.calls()[-1]["message"])


def prefixes(client: RolloutClient) -> list[dict[str, Any]]:
    return [call["prefix"] for call in client.calls()]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_each_turn_goes_on_from_the_very_ids_of_the_one_before(
    proxy: ServedProxy,
    engine: FakeEngine,
    style: Style,
    stream: bool,  # noqa: FBT001
) -> None:
    """Twelve turns in whatever spelling: every one after the first is supplied, and the rollout is one sequence."""
    client = proxy.rollout()
    talk(client, engine, 12, style, stream=stream)
    calls = client.calls()

    assert [call["prefix"]["reason"] for call in calls] == ["first_turn"] + ["exact"] * 11
    for earlier, later in itertools.pairwise(calls):
        so_far = earlier["prompt_token_ids"] + earlier["completion_token_ids"]
        assert later["prefix"]["supplied"]
        assert later["prompt_token_ids"][: len(so_far)] == so_far
        assert later["prefix"]["length"] == len(later["prompt_token_ids"])
    (branch,) = proxy.control.get(f"/rollouts/{client.rollout_id}/trajectory").json()["branches"]
    assert branch["loss_mask"].count(1) == sum(len(call["completion_token_ids"]) for call in calls)


def test_without_supply_the_same_conversation_falls_apart(engine: FakeEngine, tmp_path: Path) -> None:
    """The control experiment: what the template makes of the echo is not what was sampled."""
    with served(settings_for(tmp_path, engine.url, profiles={"train": {"prefix_supply": False}})) as proxy:
        client = proxy.rollout()
        talk(client, engine, 5, as_it_came)
        trajectory = proxy.control.get(f"/rollouts/{client.rollout_id}/trajectory").json()

        assert {prefix["reason"] for prefix in prefixes(client)[1:]} == {"off_in_profile"}
        assert len(trajectory["branches"]) > 1


def test_a_restarted_proxy_goes_on_supplying(engine: FakeEngine, tmp_path: Path) -> None:
    """All that it needs is in the store."""
    settings = settings_for(tmp_path, engine.url)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    with served(settings) as proxy:
        created = proxy.rollout(rollout_id="r").created
    for turn, say in enumerate(SAID):
        with served(settings) as proxy:
            client = RolloutClient(proxy, {**created, "base_url": f"{proxy.url}/rollouts/r/v1"})
            engine.script(say)
            said = reply(client, messages)
            messages += [said, *follow_up(said, turn)]
            reasons = [prefix["reason"] for prefix in prefixes(client)]

    assert reasons == ["first_turn"] + ["exact"] * (len(SAID) - 1)


def test_a_template_that_prints_call_ids_sees_the_engines_own(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Clients know derived ids; what they echo reaches the engine as the engine had said it."""
    client = proxy.rollout()
    talk(client, engine, 2, as_it_came)
    first, second = client.calls()
    sent = engine.requests[-1].body["messages"]

    own = first["engine_message"]["tool_calls"][0]["id"]
    assert own != first["message"]["tool_calls"][0]["id"]
    assert sent[2]["tool_calls"][0]["id"] == own
    assert sent[3]["tool_call_id"] == own
    assert second["request"]["messages"][3]["tool_call_id"] == first["message"]["tool_calls"][0]["id"]


def test_a_fork_gets_its_own_parents_tokens(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Not the newest call's."""
    client = proxy.rollout()
    task = [{"role": "user", "content": "Go."}]
    engine.script(Say("one"), Say("two"))
    one, two = reply(client, task), reply(client, task)
    for said in (one, two, one):
        engine.script(Say("more"))
        reply(client, [*task, said, {"role": "user", "content": f"after {said['content']}"}])
    calls = client.calls()

    for child, parent in ((2, 0), (3, 1), (4, 0)):
        so_far = calls[parent]["prompt_token_ids"] + calls[parent]["completion_token_ids"]
        assert calls[child]["prefix"]["supplied"]
        assert calls[child]["prompt_token_ids"][: len(so_far)] == so_far


def test_a_reply_cut_by_length_goes_on_with_the_templates_own_end(proxy: ServedProxy, engine: FakeEngine) -> None:
    """The end was never sampled: it stands in the prompt, and no loss falls on it."""
    client = proxy.rollout()
    task = [{"role": "user", "content": "Go."}]
    engine.script(Say("It is fo", finish="length"), Say("well"))
    asked = {"model": "policy", "messages": task, "chat_template_kwargs": {"enable_thinking": False}}
    said = client.post(asked).json()["choices"][0]["message"]
    client.post({**asked, "messages": [*task, said, {"role": "user", "content": "Go on."}]})

    assert prefixes(client)[1]["reason"] == "cut"
    assert prefixes(client)[1]["supplied"]


def test_a_reply_cut_inside_its_reasoning_starts_a_new_branch(proxy: ServedProxy, engine: FakeEngine) -> None:
    """To close the thought would put words into the policy's mouth."""
    client = proxy.rollout()
    task = [{"role": "user", "content": "Go."}]
    engine.script(Say("", reasoning="", finish="length"))
    answer = client.post({"model": "policy", "messages": task, "max_tokens": 1})
    said = answer.json()["choices"][0]["message"]
    engine.script(Say("well"))
    client.post({"model": "policy", "messages": [*task, said, {"role": "user", "content": "Go on."}]})

    assert prefixes(client)[1]["reason"] == "cut_in_reasoning"
    assert prefixes(client)[1]["eligible"]
    assert not prefixes(client)[1]["requested"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_length_is_clamped_after_the_splice(kind: Kind, tmp_path: Path) -> None:
    """A supplied prompt keeps the reasoning that a render would drop, so its own count decides."""
    task, more = {"role": "user", "content": "Go."}, {"role": "user", "content": "?"}
    with FakeEngine(kind, max_model_len=300) as small, served(settings_for(tmp_path, small.url)) as proxy:
        client = proxy.rollout()
        small.script(Say("x" * 60, reasoning="y" * 60), Say("z"))
        said = client.post({"messages": [task]}).json()["choices"][0]["message"]
        longer = [task, without_reasoning(said), more]
        answers = [client.post({"messages": longer, "max_tokens": 280})]
        small.script(Say("z"))
        answers.append(client.post({"messages": [*longer[:2], {**more, "content": "?" * 180}], "max_tokens": 280}))
        _first, call = client.calls()

        assert [answer.status_code for answer in answers] == [200, 400]
        assert answers[1].json()["error"]["code"] == "context_length_exceeded"
        assert call["prefix"]["supplied"]
        assert call["sampling"]["length"]["max_tokens"] == 300 - len(call["prompt_token_ids"])


def test_a_prompt_that_tells_of_one_tool_is_not_gone_on_from_where_several_are_offered(
    proxy: ServedProxy, engine: FakeEngine
) -> None:
    """SGLang hides the others where a choice names one; vLLM hides none, and there the sequence goes on."""
    other = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    named = {"type": "function", "function": {"name": "bash"}}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Go."}], "tools": [*TOOLS, other]}
    client = proxy.rollout()
    reasons, told = [], []
    for turn, choice in enumerate((named, named, "auto", "auto")):
        engine.script(Say("", calls=(ToolSay("bash", '{"command": "ls"}'),)))
        said = client.post({**body, "tool_choice": choice}).json()["choices"][0]["message"]
        body["messages"] = [*body["messages"], said, *follow_up(said, turn)]
        call = client.calls()[-1]
        reasons.append(call["prefix"]["reason"])
        told.append("search" in decode(call["prompt_token_ids"]))

    hides = call["engine"]["kind"] == "sglang"
    assert reasons == ["first_turn", "exact", "tools_hidden" if hides else "exact", "exact"]
    assert told == [not hides, not hides, True, True]


@pytest.mark.parametrize(
    ("reason", "facts", "recorded"),
    [
        ("engine_ignores_ids", {"takes_exact_prompts": False}, {}),
        ("another_tokenizer", {"fingerprint": "sha256:other"}, {}),
        ("another_tokenizer", {"fingerprint": None}, {"fingerprint": None}),
        ("vocabulary_unknown", {"kind": "sglang", "vocabulary": None}, {}),
        (None, {"vocabulary": None}, {}),
    ],
)
def test_an_engine_that_cannot_be_trusted_with_ids_gets_none(
    reason: str | None, facts: dict[str, Any], recorded: dict[str, Any]
) -> None:
    """Ids of another tokenizer mean other texts; one beyond the vocabulary kills SGLang; some engines ignore them."""
    engine = make.engine(**{"fingerprint": "sha256:one", "vocabulary": 300, **facts})

    assert barrier(make.ask(), sampled(**recorded), engine.facts) == reason


def test_an_id_outside_the_vocabulary_is_never_sent() -> None:
    """Wherever it came from."""
    prefix = exact_prefix(sampled(), Tail((7, 300), "exact", ()), make.engine(vocabulary=300).facts)

    assert (prefix.requested, prefix.reason) == (False, "id_out_of_vocabulary")


@pytest.mark.parametrize(
    ("came", "supplied", "reason"),
    [((1, 2, 7), True, "exact"), ((1, 2, 8), False, "other_ids_came_back"), ((), False, "no_ids_came_back")],
)
def test_only_the_ids_that_come_back_prove_a_supply(came: tuple[int, ...], supplied: bool, reason: str) -> None:  # noqa: FBT001
    """An engine that takes no notice of the field answers all the same."""
    asked = exact_prefix(sampled(), Tail((7,), "exact", ()), make.engine(vocabulary=300).facts)
    proven = prove(asked, make.completion(came))

    assert (proven.requested, proven.supplied, proven.reason) == (True, supplied, reason)


@pytest.mark.parametrize(
    ("is_end", "recorded", "known"),
    [
        (True, {"finish_reason": "stop"}, ()),
        (True, {"finish_reason": "tool_calls"}, ()),
        (False, {"finish_reason": "length"}, ()),
        (False, {"finish_reason": "stop", "matched_stop": "STOP", "stops": ("STOP",)}, ()),
        (False, {"finish_reason": "stop", "matched_stop": 2, "has_stop_ids": True}, ()),
        (True, {"finish_reason": "stop", "matched_stop": 2, "has_stop_ids": True}, (2,)),
        (True, {"finish_reason": "stop", "matched_stop": 2, "stops": ("STOP",), "engine_kind": "sglang"}, ()),
        (True, {"finish_reason": "stop", "stops": ("STOP",)}, ()),
        (False, {"finish_reason": "stop", "stops": ("STOP",), "engine_kind": "sglang"}, ()),
        (True, {"finish_reason": "stop", "matched_stop": "<|im_end|>", "stops": ("<|im_end|>",)}, (2,)),
    ],
)
def test_a_turn_has_ended_if_its_last_id_is_known_for_an_end(
    is_end: bool,  # noqa: FBT001
    recorded: dict[str, Any],
    known: tuple[int, ...],
) -> None:
    """A stop string or a stop id of the request's own is no end, unless it is one anyway."""
    assert ended_by_itself(sampled(**recorded), Habits(ends=set(known))) is is_end


def sampled(**changes: Any) -> SampledTurn:
    made: dict[str, Any] = {
        "prompt_ids": (1,),
        "completion_ids": (2,),
        "finish_reason": "stop",
        "matched_stop": None,
        "stops": (),
        "has_stop_ids": False,
        "reasoning": "",
        "engine_kind": "vllm",
        "fingerprint": "sha256:one",
    }
    return SampledTurn(**{**made, **changes})


def test_every_reason_is_documented() -> None:
    """A call that was not supplied says why, and the page says what that means."""
    root = Path(__file__).parent.parent
    sources = [(root / "proxy" / name).read_text() for name in ("supply.py", "request/joint.py")]
    found = re.findall(r'(?:Refused|unsupplied)\("(\w+)"|(?:return|reason=) "(\w+_\w+)"', "\n".join(sources))
    reasons = {one or other for one, other in found} - {"tool_calls"}
    page = (root / "docs" / "prefixes.md").read_text()

    assert len(reasons) > 15
    assert {reason for reason in reasons if f"`{reason}`" not in page} == set()


def test_a_client_that_leaves_during_the_renders_finds_its_call_again(
    proxy: ServedProxy, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may take long to tell what its template prints; the call is asked all the same, and claimed."""
    answer, begun, may_go_on = Template.answer, threading.Event(), threading.Event()

    async def slow(template: Template, question: Question) -> Answer:
        begun.set()
        await asyncio.to_thread(may_go_on.wait)
        return await answer(template, question)

    client = proxy.rollout()
    talk(client, engine, 1, as_it_came)
    said = client.call()["message"]
    messages = [{"role": "system", "content": "Be brief."}, make.user("Go."), said, *follow_up(said, 0)]
    told = asked(messages=messages, tools=TOOLS)
    monkeypatch.setattr(Template, "answer", slow)
    engine.script(Say("ok"))
    leaver = Leaver(client, **told)
    until(begun.is_set)
    leaver.leave()
    may_go_on.set()
    until(lambda: [one["outcome"] for call in client.calls()[1:] for one in call["deliveries"]] == ["client_gone"])
    again = client.post(told)
    _first, call = client.calls()

    assert again.status_code == 200, again.text
    assert (call["state"], call["prefix"]["supplied"], len(call["deliveries"])) == ("done", True, 2)
