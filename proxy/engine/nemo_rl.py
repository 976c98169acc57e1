"""NeMo-RL's own server around vLLM: chat as vLLM speaks it, exact prefixes by a field of its own.

Written from what its source says and tested against a scripted server; no NeMo-RL was at hand. Where it differs from
vLLM: `required_prefix_token_ids` takes the ids up to the end of the parent's turn, the server renders the request and
puts them in the place of what it rendered for them; ids may come back on the message. What it put together is proven
like anywhere: by prompt ids equal to those that request/joint.py found.
"""

from collections.abc import Sequence

from proxy.engine.fold import Arrived
from proxy.engine.vllm import VllmDialect
from proxy.model import Ask, EngineKind, EngineRef, EngineRequest, JsonObject, Plan

PREFIX_FIELD = "required_prefix_token_ids"


class NemoRlDialect:
    """How NeMo-RL's server is asked and read."""

    kind: EngineKind = "nemo_rl"
    reasoning_key = VllmDialect.reasoning_key
    developer_role = VllmDialect.developer_role
    shaping = VllmDialect.shaping
    _vllm = VllmDialect()

    def encode(self, plan: Plan) -> EngineRequest:
        request = self._vllm.encode(plan)
        body = {name: value for name, value in request.body.items() if name != "kv_transfer_params"}
        if plan.prefix.requested:
            body[PREFIX_FIELD] = list(plan.prefix.token_ids[: plan.prefix.parent_length])
        return EngineRequest(request.path, body)

    def render(
        self, ask: Ask, engine: EngineRef, messages: Sequence[JsonObject], *, generation_prompt: bool = True
    ) -> EngineRequest:
        return self._vllm.render(ask, engine, messages, generation_prompt=generation_prompt)

    def decode(self, engine: EngineRef, ids: Sequence[int]) -> EngineRequest:
        return self._vllm.decode(engine, ids)

    def read_tokens(self, event: JsonObject, choice: JsonObject) -> Arrived:
        arrived = self._vllm.read_tokens(event, choice)
        said = choice.get("message") or choice.get("delta") or {}
        return Arrived(
            prompt_ids=arrived.prompt_ids or said.get("prompt_token_ids"),
            completion_ids=arrived.completion_ids or said.get("generation_token_ids") or [],
        )
