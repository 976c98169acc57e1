"""Servers in front of a simulated vLLM, which change a little of what goes through."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.fakes import FakeEngine

Json = dict[str, Any]


class Front:
    """Passes everything on but chats, which are for those who inherit."""

    def __init__(self, vllm: FakeEngine) -> None:
        self._vllm = httpx.Client(base_url=vllm.url, timeout=30)

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/{path:path}", self.pass_on, methods=["GET", "POST"]),
        ]
        return Starlette(routes=routes)

    async def chat(self, request: Request) -> Response:
        return await self.pass_on(request)

    async def tokenize(self, request: Request) -> Response:
        return await self.pass_on(request)

    async def pass_on(self, request: Request) -> Response:
        answer = self._vllm.request(
            request.method,
            request.url.path,
            content=await request.body(),
            headers={"content-type": "application/json"},
        )
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])


class Dated(Front):
    """Its template says what day it is: in front of everything, and behind the last message if it is told to."""

    def __init__(self, vllm: FakeEngine, day: str, *, behind: bool = False) -> None:
        super().__init__(vllm)
        self.day = day
        self.behind = behind

    async def chat(self, request: Request) -> Response:
        return await self._dated(request)

    async def tokenize(self, request: Request) -> Response:
        return await self._dated(request)

    async def _dated(self, request: Request) -> Response:
        body = await request.json()
        if messages := body.get("messages"):
            said: Json = {"role": "system", "content": f"Today is {self.day}."}
            body["messages"] = [*messages, said] if self.behind else [said, *messages]
        answer = self._vllm.post(request.url.path, json=body)
        return JSONResponse(answer.json(), answer.status_code)


class Strict(Front):
    """Its template takes no message of these roles but in front: it refuses, or prints nothing for it."""

    def __init__(self, vllm: FakeEngine, *roles: str, refuses: bool) -> None:
        super().__init__(vllm)
        self.roles = roles
        self.refuses = refuses

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        messages = body.get("messages") or []
        later = [place for place, message in enumerate(messages) if place > 1 and message["role"] in self.roles]
        if later and self.refuses:
            return JSONResponse({"error": {"message": "System message must be at the beginning."}}, 400)
        if later:
            body["messages"] = [message for place, message in enumerate(messages) if place not in later]
        answer = self._vllm.post(request.url.path, json=body)
        return JSONResponse(answer.json(), answer.status_code)


@contextlib.contextmanager
def serving(server: Front) -> Iterator[str]:
    """The server on a free port, by its URL."""
    config = uvicorn.Config(server.app(), port=0, log_config=None, lifespan="off")
    web = uvicorn.Server(config)
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        threading.Event().wait(0.01)
    try:
        yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}"
    finally:
        web.should_exit = True
        thread.join()
