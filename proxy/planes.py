"""Both planes: the sockets that they listen on, what is served there, and every error in the caller's own form."""

import errno
import functools
import socket
import stat
from pathlib import Path

import structlog
from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.api.forms import form_for
from proxy.api.routes import data_routes
from proxy.control import control_routes, probe_routes
from proxy.errors import NotFound, ProxyError
from proxy.settings import url_at
from proxy.wiring import Wiring

BACKLOG = 2048
CLIENT_CLOSED_REQUEST = 499

log = structlog.get_logger()


def listen(wiring: Wiring) -> tuple[list[socket.socket], ASGIApp]:
    """The bound sockets and the application behind them."""
    settings = wiring.settings
    data = _bind(settings.host, settings.port)
    wiring.data_port = data.getsockname()[1]
    log.info("data plane", url=f"http://{settings.host}:{wiring.data_port}")
    wiring.control_at = url_at(settings.host, wiring.data_port)
    if settings.control_socket is not None:
        control = _bind_unix(settings.control_socket.resolve())
        address: str | int = str(settings.control_socket.resolve())
        wiring.control_at = str(address)
    elif settings.control_port is not None:
        control = _bind(settings.control_host, settings.control_port)
        address = port = int(control.getsockname()[1])
        wiring.control_at = url_at(settings.control_host, port)
    else:
        log.info("control plane", url=f"http://{settings.host}:{wiring.data_port}")
        return [data], make_app(wiring, data=True, control=True)
    log.info("control plane", address=address)
    planes = Planes(make_app(wiring, data=True, control=False), make_app(wiring, data=False, control=True), address)
    return [data, control], planes


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, or event loops do not know that Nagle's delay is to be off.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        remedy = "; stop what listens there, or choose another port" if error.errno == errno.EADDRINUSE else ""
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}{remedy}") from error
    bound.listen(BACKLOG)
    return bound


def _bind_unix(path: Path) -> socket.socket:
    """A socket that only this user may open; one that an earlier process left behind is removed."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(path))
    path.chmod(0o600)
    bound.listen(BACKLOG)
    return bound


class Planes:
    """Sends what arrives on the control socket to the control plane, all else to the data plane."""

    def __init__(self, data: ASGIApp, control: ASGIApp, control_address: str | int) -> None:
        self._data = data
        self._control = control
        self._control_address = control_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server") or ()
        await (self._control if self._control_address in server else self._data)(scope, receive, send)


def make_app(wiring: Wiring, *, data: bool, control: bool) -> FastAPI:
    """An application that serves one plane or both."""
    app = FastAPI(
        title="Rollpin",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=list(_routes(data=data, control=control)),
    )
    app.state.wiring = wiring
    app.add_exception_handler(ProxyError, _tell)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_exception_handler(ClientDisconnect, _tell_nobody)
    app.add_exception_handler(Exception, _tell_surprise)
    return app


@functools.cache
def _routes(*, data: bool, control: bool) -> tuple[BaseRoute, ...]:
    """What is served, which is the same for every proxy of a process; FastAPI takes long to read the handlers."""
    router = APIRouter()
    router.include_router(control_routes() if control else probe_routes())
    if data:
        router.include_router(data_routes())
    return tuple(router.routes)


async def _tell(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProxyError)  # noqa: S101  registered for this type alone
    told = form_for(request.url.path, request.headers)(error)
    return JSONResponse(told.body, told.status, told.headers)


async def _tell_http(request: Request, error: Exception) -> Response:
    """Unknown routes and methods, in the API's form instead of the framework's."""
    assert isinstance(error, HTTPException)  # noqa: S101  registered for this type alone
    unknown = NotFound(
        f"{request.method} {request.url.path} is not served here{_hint(request.url.path)}", code="unknown_route"
    )
    unknown.status = error.status_code
    return await _tell(request, unknown)


def _hint(path: str) -> str:
    """What to do about a base URL that has one /v1 too many or too few."""
    if "/v1/v1/" in path:
        return "; the base URL of Anthropic's clients ends before /v1"
    if path.endswith(("/completions", "/responses", "/models")) and "/v1/" not in path:
        return "; the base URL of OpenAI's clients ends in /v1"
    if path.startswith("/v1/"):
        return "; the routes of the control plane have no /v1"
    return ""


async def _tell_nobody(_request: Request, _error: Exception) -> Response:
    """The client hung up before its body was whole: nothing was asked, and nobody reads this."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _tell_surprise(request: Request, error: Exception) -> Response:
    log.error("a request broke", path=request.url.path, exc_info=error)
    return await _tell(request, ProxyError("the proxy failed in this request; its log says how"))
