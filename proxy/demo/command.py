"""`rollpin demo`: everything in one process on real sockets, in a folder that goes away with it."""

import asyncio
import socket
import tempfile
from pathlib import Path
from typing import Any

import httpx
import uvloop
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from rich.console import Console

from proxy.app import run_proxy, stop_on_signals
from proxy.demo.agent import AgentFailed
from proxy.demo.group import compare, digest_of, replay, run_group
from proxy.demo.page import Page, console_for
from proxy.log import start_log
from proxy.server import Server
from proxy.settings import EngineSettings, Settings
from proxy.sim import SimEngine
from proxy.sim.scenario import load_scenario
from proxy.wiring import Wiring

HOST = "127.0.0.1"
USUAL_PORT = 8080
# Not secret: everything here is made up, only this machine can reach it, and `example.py` knows it.
ADMIN_TOKEN = "demo-admin-token"  # noqa: S105  see above
READ_TOKEN = "demo-reader-token"  # noqa: S105  see above
# Any would do; this one's samples are fun to look at.
RUN_SEED = 7
FIRST, SECOND = "first", "second"
FAILED = 1


class DemoSettings(Settings):
    """Settings that no file and no variable of the reader's can change, so that the tokens are everybody's."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def run_demo(console: Console, *, port: int | None, stay: bool) -> int:
    """Show everything, then stay until a signal comes; the exit status is 1 unless the second run was the first."""
    start_log("console", "error")
    with tempfile.TemporaryDirectory(prefix="rollpin-demo-") as folder, _engine() as engine:
        settings = _settings(Path(folder), engine.url, _free(port))
        show = Show(Page(console_for(console)), engine.url, stay=stay)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(show.run(settings))


def _engine() -> SimEngine:
    return SimEngine(
        "sglang", model="rollpin-sim", max_model_len=32768, scenario=load_scenario("calculator"), keep_requests=1
    )


def _settings(folder: Path, engine: str, port: int) -> Settings:
    return DemoSettings(
        host=HOST,
        port=port,
        engines=(EngineSettings(url=engine),),
        store=f"sqlite:///{folder / 'demo.db'}",
        secrets_file=folder / "secrets.json",
        admin_token=ADMIN_TOKEN,
        read_token=READ_TOKEN,
        run_seed=RUN_SEED,
        auto_register=True,
    )


def _free(port: int | None) -> int:
    """The port asked for; by default the usual one, or whichever is free where that is taken."""
    if port is not None:
        return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


class Show:
    """The demo beside the running proxy."""

    def __init__(self, page: Page, engine: str, *, stay: bool) -> None:
        self._page, self._engine, self._stay = page, engine, stay
        self._status = FAILED
        self._scenes: asyncio.Task[None] | None = None

    async def run(self, settings: Settings) -> int:
        """Serve until the show is over, or until a signal comes."""
        status = await run_proxy(settings, self._open)
        if self._scenes is not None:
            self._scenes.cancel()
            await asyncio.gather(self._scenes, return_exceptions=True)
        return status or self._status

    def _open(self, server: Server, wiring: Wiring) -> None:
        stop_on_signals(server, wiring)
        self._scenes = asyncio.create_task(self._play(server, f"http://{HOST}:{wiring.data_port}"), name="demo")

    async def _play(self, server: Server, proxy: str) -> None:
        stays = False
        try:
            await self._scenes_at(proxy)
            stays = self._stay
        except (AgentFailed, httpx.HTTPError) as error:
            if not server.should_exit:
                self._page.failed(f"{type(error).__name__}: {error}")
        finally:
            if not stays:
                server.stop()

    async def _scenes_at(self, proxy: str) -> None:
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with httpx.AsyncClient(base_url=proxy, headers=headers, trust_env=False, timeout=60) as trainer:
            self._page.opening(self._engine, proxy)
            first = await run_group(trainer, FIRST)
            self._page.sampling(first[0].calls[0])
            self._page.samples(first)
            self._page.calls(first[0])
            second = await run_group(trainer, SECOND)
            verdict = compare(first, second)
            self._page.verdict(SECOND, verdict, digest_of(first))
            verdicts = await replay(trainer, first)
            self._page.replayed(verdicts)
            is_proven = all(one["verdict"] == "same" for one in verdicts)
            self._status = 0 if verdict.is_reproduced and is_proven else FAILED
        if self._stay:
            self._page.next_steps(proxy, ADMIN_TOKEN)
