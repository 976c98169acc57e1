"""SGLang's chat and plain completions as seen on 0.5.23."""

from collections.abc import Mapping

from starlette.routing import Route

from proxy.sim.apis import Responses
from proxy.sim.ask import Ask, Event, Setup, Spans
from proxy.sim.dialect import EngineView
from proxy.sim.draw import Completion
from proxy.sim.sglang import plain, reply, request
from proxy.sim.sglang.endpoints import Endpoints
from proxy.sim.shaping import Manner
from proxy.sim.template import Json

UNSEEDED = 42
"""The seed that deterministic mode gives to every request without one."""


class SGLang:
    """The dialect."""

    responses = Responses()
    """No seed: under the deterministic flag these routes always draw with the one that is given to all."""
    manner = Manner(by_position=True, raw_logprobs=False, penalises_prompt=False)
    """Noise by absolute position, logprobs of what is drawn from but for the filters, penalties on the output alone."""

    def read(self, body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
        """Check a chat request as SGLang does."""
        return request.read(body, headers, setup)

    def read_plain(self, body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
        """Check a plain completion."""
        return request.read_plain(body, headers, setup)

    def seed(self, ask: Ask, setup: Setup, choice: int) -> int | None:  # noqa: ARG002  as Dialect has it
        """Without the deterministic flag seeds are ignored; with it, all choices share one."""
        if ask.sampling.temperature == 0:
            return 0
        if not setup.deterministic:
            return None
        return UNSEEDED if ask.seed is None else ask.seed

    def whole(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup, spans: Spans) -> Json:
        """A `chat.completion`, or a `text_completion`."""
        return plain.whole(ask, completions, spans) if ask.is_plain else reply.whole(ask, completions, setup, spans)

    def events(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup) -> list[Event]:
        """`chat.completion.chunk`s, or pieces of a `text_completion`."""
        return plain.events(ask, completions, setup) if ask.is_plain else reply.events(ask, completions, setup)

    def error(self, status: int, message: str) -> Json:
        """The flat error body."""
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        return request.refuse(message, kind, status=status).body

    def error_event(self, status: int, message: str) -> Json:
        """The same, nested under `error`, as streams have it."""
        return {"error": self.error(status, message)}

    def routes(self, engine: EngineView) -> list[Route]:
        """What the server answers besides generation."""
        return Endpoints(engine).routes()
