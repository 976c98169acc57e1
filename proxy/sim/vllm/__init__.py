"""vLLM's chat and plain completions as seen on 0.32.0."""

from collections.abc import Mapping

from starlette.routing import Route

from proxy.sim.apis import Responses
from proxy.sim.ask import Ask, Event, Setup, Spans, experts_of
from proxy.sim.dialect import EngineView
from proxy.sim.draw import Completion
from proxy.sim.shaping import Manner
from proxy.sim.template import Json
from proxy.sim.vllm import plain, reply, request
from proxy.sim.vllm.endpoints import Endpoints


class VLLM:
    """The dialect."""

    responses = Responses(extra=("seed", "logit_bias", "stop_token_ids", "ignore_eos"))
    manner = Manner(by_position=False, raw_logprobs=True, penalises_prompt=True)
    """One stream of noise per request, from its first draw on; logprobs of the bare logits (its default mode)."""

    def read(self, body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
        """Check a chat request in the order vLLM does."""
        return request.read(body, headers, setup)

    def read_plain(self, body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
        """Check a plain completion."""
        return request.read_plain(body, headers, setup)

    def seed(self, ask: Ask, setup: Setup, choice: int) -> int | None:  # noqa: ARG002  as Dialect has it
        """Choice i is drawn as a request of its own with seed + i."""
        if ask.sampling.temperature == 0:
            return 0
        return None if ask.seed is None else ask.seed + choice

    def whole(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup, spans: Spans) -> Json:  # noqa: ARG002  as Dialect has it
        """A `chat.completion`, which alone tells of experts, or a `text_completion`."""
        if ask.is_plain:
            return plain.whole(ask, completions)
        payload = reply.whole(ask, completions)
        for choice, completion in zip(payload["choices"], completions, strict=True):
            choice["routed_experts"] = experts_of(completion.ids) if setup.mixture else None
        return payload

    def events(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup) -> list[Event]:
        """`chat.completion.chunk`s, or pieces of a `text_completion`."""
        return plain.events(ask, completions, setup) if ask.is_plain else reply.events(ask, completions, setup)

    def error(self, status: int, message: str) -> Json:
        """The error body, nested under `error`."""
        kind = "InternalServerError" if status >= 500 else "BadRequestError"
        return {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def error_event(self, status: int, message: str) -> Json:
        """The same body as an event."""
        return self.error(status, message)

    def routes(self, engine: EngineView) -> list[Route]:
        """What a server without development mode answers."""
        return Endpoints(engine).routes()
