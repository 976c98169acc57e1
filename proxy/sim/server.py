"""A simulated engine on a real socket, served by uvicorn on a thread of its own."""

import asyncio
import math
import socket
import threading
from collections.abc import Callable
from typing import Any, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy import clock
from proxy.listening import listen_on
from proxy.sim.ask import Setup
from proxy.sim.engine import Engine, Fits, Kind, Received, Recurring
from proxy.sim.scenario import Scenario
from proxy.sim.script import Item
from proxy.sim.template import Json

GRACE_S = 1.0
"""How long interrupted calls get to notice that they are over."""


class SimEngine:
    """A scripted vLLM or SGLang. Start and stop it with `with`, or with `start()` and `stop()`."""

    def __init__(
        self,
        kind: Kind,
        *,
        deterministic: bool = True,
        token_delay_s: float = 0.0,
        tokens_per_event: int = 1,
        max_model_len: int = 4096,
        model: str = "tiny",
        parsers: bool = True,
        dev_mode: bool = False,
        neutral_defaults: bool = False,
        raw_logprobs: bool | None = None,
        auto_truncates: bool = False,
        api_servers: int = 1,
        scale_out: bool = True,
        mixture: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        scenario: Scenario | None = None,
        recurring: Recurring | None = None,
        keep_requests: int | None = None,
    ) -> None:
        setup = Setup(
            model=model,
            deterministic=deterministic,
            max_model_len=max_model_len,
            token_delay_s=token_delay_s,
            tokens_per_event=tokens_per_event,
            parsers=parsers,
            dev_mode=dev_mode,
            neutral_defaults=neutral_defaults,
            raw_logprobs=raw_logprobs,
            auto_truncates=auto_truncates,
            api_servers=api_servers,
            scale_out=scale_out,
            mixture=mixture,
            scenario=scenario,
        )
        self._engine = Engine(kind, setup, recurring, keep_requests)
        self._host, self._port = host, port
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://[{self._host}]:{self._port}" if ":" in self._host else f"http://{self._host}:{self._port}"

    @property
    def requests(self) -> list[Received]:
        """The generation requests taken, in order; those it refused as invalid are not among them."""
        return self._engine.requests

    @property
    def refused(self) -> list[Received]:
        """The generation requests answered with an error of the engine's own, in order."""
        return self._engine.refused

    @property
    def scored(self) -> list[Json]:
        """The newest questions for logprobs of given ids, in order."""
        return list(self._engine.scored)

    @property
    def running(self) -> int:
        """How many calls are being answered."""
        return self._engine.running

    @property
    def halted(self) -> int:
        """How many calls wait to be told to go on."""
        return self._engine.halted

    @property
    def aborted(self) -> int:
        """How many calls ended because the client left."""
        return self._engine.aborted

    @property
    def served(self) -> int:
        """How many calls are over, however they ended."""
        return self._engine.served

    @property
    def is_alive(self) -> bool:
        """The socket is open."""
        return self._server is not None and self._server.is_alive()

    def script(self, *items: Item) -> None:
        """What happens to the next generation requests, one item each."""
        self._engine.script(*items)

    def script_when(self, fits: Fits, item: Item) -> None:
        """What happens to the first generation request whose body fits, whenever it comes."""
        self._engine.script_when(fits, item)

    def always(self, item: Item | None) -> None:
        """What happens whenever nothing else is scripted; None for the toy model's own words."""
        self._engine.always(item)

    def go_on(self) -> None:
        """Let the calls that run now go on without further delay, whatever the script has them wait for."""
        if self._server is not None:
            self._server.do(self._engine.go_on)

    def start(self) -> None:
        """Listen, as a process of its own."""
        self._engine.started_at = clock.now()
        listener = listen_on(self._host, self._port)
        self._port = listener.getsockname()[1]
        self._server = _Server(self._engine, listener)
        self._server.start()
        self._server.ready.wait()

    def stop(self) -> None:
        """Close the socket and every connection at once."""
        if self._server is not None:
            self._server.die()
            self._server.join()

    def restart(self) -> None:
        """Come back on the same port, with the script and the counters kept."""
        self.stop()
        self.start()

    def wait(self) -> None:
        """Wait until the engine is dead."""
        if self._server is not None:
            self._server.join()


class _Server(threading.Thread):
    """The thread, its event loop and the sockets."""

    def __init__(self, engine: Engine, listener: socket.socket) -> None:
        super().__init__(name=f"sim-{engine.kind}", daemon=True)
        self.ready = threading.Event()
        self._engine, self._listener = engine, listener
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        config = uvicorn.Config(
            engine.app(), log_config=None, access_log=False, lifespan="off", ws="none", http="httptools"
        )
        self._uvicorn = uvicorn.Server(config)
        engine.on_death, engine.on_cut = self._kill, self._cut

    def run(self) -> None:
        """Serve until death."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def die(self) -> None:
        """Die, from any thread."""
        self.do(self._kill)

    def do(self, work: Callable[[], None]) -> None:
        """Have something done in its thread, if it lives."""
        if self.is_alive():
            self._loop.call_soon_threadsafe(work)

    async def _serve(self) -> None:
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        await self._until(lambda: self._uvicorn.started or serving.done(), math.inf)
        self.ready.set()
        await self._over.wait()
        await self._until(lambda: not self._uvicorn.server_state.tasks, GRACE_S)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait, for so long at most, for something that uvicorn has no event for."""
        deadline = self._loop.time() + seconds
        while not is_so() and self._loop.time() < deadline:  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.001)

    def _kill(self) -> None:
        """Nobody listens any more, and nobody is listened to."""
        for server in self._uvicorn.servers:
            server.close()
        for connection in list(self._uvicorn.server_state.connections):
            _abort(connection)
        self._over.set()

    def _cut(self, client: Any) -> None:
        for connection in list(self._uvicorn.server_state.connections):
            if cast("HttpToolsProtocol", connection).client == tuple(client):
                _abort(connection)


def _abort(connection: Any) -> None:
    """Close a connection without another word."""
    connection.transport.abort()
