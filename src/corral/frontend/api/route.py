"""A route as data: who may call it, what it takes, what it answers. Handlers stay free of all that."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from corral.base.errors import CorralError, InvalidInput
from corral.frontend.access.principals import NodeClaim, principal_of
from corral.frontend.api.answers import (
    bearer_required,
    compat_error,
    key_lacks_scope,
    key_required,
    native_error,
    page_error,
)
from corral.frontend.api.context import AdminContext, Caller
from corral.wire.keys import Scope, bearer

log = logging.getLogger(__name__)

RouteHandler = Callable[[AdminContext, Request, Caller], Awaitable[Response]]


class Access(StrEnum):
    """Who may call a route."""

    PUBLIC = "public"
    METRICS = "metrics"
    """Public by setting, otherwise administrators."""
    ADMIN = "admin"
    GATEWAY = "gateway"
    """Gateways, with a key of that scope."""
    WORKER = "node"
    """Workers, with the registration token, a node's own secret, or a key of scope `node`."""


class Dialect(StrEnum):
    """Whose form errors have."""

    LOCALAI = "localai"
    LOCALAI_UI = "localai-ui"
    """The routes behind LocalAI's pages, whose errors are a text alone."""
    LOCALAI_CLI = "localai-cli"
    """Their twins for programs, whose errors have no type."""
    NATIVE = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    method: str
    path: str
    handler: RouteHandler
    access: Access
    summary: str
    codes: Mapping[int, str]
    """Every status that the handler answers, and when."""
    dialect: Dialect = Dialect.NATIVE
    takes: type[msgspec.Struct] | None = None
    gives: object = None
    """The type of a good answer's body, for the OpenAPI page."""
    query: Mapping[str, str] = field(default_factory=dict)


class BodyTooLarge(InvalidInput):
    """The body is larger than this API accepts."""

    code = "body_too_large"


async def read_body(request: Request, max_body: int, *, at_most: int | None = None) -> bytes:
    """The whole body, up to what the setting allows, and no more than `at_most`; also where it comes in chunks."""
    limit = max_body if at_most is None else min(max_body, at_most)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            more = "" if limit == at_most else "; the setting frontend.max_body (CORRAL_MAX_BODY) allows more"
            raise BodyTooLarge("", f"the body exceeds {limit} bytes{more}")
        chunks.append(chunk)
    return b"".join(chunks)


def starlette_route(spec: RouteSpec, context: AdminContext) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await _serve(spec, context, request)
        except BodyTooLarge as error:
            return _worded(spec, error, status=413)
        except ClientDisconnect:
            return Response(status_code=499)
        except CorralError as error:
            if not error.retryable and error.code not in _EXPECTED:
                log.exception("request failed", extra={"event": "request.failed", "path": spec.path})
            return _worded(spec, error)

    return Route(spec.path, endpoint, methods=[spec.method], name=f"{spec.method} {spec.path}")


_EXPECTED = frozenset({"invalid_input", "access_denied", "not_found", "conflict", "precondition_failed"})


async def _serve(spec: RouteSpec, context: AdminContext, request: Request) -> Response:
    if any("\0" in value for value in request.path_params.values()):
        raise InvalidInput("", "the path has a NUL character, which no database keeps")
    if spec.access is Access.PUBLIC or (spec.access is Access.METRICS and context.metrics_public):
        return await spec.handler(context, request, Caller())
    if spec.access is Access.WORKER:
        presented = bearer(request.headers.get("authorization"))
        if presented is None:
            return bearer_required()
        claim = NodeClaim(presented=presented, authenticator=context.access.authenticator)
        return await spec.handler(context, request, Caller(claim=claim))
    principal = await principal_of(request.headers, context.access.authenticator)
    if principal is None:
        return key_required()
    needed = Scope.GATEWAY if spec.access is Access.GATEWAY else Scope.ADMIN
    if not principal.may(needed):
        return key_lacks_scope(needed)
    return await spec.handler(context, request, Caller(principal=principal))


def _worded(spec: RouteSpec, error: CorralError, status: int | None = None) -> Response:
    if spec.dialect is Dialect.NATIVE:
        return native_error(error, status)
    if spec.dialect is Dialect.LOCALAI_UI:
        return page_error(error, status)
    if spec.dialect is Dialect.LOCALAI_CLI:
        return compat_error(error, status, type="")
    return compat_error(error, status)
