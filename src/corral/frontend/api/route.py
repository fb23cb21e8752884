"""Routes as data: who may call one, what it takes, what it answers. And what all handlers share: their context, reading
bodies, writing answers.
"""

import asyncio
import logging
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from corral.base.clock import Clock
from corral.base.errors import AccessDenied, CorralError, InvalidInput
from corral.base.ids import FrontendId
from corral.bus.port import Bus
from corral.frontend.access.cross_site import cross_site_problem
from corral.frontend.access.decide import Permission, scopes_with
from corral.frontend.access.principals import NodeClaim, Principal, presented_key, principal_of
from corral.frontend.access.room import AccessRoom
from corral.frontend.api.parameters import QueryField
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.config import ControlConfig
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.engines.room import EnginesRoom
from corral.frontend.live.room import LiveRoom
from corral.frontend.models.room import ModelsRoom, PullRoom
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import RecordRoom
from corral.frontend.rules.room import RulesRoom
from corral.frontend.serving.room import ServingRoom
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets
from corral.wire.backends import read_galleries
from corral.wire.go_json import decode
from corral.wire.keys import bearer
from corral.wire.refusals import BEARER_REQUIRED, KEY_REQUIRED, SESSION_OVER, node_refusal, openai_refusal
from corral.wire.sessions import has_session

log = logging.getLogger(__name__)

STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "invalid_input": 400,
    "join_code_refused": 401,
    "too_many_calls": 429,
    "access_denied": 403,
    "not_found": 404,
    "node_gone": 404,
    "conflict": 409,
    "node_pending": 409,
    "precondition_failed": 412,
    "unsupported_content_encoding": 415,
    "database_unavailable": 503,
    "database_full": 503,
    "database_damaged": 503,
    "bus_unavailable": 503,
    "no_responders": 503,
    "bus_timeout": 504,
    "worker_unreachable": 502,
    "galleries_unread": 503,
    "hub_refused": 502,
    "hub_unavailable": 503,
    "unusable_gguf": 422,
}
"""HTTP status by the `code` of an error; what is not listed is a 500."""
MAX_LIMIT: Final = 1000
"""The longest page of a list."""
DEFAULT_LIMIT: Final = 100
LONGEST_TEXT: Final = 200
"""Most characters of a text that somebody searches for."""
_MOST_DIGITS: Final = 18
_EXPECTED: Final = frozenset(
    {
        "invalid_input",
        "join_code_refused",
        "access_denied",
        "not_found",
        "conflict",
        "precondition_failed",
        "unsupported_content_encoding",
    }
)
JSON: Final = "application/json"
_RETRY_AFTER_SECONDS: Final = "2"

_encoder: Final = msgspec.json.Encoder()
BodyT = TypeVar("BodyT", bound=msgspec.Struct)
ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


class AdminContext(msgspec.Struct, frozen=True, kw_only=True):
    """The rooms of the frontend, built in `processes/control.py`. Routes may use all of them."""

    config: ControlConfig
    database: Database
    secrets: Secrets
    bus: Bus
    clock: Clock
    frontend_id: FrontendId
    record: RecordRoom
    access: AccessRoom
    nodes: NodesRoom
    operations: OperationsRoom
    backends: BackendsRoom
    models: ModelsRoom
    pulls: PullRoom
    engines: EnginesRoom
    serving: ServingRoom
    rules: RulesRoom
    live: LiveRoom
    readiness: ControlReadiness
    stopping: asyncio.Event
    """Set when the process is about to end, so that open event streams end first."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request: an administrator, a worker, or an unknown client on public routes."""

    principal: Principal | None = None
    claim: NodeClaim | None = None

    def can(self, permission: Permission) -> bool:
        return self.principal is not None and self.principal.can(permission)

    def may_ask(self, model: str) -> bool:
        """Whether the caller's key is not limited to other models."""
        return self.principal is not None and self.principal.may_ask(model)

    def demand(self, permission: Permission) -> None:
        """Raise AccessDenied unless the caller has a permission that the body, not the route, makes necessary."""
        if not self.can(permission):
            raise AccessDenied(_missing(permission))

    @property
    def name(self) -> str:
        return self.principal.name if self.principal is not None else "anonymous"


RouteHandler = Callable[[AdminContext, Request, Caller], Awaitable[Response]]


class Access(StrEnum):
    """Who may call a route that needs no permission."""

    PUBLIC = "public"
    METRICS = "metrics"
    """Public by setting, otherwise for keys with the permission `metrics.read`."""
    WORKER = "node"
    """Workers, with the registration token, a node's own secret, or a key of scope `node`."""


class Dialect(StrEnum):
    """Whose format the bodies of errors follow: Corral's, LocalAI's or that of the API that a client expects."""

    LOCALAI = "localai"
    LOCALAI_UI = "localai-ui"
    """The routes behind LocalAI's pages, whose errors are a text alone."""
    LOCALAI_CLI = "localai-cli"
    """Their twins for programs, whose errors have no type."""
    OPENAI = "openai"
    """The routes below `/v1/`, which clients of OpenAI's API call."""
    NATIVE = "native"


