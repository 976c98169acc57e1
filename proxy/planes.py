"""Both planes: the sockets that they listen on, what is served there, and every error in the caller's own form."""

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
from proxy.hints import Map
from proxy.listening import BACKLOG, listen_on
from proxy.settings import url_at
from proxy.wiring import Wiring

CLIENT_CLOSED_REQUEST = 499

log = structlog.get_logger()


def listen(wiring: Wiring) -> tuple[list[socket.socket], ASGIApp]:
    """The bound sockets and the application behind them."""
    settings = wiring.settings
    data = listen_on(settings.host, settings.port)
    wiring.data_port = data.getsockname()[1]
    log.info("data plane", url=f"http://{settings.host}:{wiring.data_port}")
    wiring.control_at = url_at(settings.host, wiring.data_port)
    if settings.control_socket is not None:
        control = _bind_unix(settings.control_socket.resolve())
        address: str | int = str(settings.control_socket.resolve())
        wiring.control_at = str(address)
    elif settings.control_port is not None:
        control = listen_on(settings.control_host, settings.control_port, plane="control-")
        address = port = int(control.getsockname()[1])
        wiring.control_at = url_at(settings.control_host, port)
    else:
        log.info("control plane", url=f"http://{settings.host}:{wiring.data_port}")
        return [data], make_app(wiring, data=True, control=True)
    log.info("control plane", address=address)
    planes = Planes(make_app(wiring, data=True, control=False), make_app(wiring, data=False, control=True), address)
    return [data, control], planes


def _bind_unix(path: Path) -> socket.socket:
    """A socket that only this user may open; one that an earlier process left behind is removed."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        remedy = "name another file by --control-socket"
        raise OSError(f"cannot listen on {path}: {error.strerror or error}; {remedy}") from error
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
    app.state.map = Map(route for part in _parts(data=data, control=control) for route in part.routes)
    app.add_exception_handler(ProxyError, _tell)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_exception_handler(ClientDisconnect, _tell_nobody)
    app.add_exception_handler(Exception, _tell_surprise)
    return app


@functools.cache
def _routes(*, data: bool, control: bool) -> tuple[BaseRoute, ...]:
    """What is served, which is the same for every proxy of a process; FastAPI takes long to read the handlers."""
    router = APIRouter()
    for part in _parts(data=data, control=control):
        router.include_router(part)
    return tuple(router.routes)


@functools.cache
def _parts(*, data: bool, control: bool) -> tuple[APIRouter, ...]:
    return (*(control_routes() if control else ()), probe_routes(), *((data_routes(),) if data else ()))


async def _tell(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProxyError)  # noqa: S101  registered for this type alone
    told = form_for(request.url.path, request.headers)(error)
    return JSONResponse(told.body, told.status, told.headers)


async def _tell_http(request: Request, error: Exception) -> Response:
    """Unknown routes and methods, in the API's form instead of the framework's."""
    assert isinstance(error, HTTPException)  # noqa: S101  registered for this type alone
    path, served = request.url.path, request.app.state.map
    unknown = NotFound(f"{request.method} {path} is not served here{served.hint(path)}", code="unknown_route")
    unknown.status = error.status_code
    answer = await _tell(request, unknown)
    if methods := served.methods(path):
        answer.headers["allow"] = ", ".join(methods)
    return answer


async def _tell_nobody(_request: Request, _error: Exception) -> Response:
    """The client hung up before its body was whole: nothing was asked, and nobody reads this."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _tell_surprise(request: Request, error: Exception) -> Response:
    log.error("a request broke", path=request.url.path, exc_info=error)
    return await _tell(request, ProxyError("the proxy failed in this request; its log says how"))
