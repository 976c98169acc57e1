"""The simulated engine over HTTP: it says what it is, plays its scenario and breaks as it was told."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from proxy.sim import Fault, Say, SimEngine, ToolSay
from proxy.sim.engine import Recurring
from proxy.sim.faults import NUMBERED, PLAIN, TIMED, read_fault
from proxy.sim.scenario import load_scenario

Json = dict[str, Any]
Start = Callable[..., SimEngine]

CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
HELLO = [{"role": "user", "content": "hello"}]
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 5, "max_tokens": 400}
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
TOOL = {
    "type": "function",
    "function": {
        "name": "calc",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@pytest.fixture
def start() -> Iterator[Start]:
    """Start engines of any kind; they are stopped at the end."""
    started: list[SimEngine] = []

    def start_one(kind: Any, **settings: Any) -> SimEngine:
        started.append(SimEngine(kind, **settings))
        started[-1].start()
        return started[-1]

    yield start_one
    for engine in started:
        engine.stop()


def post(engine: SimEngine, messages: list[Json] = HELLO, **body: Any) -> httpx.Response:
    asked = {"model": "tiny", "messages": messages, **NEUTRAL, **body}
    return CLIENT.post(f"{engine.url}/v1/chat/completions", json=asked)


def message(engine: SimEngine, messages: list[Json] = HELLO, **body: Any) -> Json:
    answer = post(engine, messages, **body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0]["message"])


@KINDS
def test_every_answer_says_that_it_is_simulated(kind: str, start: Start) -> None:
    """Replies, streams, errors of every sort, and what it tells of itself."""
    engine = start(kind)
    engine.script(Fault.status(500))
    paths = ("/v1/models", "/health", "/nothing", "/v1/chat/completions")
    answers = [CLIENT.get(engine.url + path) for path in paths]
    answers += [post(engine), post(engine), post(engine, stream=True), post(engine, seed=1.5)]

    assert [a.status_code for a in answers] == [200, 200, 404, 405, 500, 200, 200, 400]
    assert {a.headers["x-rollpin-simulated"] for a in answers} == {"1"}
    assert answers[0].json()["data"][0]["simulated"] is True
    assert CLIENT.get(f"{engine.url}/{'version' if kind == 'vllm' else 'server_info'}").json()["simulated"] is True


def test_vllms_fingerprint_says_so_too(start: Start) -> None:
    """Real ones end in a hash."""
    assert post(start("vllm")).json()["system_fingerprint"] == "vllm-0.32.0-simulated"


@KINDS
def test_a_scenario_is_played_to_its_end(kind: str, start: Start) -> None:
    """A call, its result, an answer; another seed says it in other words."""
    engine = start(kind, scenario=load_scenario("calculator"))
    task = {"role": "user", "content": "6 * 7?"}
    first = [message(engine, [task], tools=[TOOL], seed=seed) for seed in (5, 5, 6, 7, 8)]
    calls = [m["tool_calls"][0]["function"] for m in first]
    told = [task, first[0], {"role": "tool", "tool_call_id": first[0]["tool_calls"][0]["id"], "content": "42"}]
    last = message(engine, told, tools=[TOOL])

    assert {c["name"] for c in calls} == {"calc"}
    assert {json.loads(c["arguments"])["expression"] for c in calls} == {"6 * 7"}
    assert first[0]["content"] == first[1]["content"]
    assert len({m["content"] for m in first}) > 1
    assert "42" in last["content"]
    assert "tool_calls" not in last


@KINDS
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "calc"}}])
def test_a_demanded_call_is_made(kind: str, choice: Any, start: Start) -> None:
    """Without any scenario."""
    other = {"type": "function", "function": {"name": "calc" if choice == "required" else "other"}}
    reply = message(start(kind), tools=[other, TOOL], tool_choice=choice)

    assert reply["tool_calls"][0]["function"]["name"] == "calc"


@KINDS
def test_a_demanded_call_is_the_scenarios_where_it_makes_one(kind: str, start: Start) -> None:
    """Without its words; a tool that the scenario does not call gets a call that is made up."""
    engine = start(kind, scenario=load_scenario("calculator"))
    other = {"type": "function", "function": {"name": "other"}}
    task = [{"role": "user", "content": "6 * 7?"}]
    replies = [
        message(engine, task, tools=[TOOL, other], tool_choice=choice)
        for choice in ("required", {"type": "function", "function": {"name": "other"}})
    ]
    scripted, made_up = (reply["tool_calls"][0]["function"] for reply in replies)

    assert (scripted["name"], json.loads(scripted["arguments"])) == ("calc", {"expression": "6 * 7"})
    assert made_up["name"] == "other"
    assert not replies[0]["content"]


@KINDS
def test_logprobs_are_the_distributions_own(kind: str, start: Start) -> None:
    """Those of the likeliest tokens at a place add up to 1, and colder sampling shows on SGLang alone."""
    engine = start(kind)

    def first_word(**body: Any) -> list[Json]:
        off = {"enable_thinking": False}
        answer = post(engine, logprobs=True, top_logprobs=20, max_tokens=1, chat_template_kwargs=off, **body)
        return list(answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"])

    warm, cold = first_word(), first_word(temperature=0.5)
    assert sum(2.718281828 ** token["logprob"] for token in warm) == pytest.approx(1, abs=1e-4)
    assert {t["token"] for t in warm} == {t["token"] for t in cold}
    assert (sorted(t["logprob"] for t in warm) == sorted(t["logprob"] for t in cold)) is (kind == "vllm")


def test_half_a_character_in_a_prompt_is_answered(start: Start) -> None:
    """A lone surrogate, as JSON may carry it."""
    body = '{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 5}'
    headers = {"content-type": "application/json"}
    answer = CLIENT.post(f"{start('sglang').url}/v1/chat/completions", content=body, headers=headers)

    assert answer.status_code == 200


@pytest.mark.parametrize(("kind", "told"), [("sglang", ["n", "é", "\ufffd"]), ("vllm", ["n", "é"])])
def test_only_sglang_tells_of_half_a_character_where_it_is_aborted(kind: Any, told: list[str], start: Start) -> None:
    """In the whole reply, and in an event of its own before the stream's end."""
    engine = start(kind)
    engine.script(*[Fault.abort(5, Say("né😀"))] * 2)
    fields: Json = {"chat_template_kwargs": {"enable_thinking": False}}
    whole = message(engine, **fields)["content"]

    assert texts_of(streamed(engine, **fields)) == told
    assert whole == "".join(told)


