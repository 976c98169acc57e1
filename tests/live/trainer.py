"""A trainer that changes the weights of a real engine while long calls run; the engine's own endpoints, unchanged."""

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.live.engines.models import ensure_model
from tests.live.harness import PATIENCE_S, Site, patient, until
from tests.live.speaking import MARKUP, NO_MARKUP, Json

CALLS = 6
# Few replies of random weights end by themselves before that.
TOKENS = {"sglang": 700, "vllm": 900}
# A busy vLLM hears of a pause late, so what is to meet one there goes on for long. Its logprobs are those before the
# bias; SGLang's are those behind it, which transformers does not know.
LONG: dict[str, Json] = {"sglang": {}, "vllm": {"max_tokens": 1500, **NO_MARKUP}}
# It may hear of one behind the last token of all of them; then the next is waited for.
MOST_UPDATES = 4
LEAST_MET = 2
# The kinds of text in a message, by the names that clients know them by.
TEXTS = ("reasoning_content", "content")


@dataclass(slots=True)
class Trainer:
    """Whoever changes the weights of a site's engine, to and fro between two models."""

    site: Site
    now: Path
    """The model whose weights the engine has."""
    _models: Any = field(default_factory=lambda: itertools.cycle((ensure_model("tiny2"), ensure_model("tiny"))))
    _versions: Any = field(default_factory=lambda: itertools.count(1))
    _groups: Any = field(default_factory=itertools.count)

    def group(self) -> str:
        """A group that no call was in before."""
        return f"g{next(self._groups)}"

    def call(self, **fields: Any) -> "Call":
        """A whole call of a group of its own."""
        return Call(self.site, group=self.group(), **fields)

    def load(self, **more: Any) -> str:
        """Change the engine's weights to those of the other model; their version."""
        self.now, version = next(self._models), f"w{next(self._versions)}"
        if self.site.kind == "sglang":
            self._tell("/update_weights_from_disk", {"model_path": str(self.now), "weight_version": version, **more})
        else:
            self._tell("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(self.now)}})
            self._tell("/update_weight_version", {"new_version": version})
        return version

    def update(self, mode: str, **more: Any) -> str:
        """The whole way of a trainer: pause, load, tell, resume."""
        self.site.order("/pause", {"mode": mode, "lease_s": PATIENCE_S})
        version = self.load(**more)
        self.site.order("/weights", {"version": version})
        self.site.order("/resume")
        return version

    def _tell(self, path: str, body: Json) -> None:
        httpx.post(self.site.engine.url + path, json=body, timeout=PATIENCE_S).raise_for_status()


class Call(threading.Thread):
    """One long call on its way."""

    def __init__(self, site: Site, *, group: str, sample: int = 0, run: str = "default", **fields: Any) -> None:
        super().__init__()
        self.client = patient(site.proxy.rollout(group=group, sample=sample, run=run))
        self.fields = {"max_tokens": TOKENS[site.kind], **fields}
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = self.client.chat("Tell a long story.", **self.fields)

    def is_known(self) -> bool:
        """Whether the proxy has taken the call up."""
        return bool(self.client.proxy.calls(self.client.rollout_id))

    def reply(self) -> httpx.Response:
        """The answer, once it is whole and well."""
        self.join(PATIENCE_S)
        assert self.answer is not None
        assert self.answer.status_code == 200, self.answer.text
        assert '{"error"' not in self.answer.text, self.answer.text[-400:]
        return self.answer

    def is_refused(self) -> bool:
        """Whether a stream had shown markup that SGLang reads otherwise once it has the whole, which is told aloud.

        Only random weights open a thought anew or call tools in mid-thought; it is no reply that could be mislabelled.
        """
        self.join(PATIENCE_S)
        if self.answer is None or "parsers_disagree" not in self.answer.text:
            return False
        record = self.client.call()
        assert record["failure"]["kind"] == "engine_aborted"
        assert any(str(token) in MARKUP for token in record["completion_token_ids"])
        return True

    def said(self) -> str:
        """All the text that its client put together, thought and words."""
        reply = self.reply()
        if not self.fields.get("stream"):
            messages = [reply.json()["choices"][0]["message"]]
        else:
            lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
            messages = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
        return "".join(text for name in TEXTS for one in messages if (text := one.get(name)))

    def record(self) -> Json:
        """What is on record of it at its end."""
        self.reply()
        return self.client.call()


@dataclass(frozen=True, slots=True)
class Met:
    """An update of the weights that calls met in mid-reply."""

    records: list[Json]
    """Of these calls alone."""
    old: tuple[str, Path]
    new: tuple[str, Path]
    """Version and model, before and behind it."""


def update_under_calls(trainer: Trainer, mode: str, is_met: Callable[[Json], bool], *, stream: bool) -> Met:
    """The first of a few updates that met enough calls, by what is on record of them."""
    for _ in range(MOST_UPDATES):
        old = str(trainer.call().record()["segments"][0]["weight_version"]), trainer.now
        calls = long_calls(trainer, stream=stream)
        new = trainer.update(mode), trainer.now
        records = [call.record() for call in calls if not call.is_refused()]
        met = [record for record in records if is_met(record)]
        if len(met) >= LEAST_MET:
            return Met(met, old, new)
    raise AssertionError(f"{MOST_UPDATES} updates met no calls: {[record['segments'] for record in records]}")


def long_calls(trainer: Trainer, *, stream: bool) -> list[Call]:
    """Calls in the middle of their replies."""
    group = trainer.group()
    long = {**LONG[trainer.site.kind], "stream": stream}
    calls = [Call(trainer.site, group=group, sample=sample, **long) for sample in range(CALLS)]
    until(lambda: all(call.is_known() for call in calls))
    trainer.site.works_on(8)
    return calls
