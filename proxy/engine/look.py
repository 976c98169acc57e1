"""What an engine says of itself, asked without generating a token and without anything that could harm it."""

import re
from dataclasses import replace
from typing import Any, Literal

from proxy import clock
from proxy.engine.answer import Answer, decoded_text, rendered_ids
from proxy.engine.controls import reported_version
from proxy.engine.dialect import CHAT_PATH
from proxy.engine.fingerprint import BATTERY, fingerprint, undated
from proxy.engine.nemo_rl import PREFIX_FIELD
from proxy.engine.upstream import Upstream
from proxy.errors import EngineFault, EngineUnready
from proxy.model import EngineFacts, EngineKind, JsonObject

# No vocabulary reaches this id; both engines answer such a bias with an error that names their range.
FAR_TOKEN_ID = 1_048_576
# From here on SGLang checks logit_bias before it schedules anything.
SGLANG_CHECKS_BIAS_FROM = (0, 5, 18)
# Where that error tells the vocabulary, and how many ids there are beyond the number it tells.
VOCABULARY_IN_REFUSAL: dict[EngineKind, tuple[str, int]] = {
    "vllm": (r"Vocabulary size: (\d+)", 0),
    "nemo_rl": (r"Vocabulary size: (\d+)", 0),
    "sglang": (r"keys in \[0, (\d+)\]", 1),
}
# Prompt ids as no engine takes them, where each would look for them; one that looks names the field in its refusal.
MALFORMED_PROMPT: dict[EngineKind, tuple[JsonObject, str]] = {
    "vllm": ({"kv_transfer_params": {"prompt_token_ids": []}}, "prompt_token_ids"),
    "sglang": ({"input_ids": "none"}, "input_ids"),
    "nemo_rl": ({PREFIX_FIELD: "none"}, PREFIX_FIELD),
}
# An engine that is busy, or a gateway whose engine is away.
PUT_OFF = frozenset({429, 502, 503, 504})
# Of all that a vLLM counts, when its process began; one with several API servers does not tell. Without the slash
# another route answers, which passes the name by and tells everything.
PROCESS_PATH = "/metrics/?name[]=process_start_time_seconds"
SMALLEST_ASK: JsonObject = {"messages": [{"role": "user", "content": "-"}], "max_tokens": 1}


class AnotherKind(EngineUnready):
    """What answers is no engine of the kind that is expected there."""


