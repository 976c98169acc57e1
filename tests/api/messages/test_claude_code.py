"""A rollout of Claude Code as it was seen on the wire: what it changes on each request changes nothing that counts."""

import copy
import itertools
import json
import sqlite3
from typing import Any

import pytest

from tests.api.conftest import Start
from tests.api.messages.speaking import Json, events
from tests.fakes import Say, ToolSay
from tests.served import RolloutClient, ServedProxy

HEADERS = {
    "user-agent": "claude-cli/2.1.332 (external, sdk-cli)",
    "x-app": "cli",
    "x-claude-code-session-id": "S",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
}
MARK = {"cache_control": {"type": "ephemeral"}}
BASH = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
    },
}
FIRST = [
    {"type": "text", "text": "<system-reminder>\nnotes\n</system-reminder>\n"},
    {"type": "text", "text": "write a greeting"},
]
ENVIRONMENT = {"role": "system", "content": "# Environment"}


class ClaudeCode:
    """The harness's side of one conversation."""

    def __init__(self, client: RolloutClient, *, system_text: str = "You are an agent.") -> None:
        self._client = client
        client.http.headers.update(HEADERS)
        self._system_text = system_text
        self._messages: list[Json] = [{"role": "user", "content": FIRST}, ENVIRONMENT]
        self._turn = 0

    def turn(self, **fields: Any) -> list[Json]:
        """One request and its blocks, put together from the stream; they are echoed in the next one."""
        self._turn += 1
        told = events(self._client, self._body() | fields)
        blocks = _blocks(told)
        self._messages.append({"role": "assistant", "content": [_echo(block) for block in blocks]})
        return blocks

    def results(self, blocks: list[Json]) -> None:
        """What the tools said, the last one first."""
        uses = [block for block in blocks if block["type"] == "tool_use"]
        self._messages.append(
            {
                "role": "user",
                "content": [
                    {"tool_use_id": use["id"], "type": "tool_result", "content": f"ran {place}", "is_error": False}
                    for place, use in reversed(list(enumerate(uses)))
                ],
            }
        )

    def say(self, *texts: str) -> None:
        """What the user says, and what the harness adds to it."""
        parts = [{"type": "text", "text": text} for text in texts]
        self._messages.append({"role": "user", "content": texts[0] if len(texts) == 1 else parts})

    def _body(self) -> Json:
        messages = copy.deepcopy(self._messages)
        newest = messages[-1]
        if isinstance(newest["content"], str):
            newest["content"] = [{"type": "text", "text": newest["content"]}]
        newest["content"][-1] |= MARK
        return {
            "model": "claude",
            "max_tokens": 1000,
            "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": []},
            "metadata": {"user_id": '{"session_id":"S"}'},
            "system": [
                {
                    "type": "text",
                    "text": f"x-anthropic-billing-header: cc_version=2.1.332.{self._turn:x}; cch=0{self._turn}",
                },
                {"type": "text", "text": self._system_text} | MARK,
            ],
            "tools": [BASH],
            "messages": messages,
        }


def _blocks(told: list[tuple[str, Json]]) -> list[Json]:
    blocks: list[Json] = []
    inputs: dict[int, str] = {}
    for _, event in told:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            elif delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            else:
                block[block["type"]] += delta[block["type"]]
    return [
        block | ({"input": json.loads(inputs[place])} if place in inputs else {}) for place, block in enumerate(blocks)
    ]


def _echo(block: Json) -> Json:
    """Inputs come back in the order of the tool's schema."""
    if block["type"] != "tool_use":
        return block
    order = [name for name in ("command", "description") if name in block["input"]]
    return {**block, "input": {name: block["input"][name] for name in order}}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_rollout_of_claude_code_is_one_unbroken_branch(start: Start, kind: Any) -> None:
    """Every parent is found, and every later prompt begins with the very ids that were sampled."""
    proxy, engine = start(kind)
    client = proxy.rollout(rollout_id="claude")
    engine.script(
        Say("  I will write it.\n\n", reasoning="A shell will do.\n ", calls=(_bash("echo hi > g", "créer"),)),
        Say("", calls=(_bash("cat g"), _bash("ls"))),
        Say("Done.", reasoning="Good."),
        Say("You are welcome."),
    )
    harness = ClaudeCode(client)
    for _ in range(2):
        harness.results(harness.turn())
    harness.turn()
    harness.say("thanks", "<system-reminder>be brief</system-reminder>")
    harness.turn()
    calls = client.calls()

    assert [call["parent"]["outcome"] for call in calls] == ["root", "resolved", "resolved", "resolved"]
    assert [call["parent"]["call_id"] for call in calls[1:]] == [call["call_id"] for call in calls[:-1]]
    assert [call["prefix"]["supplied"] for call in calls] == [False, True, True, True], [
        call["prefix"] for call in calls
    ]
    assert [line["rule"] for line in calls[3]["volatile"]] == ["claude-code-billing-header"]
    assert "messages.cache_control" in calls[0]["sampling"]["ignored"]
    trajectory = (
        proxy.control.post("/rollouts/claude/finish") and proxy.control.get("/rollouts/claude/trajectory").json()
    )
    assert [branch["kind"] for branch in trajectory["branches"]] == ["main"]
    assert trajectory["trainable"]["value"] is True


def _bash(command: str, description: str | None = None) -> ToolSay:
    named = {"description": description} if description else {}
    return ToolSay("Bash", json.dumps({**named, "command": command}))


def test_a_long_conversation_is_not_kept_again_with_each_turn(start: Start) -> None:
    """Marks move, and the header changes: a turn costs what is new in it."""
    proxy, engine = start(engine={"max_model_len": 100_000})
    engine.always(Say("ok"))
    client = proxy.rollout()
    harness = ClaudeCode(client, system_text="be good " * 500)
    sizes = []
    for turn in range(12):
        harness.turn()
        harness.say(f"and {turn}? " + "x" * 1000)
        client.calls()
        sizes.append(_kept(proxy))
    growth = [later - earlier for earlier, later in itertools.pairwise(sizes)]

    assert max(growth[2:]) < 1.5 * min(growth[2:]), growth
    assert client.calls()[-1]["request"]["system"][1]["text"] == "be good " * 500


def _kept(proxy: ServedProxy) -> int:
    """Bytes of bodies in the store."""
    with sqlite3.connect(f"file:{proxy.wiring.settings.store_path}?mode=ro", uri=True) as store:
        return int(store.execute("select sum(length(body)) from bodies").fetchone()[0])
