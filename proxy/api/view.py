"""What a client API is to the data plane: how its bodies are read, and how a reply looks to its clients."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from proxy.api.forms import ErrorForm, openai_form
from proxy.errors import ProxyError
from proxy.model import Ask, Completion, Identity, JsonObject, RolloutId
from proxy.record.store import Store
from proxy.running import Head
from proxy.settings import Settings


class View(Protocol):
    """One reply as one client sees it; made anew for each reading."""

    heartbeat: bytes
    """What keeps a silent stream alive."""

    def chunks(self, choice: int, event: JsonObject) -> Iterator[bytes]:
        """The client's events for one chat event of an engine's, or for a whole reply."""

    def stream_end(self, completions: Sequence[Completion]) -> bytes:
        """What closes a stream that came to its end."""

    def stream_error(self, error: ProxyError) -> bytes:
        """What closes a stream that did not."""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The body of an unstreamed reply."""


ReadAsk: TypeAlias = Callable[[Identity, JsonObject, Settings], Ask]


@dataclass(frozen=True, slots=True)
class ClientApi:
    """One API that harnesses speak."""

    read_ask: ReadAsk
    """Checks a body and puts it into chat form; raises BadAsk naming the field."""
    view: Callable[[Ask, Head, str], View]
    """Of a request and the head of its reply; the text is the name that clients know reasoning by."""
    tell: ErrorForm = openai_form
    """How its clients are told of an error before anything was sent."""
    refer: Callable[[JsonObject, RolloutId, Store], Awaitable[ReadAsk]] | None = None
    """Where bodies may refer to earlier replies: looks those up, and gives the reader that knows them."""

    async def reader(self, body: JsonObject, rollout_id: RolloutId, store: Store) -> ReadAsk:
        """What puts this body into chat form."""
        return self.read_ask if self.refer is None else await self.refer(body, rollout_id, store)
