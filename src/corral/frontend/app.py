"""The admin API as one ASGI application."""

import logging
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.base.ids import REQUEST_ID_HEADER, RequestIds, is_request_id
from corral.base.logs import log_context
from corral.frontend.api.answers import answer
from corral.frontend.api.context import AdminContext
from corral.frontend.api.openapi import describe
from corral.frontend.api.route import starlette_route
from corral.frontend.routes import ROUTES
from corral.wire.refusals import SAFETY_HEADERS

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
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "") if scope["type"] == "http" else ""
        id = given if is_request_id(given.encode("latin-1")) else self._ids.new().decode()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = id
            await send(message)

        with log_context(request_id=id):
            await self._app(scope, receive, send_named)


async def _no_route(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    reason, hint = ("no such route", "; /docs lists all") if error.status_code == 404 else (error.detail, "")
    message = f"{reason}: {request.method} {request.url.path[:200]}{hint}"
    body = {"error": {"code": error.status_code, "message": message, "type": "invalid_request_error"}}
    return answer(body, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """A programming error: the caller learns that much and no more; the log has the rest."""
    log.error("request failed", exc_info=error, extra={"event": "request.failed", "path": request.url.path})
    return answer({"error": {"code": 500, "message": "internal error", "type": "internal_error"}}, 500)
