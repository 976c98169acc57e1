"""SGLang's chat completions as seen on 0.5.23."""

from collections.abc import Mapping

from starlette.routing import Route

from tests.fakes.ask import Ask, EngineView, Event, Setup, Spans
from tests.fakes.draw import Completion
from tests.fakes.sglang import reply, request
from tests.fakes.sglang.endpoints import Endpoints
from tests.fakes.template import Json

UNSEEDED = 42
"""The seed that deterministic mode gives to every request without one."""


class SGLang:
    """The dialect."""

    resumes = True
    """Its noise hangs on the absolute position: a prompt with partial output appended goes on as before."""

    def read(self, body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
        """Check a chat request as SGLang does."""
        return request.read(body, headers, setup)

    def seed(self, ask: Ask, setup: Setup, choice: int) -> int | None:
        """Without the deterministic flag seeds are ignored; with it, all choices share one."""
        if ask.sampling.temperature == 0:
            return 0
        if not setup.deterministic:
            return None
        return UNSEEDED if ask.seed is None else ask.seed

    def whole(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup, spans: Spans) -> Json:
        """A `chat.completion`."""
        return reply.whole(ask, completions, spans)

    def events(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup) -> list[Event]:
        """`chat.completion.chunk`s."""
        return reply.events(ask, completions, setup)

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