class _Route(msgspec.Struct, frozen=True):
    """The fields of a route that are given by position."""

    method: str
    path: str
    handler: RouteHandler
    summary: str


class RouteSpec(_Route, frozen=True, kw_only=True):
    access: Access | Permission
    """The permission that a caller's key must give; or how callers get in without one."""
    codes: Mapping[int, str]
    """Every status that the handler answers, and when."""
    dialect: Dialect = Dialect.NATIVE
    takes: type[msgspec.Struct] | None = None
    may_be_empty: bool = False
    """Whether the body may be left out."""
    gives: object = None
    """The type of a good answer's body."""
    media: str = JSON
    """The content type of an answer that is not JSON: then it is a text, also where it is an error of the handler's."""
    streams: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Where the answer may be a stream of server-sent events: the names of events, and the types of their data."""
    refusals: Mapping[int, object] = msgspec.field(default_factory=dict)
    """Errors whose body has more than a code and a message, by status."""
    query: Mapping[str, str | QueryField] = msgspec.field(default_factory=dict)

    @property
    def permission(self) -> Permission | None:
        """The permission that a key must give; None where no key is looked at."""
        if isinstance(self.access, Permission):
            return self.access
        return Permission.METRICS_READ if self.access is Access.METRICS else None


def host_of_caller(context: AdminContext, request: Request) -> str:
    """The address that the request comes from; empty where that is not known."""
    if context.config.socket is not None:  # only gateways reach control's socket, and say whom they speak for
        return request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return request.client.host if request.client is not None else ""


def came_over_tls(context: AdminContext, request: Request) -> bool:
    """Whether the caller's own connection was encrypted, as far as this process knows."""
    if context.config.socket is not None:  # as above: the gateway says how it was asked
        return request.headers.get("x-forwarded-proto", "") == "https"
    return request.url.scheme == "https"


def answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encoder.encode(body), status, headers=headers, media_type="application/json")


def no_content() -> Response:
    return Response(status_code=204)


def node_error(status: int, message: str) -> Response:
    """An error of LocalAI's node routes."""
    return answer(node_refusal(status, message), status)


class BodyTooLarge(InvalidInput):
    """The body is larger than this API accepts."""

    code = "body_too_large"


class BodyEncoded(CorralError):
    """The body has a Content-Encoding, and this API takes bodies as they are."""

    code = "unsupported_content_encoding"


