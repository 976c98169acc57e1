"""The mark on everything that the simulated engine answers: nobody shall take it for a real one."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = (b"x-rollpin-simulated", b"1")


class Marked:
    """An application whose every response carries the header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), HEADER]}
            await send(message)

        await self._app(scope, receive, marked)
