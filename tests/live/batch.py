"""A batch of calls of every sort, sixteen at a time, while a trainer pauses and resumes the engine under them.

Pauses come by the count of calls that were answered, which is how far the engine has got. All the while some clients
have long stories told to them, so that every pause finds replies in the middle.
"""

import threading
from collections.abc import Callable
from typing import Any

import httpx

from tests.live.harness import PATIENCE_S, Site, at_once, until
from tests.live.speaking import ADD_TOOL, FIRST_END, NO_MARKUP, NO_THINKING, Json, forced_call
from tests.served import RolloutClient

AT_ONCE = 16
LISTENERS = 4
ROLLOUTS = {"sglang": 32, "vllm": 12}
PAUSES = 5
# Calls that are answered between two pauses; five times as many are far from all.
BETWEEN_PAUSES = {"sglang": 16, "vllm": 8}
GROWTH_TOKENS = 8
STORY_TOKENS = {"sglang": 500, "vllm": 1000}
# A pause ends what cannot be gone on with, a reply under a grammar for one; each try can meet one pause.
MOST_TRIES = PAUSES + 1
TRY_AGAIN = ("engine_aborted", "resume_failed")
Ask = Callable[[Json], httpx.Response]
Way = Callable[[Ask, str], None]
TEXTS = ("import os", "def main():", "class A:", "return", "for x in", "while True", "try:", "with open(")


class Batch:
    """The rollouts of one batch, and what their clients were answered so far."""

    def __init__(self, site: Site) -> None:
        self.listeners = [site.rollout(f"story-{number}") for number in range(LISTENERS)]
        self.others = [site.rollout(f"replayed-{number}") for number in range(ROLLOUTS[site.kind])]
        self.answers: list[httpx.Response] = []
        self._site = site
        self._no_more_pauses = threading.Event()

    def record(self) -> None:
        """Play all of them, the listeners first, and the pauses beside them."""
        stories = [lambda c=c, n=n: self._listen(c, stream=n % 2 == 0) for n, c in enumerate(self.listeners)]
        others = [lambda c=c, n=n: self._play(c, n) for n, c in enumerate(self.others)]
        at_once([self._pause, *stories, *others], AT_ONCE + 1)

    def _pause(self) -> None:
        """What a trainer does at each update of the weights, without the update; stories have grown since the last."""
        for number in range(1, PAUSES + 1):
            until(lambda number=number: len(self.answers) >= number * BETWEEN_PAUSES[self._site.kind])
            self._site.works_on(GROWTH_TOKENS)
            self._site.order("/pause", {"mode": "abort", "lease_s": PATIENCE_S})
            self._site.order("/resume")
        self._no_more_pauses.set()

    def _listen(self, client: RolloutClient, *, stream: bool) -> None:
        """Long replies, as long as there are pauses: streams that begin anew, whole ones that are gone on from once."""
        opening: list[Json] = [{"role": "user", "content": "Tell a long story."}]
        shape = {"stream": stream, "max_tokens": STORY_TOKENS[self._site.kind], **NO_MARKUP, **NO_THINKING}
        messages = opening
        while not self._no_more_pauses.is_set():
            answer = self._ask(client, {"messages": messages, **shape})
            is_first = messages is opening and not stream
            messages = [*opening, said_in(answer), {"role": "user", "content": "Go on."}] if is_first else opening

    def _play(self, client: RolloutClient, number: int) -> None:
        """Two of the ways, so that neighbours in a batch are of every sort, and three choices."""
        ways: list[Way] = [three_turns, choices, lambda ask, text: tool_turns(self._site, ask, text), streams]
        for way in (ways[number % 4], ways[(number // 4 + number + 1) % 4], choices):
            way(lambda body: self._ask(client, body), f"{TEXTS[number % len(TEXTS)]} {number}")

    def _ask(self, client: RolloutClient, body: Json) -> httpx.Response:
        """One call, asked again where a pause ended it, as harnesses do."""
        for _ in range(MOST_TRIES):
            answer = client.post({"model": "policy", **body})
            if answer.status_code == 200 and '{"error"' not in answer.text:
                self.answers.append(answer)
                return answer
            assert any(code in answer.text for code in TRY_AGAIN), answer.text[-500:]
        raise AssertionError(answer.text[-500:])


def three_turns(ask: Ask, text: str) -> None:
    """A conversation that grows by its own replies."""
    messages: list[Json] = [{"role": "user", "content": text}]
    for more in ("and then?", "why?", ""):
        answer = ask({"messages": messages, "max_tokens": 24, **NO_THINKING})
        messages += [said_in(answer), {"role": "user", "content": more}]


def choices(ask: Ask, text: str) -> None:
    """Three replies to one request."""
    ask({"messages": [{"role": "user", "content": text}], "n": 3, "max_tokens": 20})


def tool_turns(site: Site, ask: Ask, text: str) -> None:
    """A tool call under a grammar, and what is said to its result."""
    messages: list[Json] = [{"role": "user", "content": text}]
    said = said_in(ask({"messages": messages, **forced_call(site.kind)}))
    messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "3"}]
    ask({"messages": messages, "tools": [ADD_TOOL], "max_tokens": 20, **NO_THINKING})


def streams(ask: Ask, text: str) -> None:
    """Streamed replies: to the end, cut by length, and up to a stop string."""
    ends: list[Json] = [
        {"max_tokens": 300, "logit_bias": {FIRST_END: 2}},
        {"max_tokens": 8},
        {"max_tokens": 60, "stop": ["e"]},
    ]
    for end in ends:
        ask({"messages": [{"role": "user", "content": text}], "stream": True, **end})


def said_in(answer: httpx.Response) -> Any:
    """The assistant's message."""
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]