async def read_body(request: Request, max_body: int, *, at_most: int | None = None) -> bytes:
    """The whole body, up to what the setting allows, and no more than `at_most`; also where it comes in chunks. A
    byte-order mark, with which some programs begin their files, is left out."""
    if (encoding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
        raise BodyEncoded(f"the Content-Encoding {encoding[:40]} is not taken here: send the body as it is")
    limit = max_body if at_most is None else min(max_body, at_most)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            more = "" if limit == at_most else "; the setting frontend.max_body (CORRAL_MAX_BODY) allows more"
            raise BodyTooLarge("", f"the body exceeds {limit} bytes{more}")
        chunks.append(chunk)
    return b"".join(chunks).removeprefix(BOM_UTF8)


async def read_compat(context: AdminContext, request: Request, struct: type[BodyT]) -> BodyT:
    """The body of a route of LocalAI. The field that is wrong is named after the words that LocalAI begins with."""
    try:
        return decode(await read_body(request, context.config.max_body), struct)
    except BodyTooLarge:
        raise
    except InvalidInput as error:
        raise InvalidInput("", f"invalid request body: {error.message}") from error


def checked_galleries(text: str, name: str) -> str:
    """JSON text of galleries for one request, as it came. It is refused here rather than by every node."""
    try:
        read_galleries(text)
    except InvalidInput as error:
        raise InvalidInput(name, error.problem) from error
    return text


def read_limit(query: QueryParams, *, usual: int = DEFAULT_LIMIT, most: int = MAX_LIMIT) -> int:
    """How long a page of a list is wanted."""
    text = query.get("limit", str(usual))
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise InvalidInput("limit", f"must be a number from 1 to {most}, got {text[:20]!r}")
    return int(text)


def read_choices(query: QueryParams, name: str, choices: type[ChoiceT]) -> frozenset[ChoiceT]:
    """Which of some words are meant; none when nothing was said."""
    texts = query.getlist(name)
    for text in texts:
        if text not in set(choices):
            raise InvalidInput(name, f"must be one of {', '.join(choices)}, got {text[:40]!r}")
    return frozenset(map(choices, texts))


def read_text(query: QueryParams, name: str) -> str:
    """A text to look for; empty when nothing was said."""
    text = query.get(name, "")
    if len(text) > LONGEST_TEXT or "\0" in text:
        raise InvalidInput(name, f"must be a text of up to {LONGEST_TEXT} characters, got {text[:40]!r}")
    return text


def read_number(query: QueryParams, name: str) -> int | None:
    """A whole number that is not negative; None when nothing was said."""
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise InvalidInput(name, f"must be a whole number, got {text[:20]!r}")
    return int(text)


def read_switch(query: QueryParams, name: str) -> bool:
    """`true` or `false`; false when nothing was said."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(name, f"must be true or false, got {text[:40]!r}")
    return text == "true"


def starlette_route(spec: RouteSpec, context: AdminContext) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await _serve(spec, context, request)
        except BodyTooLarge as error:
            return _error_answer(spec, error, 413)
        except ClientDisconnect:
            return Response(status_code=499)
        except CorralError as error:
            if not error.retryable and error.code not in _EXPECTED:
                log.exception("request failed", extra={"event": "request.failed", "path": spec.path})
            return _error_answer(spec, error, STATUS_OF_CODE.get(error.code, 500))

    return Route(spec.path, endpoint, methods=[spec.method], name=f"{spec.method} {spec.path}")


async def _serve(spec: RouteSpec, context: AdminContext, request: Request) -> Response:
    if any("\0" in value for value in request.path_params.values()):
        raise InvalidInput("", "the path has a NUL character, which no database keeps")
    if spec.access is Access.PUBLIC or (spec.access is Access.METRICS and context.config.metrics_public):
        return await spec.handler(context, request, Caller())
    permission = spec.permission
    if permission is None:
        presented = bearer(request.headers.get("authorization"))
        if presented is None:
            return answer(BEARER_REQUIRED, 401)
        claim = NodeClaim(presented=presented, authenticator=context.access.authenticator)
        return await spec.handler(context, request, Caller(claim=claim))
    principal = await principal_of(request.headers, context.access.authenticator)
    if principal is None:
        return _unknown_caller(spec, request)
    if principal.session is not None and (problem := _cross_site(context, request, principal)) is not None:
        return cross_site_refusal(problem)
    if not principal.can(permission):
        return _not_permitted(spec, permission)
    return await spec.handler(context, request, Caller(principal=principal))


def _unknown_caller(spec: RouteSpec, request: Request) -> Response:
    """The answer to a caller without valid credentials. With an expired session cookie it says that the session is
    over."""
    key = presented_key(request.headers)
    has_cookie = key is None and has_session(request.headers.get("cookie", ""))
    body: object = SESSION_OVER if has_cookie else KEY_REQUIRED
    if spec.dialect is Dialect.OPENAI and not has_cookie:
        missing = openai_refusal(401, "an API key is required: send it as `Authorization: Bearer …`", "missing_api_key")
        body = missing if key is None else openai_refusal(401, "this API key is not valid", "invalid_api_key")
    return answer(body, 401, {"WWW-Authenticate": "Bearer"})


def _not_permitted(spec: RouteSpec, permission: Permission) -> Response:
    message = _missing(permission)
    if spec.dialect is Dialect.OPENAI:
        return answer(openai_refusal(403, message, "missing_scope"), 403)
    return answer({"error": {"code": 403, "message": message, "type": "authorization_error"}}, 403)


def _cross_site(context: AdminContext, request: Request, principal: Principal) -> str | None:
    is_secure = came_over_tls(context, request)
    return cross_site_problem(request.method, request.headers, csrf=principal.csrf, is_secure=is_secure)


def cross_site_refusal(problem: str) -> Response:
    """The 403 for a browser's request that another site may have caused. It has one form on all routes, since no
    client of LocalAI or OpenAI ever sees it."""
    return answer({"error": {"code": "csrf", "message": problem}}, 403)


def _missing(permission: Permission) -> str:
    scopes = " or ".join(scopes_with(permission))
    return f"this key may not do that; it needs the permission {permission}, which keys of scope {scopes} have"


def _error_answer(spec: RouteSpec, error: CorralError, status: int) -> Response:
    """An error that the handler did not put into words, in the form of the route's dialect."""
    body: object
    match spec.dialect:
        case Dialect.NATIVE:
            # A code for machines, a sentence for people, the field where there is one.
            named = {"field": error.field} if isinstance(error, InvalidInput) and error.field else {}
            body = {"code": error.code, "message": error.message, **named}
        case Dialect.LOCALAI_UI:
            body = error.message
        case Dialect.LOCALAI_CLI:
            body = {"code": status, "message": error.message, "type": ""}
        case Dialect.LOCALAI:
            body = {"code": status, "message": error.message, "type": "node_error"}
        case Dialect.OPENAI:
            body = openai_refusal(status, error.message, error.code).error
    return answer({"error": body}, status, {"Retry-After": _RETRY_AFTER_SECONDS} if error.retryable else {})