class Look:
    """Questions to one engine."""

    def __init__(self, upstream: Upstream, url: str, api_key: str | None) -> None:
        self._upstream = upstream
        self._url = url
        self._api_key = api_key

    async def facts(self, kind: EngineKind | Literal["auto"], known: EngineFacts | None = None) -> EngineFacts:
        """Everything the proxy needs to know; raises EngineUnready with the reason where it cannot be had.

        The size of the vocabulary, and whether exact prompts are taken, are read out of refusals, which engines log as
        errors: while everything else is as `known`, they are not asked for again.
        """
        model = await self._served_model()
        found = _kind_of(model)
        if kind not in {"auto", found} and (kind, found) != ("nemo_rl", "vllm"):
            raise AnotherKind(f"{self._url} was configured as {kind} but looks like {found}")
        facts = await (self._sglang_facts(model) if found == "sglang" else self._vllm_facts(model))
        if kind == "nemo_rl":
            facts = replace(facts, kind=kind)
        facts = replace(facts, fingerprint=await self._fingerprint(facts))
        if known is not None and is_same_server(facts, known):
            return replace(facts, vocabulary=known.vocabulary, takes_exact_prompts=known.takes_exact_prompts)
        facts = replace(facts, vocabulary=await self._vocabulary(facts))
        return replace(facts, takes_exact_prompts=await self._takes_exact_prompts(facts))

    async def process(self) -> str | None:
        """What tells this process of vLLM from its successors (`EngineFacts.process`)."""
        answer = await self._get(PROCESS_PATH)
        told = re.search(r"^process_start_time_seconds (\S+)$", answer.text, re.MULTILINE)
        return told.group(1) if told and answer.status == 200 else None

    async def alive(self) -> bool:
        """Whether the engine's HTTP server answers; nothing is generated, and no scheduler is asked."""
        try:
            return (await self._question("/v1/models", None)).status == 200
        except EngineFault:
            return False

    async def _served_model(self) -> JsonObject:
        try:
            answer = await self._question("/v1/models", None)
        except EngineFault as fault:
            raise EngineUnready(f"{fault.in_full}; start it, or mend its url") from fault
        models = answer.body.get("data") if isinstance(answer.body, dict) else None
        served = models[0] if isinstance(models, list) and models else None
        if answer.status in {401, 403}:
            raise EngineUnready(f"/v1/models answered {answer.status}: give the engine's api_key")
        if answer.status != 200 or not isinstance(served, dict) or not isinstance(served.get("id"), str):
            what = f"/v1/models answered {answer.status} and no list of models"
            raise EngineUnready(f"{what}: the url is that of an engine, without its /v1")
        return served

    async def _vllm_facts(self, model: JsonObject) -> EngineFacts:
        version = await self._get("/version")
        # Only in vLLM's development mode; elsewhere the logprob mode stays unknown.
        info = await self._get("/server_info")
        weights = await self._get("/weight_info")
        version_told = reported_version(weights)
        mode = re.search(r"logprobs_mode[=:]\s*'?\"?(\w+)", str(info.body)) if info.status == 200 else None
        return EngineFacts(
            kind="vllm",
            version=_text(version.body, "version"),
            model=str(model["id"]),
            context_length=_number(model.get("max_model_len")),
            vocabulary=None,
            deterministic=_batch_invariant(info),
            details={"root": model.get("root")}
            | ({"logprobs_mode": mode.group(1)} if mode else {})
            | ({} if version_told is None else {"weight_version": version_told}),
            process=await self.process() if version_told is None else None,
        )

    async def _sglang_facts(self, model: JsonObject) -> EngineFacts:
        info = await self._sglang_info("/server_info", "/get_server_info")
        live = await self._sglang_info("/model_info", "/get_model_info")
        version = _text(info, "version")
        kept = (
            "tool_call_parser",
            "reasoning_parser",
            "attention_backend",
            "sampling_defaults",
            "speculative_algorithm",
        )
        return EngineFacts(
            kind="sglang",
            version=version,
            # Loading weights from disk makes their path the name everywhere else; what it was started as stays here.
            model=str(info.get("served_model_name") or model["id"]),
            context_length=_number(model.get("max_model_len")) or _number(info.get("context_length")),
            vocabulary=None,
            deterministic=bool(info.get("enable_deterministic_inference") or info.get("rl_on_policy_target")),
            auto_truncates=bool(info.get("allow_auto_truncate")),
            details={name: info[name] for name in kept if info.get(name) is not None}
            | {
                "root": info.get("model_path"),
                "logprobs_mode": "processed_before_filters",
                "weight_version": live.get("weight_version"),
                **{name: live.get(name) for name in ("has_image_understanding", "has_audio_understanding")},
            },
        )

    async def _sglang_info(self, path: str, older_path: str) -> JsonObject:
        answer = await self._get(path)
        if answer.status == 404:
            answer = await self._get(older_path)
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise EngineUnready(f"{self._url}{path} answered {answer.status}: does a router stand in front of SGLang?")
        return answer.body

    async def _fingerprint(self, facts: EngineFacts) -> str | None:
        """What it makes of the battery on whatever day; None where it does not render on request."""
        renders: list[tuple[int, ...] | None] = []
        for conversation in BATTERY:
            answer = self._answered(await self._question("/tokenize", {"model": facts.model} | conversation))
            ids = rendered_ids(answer)
            if ids is None and answer.status != 400:
                return None
            renders.append(ids and await self._undated(facts, ids))
        return fingerprint(facts.kind, facts.model, renders)

    async def _undated(self, facts: EngineFacts, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids of a render as they would be without today's date in it; as they are where it has none."""
        body = {"model": facts.model, "tokens": list(ids), "skip_special_tokens": False}
        text = decoded_text(await self._question("/detokenize", body)) or ""
        plain = undated(text, clock.today())
        if plain == text:
            return ids
        body = {"model": facts.model, "prompt": plain, "add_special_tokens": False}
        return rendered_ids(await self._question("/tokenize", body)) or ids

    async def _vocabulary(self, facts: EngineFacts) -> int | None:
        """The number of ids, read out of the refusal of an impossible logit bias; None where asking is not safe."""
        if not _checks_bias(facts):
            return None
        answer = await self.refused_ask(facts, {})
        pattern, ids_beyond = VOCABULARY_IN_REFUSAL[facts.kind]
        found = re.search(pattern, answer.text) if answer.status == 400 else None
        return int(found.group(1)) + ids_beyond if found else None

    async def _takes_exact_prompts(self, facts: EngineFacts) -> bool | None:
        """Whether malformed prompt ids are noticed before an impossible logit bias is: nothing runs either way.

        Servers that do not know the field, and routers that drop it, pass it by without a word. That a server which
        knows it obeys it is for each reply to show.
        """
        if not _checks_bias(facts):
            return None
        malformed, name = MALFORMED_PROMPT[facts.kind]
        answer = await self.refused_ask(facts, malformed)
        if answer.status != 400:
            return None
        return name in answer.text

    async def refused_ask(self, facts: EngineFacts, more: JsonObject) -> Answer:
        """A call that the engine refuses for its logit bias before it schedules anything."""
        bias = {"logit_bias": {str(FAR_TOKEN_ID): 0}}
        return await self._question(CHAT_PATH, SMALLEST_ASK | {"model": facts.model, "temperature": 1} | bias | more)

    async def _get(self, path: str) -> Answer:
        return self._answered(await self._question(path, None))

    def _answered(self, answer: Answer) -> Answer:
        """An answer that tells something; one that puts off tells of no other engine."""
        if answer.status in PUT_OFF:
            raise EngineUnready(f"{self._url} answered {answer.status} when it was asked who it is")
        return answer

    async def _question(self, path: str, body: JsonObject | None) -> Answer:
        return await self._upstream.question(self._url, path, body, api_key=self._api_key)


def is_same_server(facts: EngineFacts, known: EngineFacts) -> bool:
    """Whether two looks saw the same engine, so far as it tells of itself.

    New weights do not make another one, nor does a new process: several that are alike may serve one address in turn.
    """
    ours, theirs = (
        replace(
            seen,
            vocabulary=None,
            takes_exact_prompts=None,
            process=None,
            proof=None,
            details=seen.details | {"weight_version": None},
        )
        for seen in (facts, known)
    )
    return ours == theirs


def _batch_invariant(info: Answer) -> bool | None:
    """Whether vLLM runs batch invariant; None outside development mode, where it does not tell."""
    told = info.body.get("vllm_env") if info.status == 200 and isinstance(info.body, dict) else None
    value = told.get("VLLM_BATCH_INVARIANT") if isinstance(told, dict) else None
    return None if value is None else str(value).lower() in {"1", "true"}


def _checks_bias(facts: EngineFacts) -> bool:
    """Whether an impossible logit bias is refused; older schedulers of SGLang would die of it."""
    return facts.kind != "sglang" or _version(facts.version) >= SGLANG_CHECKS_BIAS_FROM


def _kind_of(model: JsonObject) -> EngineKind:
    owner = model.get("owned_by")
    if owner == "vllm":
        return "vllm"
    if owner == "sglang":
        return "sglang"
    raise AnotherKind(f"/v1/models is owned by {owner!r}: neither vLLM nor SGLang answers there")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _text(body: Any, name: str) -> str:
    value = body.get(name) if isinstance(body, dict) else None
    return value if isinstance(value, str) else "unknown"


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
