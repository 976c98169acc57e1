"""What tells one kind of engine from the other, and what its endpoints may do to the engine."""

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from starlette.routing import Route

from proxy.sim.apis import Api
from proxy.sim.ask import Ask, Event, PauseMode, Setup, Spans
from proxy.sim.draw import Completion
from proxy.sim.shaping import Manner
from proxy.sim.template import Json


class Dialect(Protocol):
    """What tells one engine from the other."""

    @property
    def responses(self) -> Api:
        """The Responses API as it serves it."""
        ...

    def read(self, body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
        """Check a request; `Refusal` or `EngineDeath` when it can't be served."""
        ...

    def read_plain(self, body: Json, headers: Mapping[str, str], setup: Setup) -> Ask:
        """The same for a plain completion."""
        ...

    def seed(self, ask: Ask, setup: Setup, choice: int) -> int | None:
        """The seed a choice is drawn with; None for a new one each time."""
        ...

    @property
    def manner(self) -> Manner:
        """How it draws."""
        ...

    def whole(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup, spans: Spans) -> Json:
        """The body of a reply that is not streamed."""
        ...

    def events(self, ask: Ask, completions: tuple[Completion, ...], setup: Setup) -> list[Event]:
        """The events of a streamed reply, without the closing mark."""
        ...

    def error(self, status: int, message: str) -> Json:
        """An error body of the engine's own shape."""
        ...

    def error_event(self, status: int, message: str) -> Json:
        """An error in the middle of a stream."""
        ...

    def routes(self, engine: "EngineView") -> list[Route]:
        """The endpoints besides generation."""
        ...


class EngineView(Protocol):
    """What the other endpoints may look at and do."""

    setup: Setup
    pause: PauseMode | None
    started_at: float
    """When the process began, in seconds since the epoch."""
    scored: deque[Json]
    """The newest questions for logprobs of given ids."""

    @property
    def running(self) -> int:
        """How many calls are being answered."""
        ...

    @property
    def busy(self) -> int:
        """How many calls have begun to draw and are not over."""
        ...

    def flush(self) -> None:
        """Empty the prefix cache."""
        ...

    def load_weights(self, weights: str) -> None:
        """Take other weights; their label stays."""
        ...

    def hold(self, mode: PauseMode) -> None:
        """Pause; what runs has its cache computed anew later, but for `in_place`."""
        ...

    def abort(self, start_of_id: str) -> None:
        """Abort the running calls whose id starts so; an empty string means all."""
        ...

    def label_weights(self, version: str) -> None:
        """Change the weights' label."""
        ...