def test_sglang_closes_the_arguments_of_a_call_that_it_aborts(start: Start) -> None:
    """Also those of a list in a list, and of a text with quotes."""
    engine, say = start("sglang"), Say(calls=(ToolSay("calc", '{"a": [{"b": "\\"😀"}]}'),))
    engine.script(Fault.abort(len(say.ids(thinking=False)) - 10, say))
    choices = streamed(engine, tools=[TOOL], chat_template_kwargs={"enable_thinking": False})
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]

    assert "".join(call["function"].get("arguments") or "" for call in calls) == '{"a": [{"b": "\\"\ufffd"}]}'
    assert calls[-1]["function"]["arguments"] == '\ufffd"}]}'


def streamed(engine: SimEngine, **body: Any) -> list[Json]:
    """The choices of a stream's events."""
    lines = post(engine, stream=True, **body).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return [choice for event in events for choice in event["choices"]]


def texts_of(choices: list[Json]) -> list[str]:
    """The pieces in which the words came."""
    return [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]


@KINDS
def test_bytes_that_are_no_character_are_told_with_what_follows(kind: Any, start: Start) -> None:
    """As U+FFFD, one for each that can be none; at the end vLLM leaves them out."""
    engine, fields = start(kind), {"chat_template_kwargs": {"enable_thinking": False}}
    engine.script(*[Say("a\udcff\udcc3b\udcff")] * 2)
    whole = message(engine, **fields)["content"]
    texts = texts_of(streamed(engine, **fields))

    assert texts == ["a", "\ufffd\ufffdb", *(["\ufffd"] if kind == "sglang" else [])]
    assert whole == "".join(texts)


def test_only_the_newest_requests_are_kept_where_that_is_wished(start: Start) -> None:
    """An engine that runs for days must not fill the memory."""
    engine = start("vllm", keep_requests=2)
    for seed in range(4):
        post(engine, seed=seed)

    assert [received.body["seed"] for received in engine.requests] == [2, 3]


# --- faults ---


def test_faults_come_back_with_every_so_many_calls(start: Start) -> None:
    """In turn, between calls that go well."""
    faults = (read_fault("429"), read_fault("html"))
    engine = start("vllm", recurring=Recurring(faults, every=2))

    assert [post(engine).status_code for _ in range(6)] == [200, 429, 200, 502, 200, 429]


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("500", Fault.status(500)),
        ("429", Fault.refuse(429)),
        ("html", Fault.html(502)),
        ("cut:7", Fault.cut(7)),
        ("abort", Fault.abort(4)),
        ("latency:0.5", Fault.stall_before_headers(0.5)),
        ("slow", Fault.slow(0.1)),
        ("no_ids", Fault.no_ids()),
    ],
)
def test_a_fault_is_named_on_the_command_line(written: str, fault: Fault) -> None:
    """With a number where one makes sense."""
    assert read_fault(written) == fault


@pytest.mark.parametrize("written", ["", "200", "600", "429:1", "no_ids:1", "cut:x", "slow:", "no such"])
def test_a_fault_that_is_none_is_told_with_those_there_are(written: str) -> None:
    """All names stand in the message."""
    with pytest.raises(ValueError, match="is none of STATUS") as caught:
        read_fault(written)

    assert all(name in str(caught.value) for name in (*PLAIN, *NUMBERED, *TIMED))
