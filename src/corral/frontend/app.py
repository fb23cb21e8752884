"""The admin API as one ASGI application, and the HTTP server that serves it until it is cancelled."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.base.errors import AddressInUse, SettingInvalid
from corral.base.ids import REQUEST_ID_HEADER, RequestIds, is_request_id
from corral.base.logs import log_context
from corral.frontend.api.description import describe
from corral.frontend.api.route import AdminContext, answer, starlette_route
from corral.frontend.api.unknown_routes import hint_for
from corral.frontend.routes import ROUTES
from corral.wire.refusals import OPENAI_PATHS, SAFETY_HEADERS, openai_refusal

log = logging.getLogger(__name__)


def build_app(context: AdminContext) -> Starlette:
    app = Starlette(
        routes=[starlette_route(spec, context) for spec in ROUTES],
        exception_handlers={HTTPException: _no_route, Exception: _failed},
    )
    app.router.redirect_slashes = False
    # Around everything, so that an answer to a mistake of ours is treated as all others are.
    app.middleware_stack = SafetyHeaders(RequestNames(app.build_middleware_stack()))
    app.state.openapi = _description
    return app


@cache
def _description() -> dict[str, Any]:
    """Made when somebody first asks: the schemas of all bodies take longer to make than the rest of the application."""
    return describe(ROUTES)


class SafetyHeaders:
    """Adds to every answer, errors included, what keeps browsers from misusing it. A handler's own value wins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_safely)


class RequestNames:
    """Gives every request an id, its sender's own where that can be used: in the answer, and in all that is logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "") if scope["type"] == "http" else ""
        id = sent if is_request_id(sent.encode("latin-1")) else self._ids.new().decode()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = id
            await send(message)

        with log_context(request_id=id):
            await self._app(scope, receive, send_named)


_CODES: Final = {404: "unknown_route", 405: "method_not_allowed"}


async def _no_route(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    path = request.url.path
    reason, hint = ("no such route", f"; {hint_for(path)}") if error.status_code == 404 else (error.detail, "")
    message = f"{reason}: {request.method} {path[:200]}{hint}"
    body: object = {"error": {"code": error.status_code, "message": message, "type": "invalid_request_error"}}
    if request.url.path.startswith(OPENAI_PATHS):
        body = openai_refusal(error.status_code, message, _CODES.get(error.status_code, "invalid_request"))
    headers = {"Allow": ", ".join(_methods_at(request))} if error.status_code == 405 else error.headers
    return answer(body, error.status_code, headers)


def _methods_at(request: Request) -> list[str]:
    """All methods that the path has. Each method is a route of its own, and the framework names those of the first."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return sorted({method for route in matching for method in route.methods})


async def _failed(request: Request, error: Exception) -> Response:
    """Answer a programming error with a general message; the details are only in the log."""
    log.error("request failed", exc_info=error, extra={"event": "request.failed", "path": request.url.path})
    if request.url.path.startswith(OPENAI_PATHS):
        return answer(openai_refusal(500, "internal error", "internal_error"), 500)
    return answer({"error": {"code": 500, "message": "internal error", "type": "internal_error"}}, 500)


_BACKLOG: Final = 1024
_GRACE_SECONDS: Final = 3
_TICK_SECONDS: Final = 1.0


def bind(host: str, port: int) -> socket.socket:
    """Take the address now, so that a taken port is said before anything else happens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is taken by another program; choose another with --port"
            ) from None
        raise SettingInvalid("host", f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Until cancelled. Uvicorn's own wakes ten times a second to see whether it should end."""
        while not self.should_exit:
            await self.on_tick(0)  # writes the date that answers carry
            await asyncio.sleep(_TICK_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        raise NotImplementedError("signals are handled by the composition root")


class AdminServer:
    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        self._listener = listener
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    async def run(self, *, ending: Callable[[], None]) -> None:
        """Serve until cancelled. `ending` is called before requests under way get their last few seconds."""
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            ending()
            self._server.should_exit = True
            if self._server.started:
                await self._server.shutdown(sockets=[self._listener])
