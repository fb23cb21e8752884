"""What workers say of themselves: `/api/node/*`, in LocalAI's form, so that its workers can join."""

from collections.abc import Awaitable, Callable
from functools import cache, partial

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.base.errors import AccessDenied, InvalidInput, NotFound
from corral.base.ids import NodeId, source_of
from corral.frontend.access.principals import NodeClaim
from corral.frontend.api.route import (
    STATUS_OF_CODE,
    Access,
    AdminContext,
    BodyTooLarge,
    Caller,
    Dialect,
    RouteSpec,
    answer,
    host_of_caller,
    node_error,
    read_body,
)
from corral.frontend.nodes.admission import Registered
from corral.frontend.nodes.decide.invitations import Invitation, InvitationRefused
from corral.frontend.nodes.decide.node import BY_WORKER, Node, NodeStatus, NodeType
from corral.frontend.nodes.decide.registration import TooManyPending
from corral.frontend.nodes.invitations import TooManyCalls
from corral.frontend.nodes.routes.native import node_id_of
from corral.frontend.nodes.shapes import read_heartbeat, read_registration, secret_of
from corral.frontend.serving.decide.replica import SERVING
from corral.frontend.serving.shapes import replica_rows
from corral.wire.go_json import ZERO, decode, format_time
from corral.wire.joining import hash_code, read_code
from corral.wire.keys import HEARTBEAT, REGISTER, hash_secret, same
from corral.wire.refusals import Acknowledged
from corral.wire.registration import (
    CorralStatus,
    CorralWelcome,
    Feature,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterRequest,
    RegisterResponse,
    features,
)
from corral.wire.replicas import ReplicaRow

_INVALID_TOKEN = "invalid registration token"  # noqa: S105 - a message
_TRUSTED = "corral up"


def _denied() -> Response:
    """What a worker with a wrong token gets."""
    return answer({"error": _INVALID_TOKEN}, 401)


async def register(context: AdminContext, request: Request, caller: Caller) -> Response:
    claim = _claim(caller)
    header = await context.access.authenticator.join_token(claim.presented)
    if header is None and not await context.nodes.admission.knows_secret(hash_secret(claim.presented)):
        return await _register_invited(context, request, claim.presented)
    try:
        body = await _registration(context, request)
    except BodyTooLarge:
        raise
    except InvalidInput as error:
        return _denied() if header is None else node_error(400, f"invalid request body: {error.message}")
    if header is None:
        # A node of ours may come back with its own secret, also after the shared token was changed. That a node has
        # what was presented is known by now.
        secret = secret_of(body)
        is_own = secret is not None and same(secret, claim.presented) and same(body.token, claim.presented)
        return await _admit(context, request, body, trusted_by=None) if is_own else _denied()
    if not body.token:
        return node_error(401, "registration token required")
    in_body = await context.access.authenticator.join_token(body.token)
    if in_body is None:
        return node_error(401, _INVALID_TOKEN)
    is_trusted = header.trusted and in_body.trusted
    return await _admit(context, request, body, trusted_by=_TRUSTED if is_trusted else None)


async def _registration(context: AdminContext, request: Request) -> RegisterRequest:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidInput("Content-Type", f"must be application/json, got {kind[:80] or 'none'}")
    return decode(await read_body(request, context.config.max_body, at_most=REGISTER.max_body), RegisterRequest)


async def _register_invited(context: AdminContext, request: Request, presented: str) -> Response:
    """By a join code, which is good for workers with a secret of their own: they are known again when the answer is
    lost. Callers with any other credential are refused before their body is read: a large body takes much longer to
    read than to refuse."""
    try:
        invitation = await context.nodes.invitations.find(presented, source=_source(context, request))
    except (InvitationRefused, TooManyCalls) as error:
        return node_error(STATUS_OF_CODE[error.code], error.message)
    if invitation is None:
        return _denied()
    try:
        body = await _registration(context, request)
        is_same = hash_code(read_code(body.token)) == invitation.hash
    except BodyTooLarge:
        raise
    except InvalidInput as error:
        return node_error(400, f"invalid request body: {error.message}")
    if secret_of(body) is None or not is_same:
        problem = "a join code is for Corral workers, which have secrets of their own" if is_same else "two join codes"
        return node_error(401, problem)
    return await _admit(context, request, body, trusted_by=None, invitation=invitation)


def _source(context: AdminContext, request: Request) -> str:
    return source_of(host_of_caller(context, request))


async def _admit(
    context: AdminContext,
    request: Request,
    body: RegisterRequest,
    *,
    trusted_by: str | None,
    invitation: Invitation | None = None,
) -> Response:
    try:
        registration = replace(read_registration(body), registered_from=_source(context, request))
    except InvalidInput as error:
        return node_error(400, error.message)
    try:
        registered = await context.nodes.admission.register(
            registration, secret=secret_of(body) or body.token, trusted_by=trusted_by, invitation=invitation
        )
    except TooManyPending as error:
        return node_error(429, error.message)
    except InvitationRefused as error:
        return node_error(401, error.message)
    return answer(await _welcome(context, registered, is_corral=registration.peer is not None), 201)


def offered_features(context: AdminContext) -> list[str]:
    """The extensions of this frontend."""
    named = features(Feature.FLEET_TLS) if context.nodes.tls.policy.is_on else features()
    return [name for name in named if context.nodes.nats_users.offer is not None or name != Feature.NATS_USER]


async def _welcome(context: AdminContext, registered: Registered, *, is_corral: bool) -> RegisterResponse:
    node = registered.node
    is_pending = context.nodes.fleet.see(node).status is NodeStatus.PENDING
    response = RegisterResponse(
        id=node.id,
        name=node.name,
        node_type=node.type.value,
        status=NodeStatus.PENDING if is_pending else NodeStatus.HEALTHY,  # workers know no other words here
        created_at=format_time(node.created_at) if registered.is_new else ZERO,
        corral=_corral_welcome(context) if is_corral else UNSET,
    )
    if node.type is NodeType.AGENT and node.facts.approved_at is not None:
        response.api_token = await context.access.key_ring.issue_to_agent(node.id, node.name)
    if (user := registered.nats_user) is not None:
        response.nats_jwt, response.nats_user_seed = user.jwt, user.seed
    return response


def _corral_welcome(context: AdminContext) -> CorralWelcome:
    offer = context.nodes.nats_users.offer
    nats = UNSET if offer is None else offer
    return CorralWelcome(version=__version__, features=offered_features(context), nats=nats)


async def heartbeat(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_body(request, context.config.max_body, at_most=HEARTBEAT.max_body)
    read = cache(partial(read_heartbeat, body, context.clock.now()))
    try:
        node = await context.nodes.heartbeats.beat(node_id_of(request), _claim(caller), read)
    except AccessDenied:
        return _denied()
    except NotFound:
        return node_error(404, "node not found")
    context.backends.inventory.hear(node.id, read().inventory)
    response = HeartbeatResponse(message="heartbeat received")
    if node.peer is not None:
        response.corral = CorralStatus(
            status=context.nodes.fleet.see(node).status.value, deregistered=node.facts.deregistered_at is not None
        )
    return answer(response)


async def drain(context: AdminContext, request: Request, caller: Caller) -> Response:
    drained = partial(context.nodes.registry.drain, by=BY_WORKER)
    return await _act(context, request, caller, drained, done="node set to draining", failed="failed to drain node")


async def resume(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Ends the worker's own drain only: it approves nothing, and a person's drain stays."""
    resumed = partial(context.nodes.registry.resume, by=BY_WORKER)
    return await _act(context, request, caller, resumed, done="node resumed", failed="failed to resume node")


async def deregister(context: AdminContext, request: Request, caller: Caller) -> Response:
    done, failed = "node set to offline", "failed to deactivate node"
    return await _act(context, request, caller, context.nodes.registry.deregister, done=done, failed=failed)


async def models(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A gateway that is silent may have anything under way: a worker that waits for an end waits for that too."""
    try:
        node_id = await checked_node(context, request, caller)
    except AccessDenied:
        return _denied()
    except NotFound:
        return answer([])
    rows = replica_rows(await context.serving.replicas.on_node(node_id), context.serving.gateways)
    for row in rows if context.serving.gateways.silent() else []:
        row.in_flight += row.state in SERVING
    return answer(rows)


async def _act(
    context: AdminContext,
    request: Request,
    caller: Caller,
    act: Callable[[NodeId], Awaitable[Node]],
    *,
    done: str,
    failed: str,
) -> Response:
    try:
        await act(await checked_node(context, request, caller))
    except AccessDenied:
        return _denied()
    except NotFound:
        return node_error(500, failed)
    return answer({"message": done})


async def checked_node(context: AdminContext, request: Request, caller: Caller) -> NodeId:
    """The node that the caller speaks for. NotFound only to those who hold a valid token."""
    claim = _claim(caller)
    try:
        node = (await context.nodes.fleet.get(node_id_of(request))).node
    except NotFound:
        if await claim.may_ask():
            raise
        raise AccessDenied(_INVALID_TOKEN) from None
    if not await claim.fits(node.secret_hash):
        raise AccessDenied(_INVALID_TOKEN)
    return node.id


def _claim(caller: Caller) -> NodeClaim:
    if caller.claim is None:
        raise RuntimeError("this route is for workers")
    return caller.claim


_UNAUTHORIZED = {401: "no token, a wrong one, or not this node's own secret"}
_worker = partial(RouteSpec, access=Access.WORKER, dialect=Dialect.LOCALAI)

ROUTES = [
    _worker(
        "POST",
        "/api/node/register",
        register,
        "A worker joins, or comes back.",
        takes=RegisterRequest,
        gives=RegisterResponse,
        codes={
            201: "registered; `pending` until approved",
            400: "the body cannot be used; the message names the field",
            **_UNAUTHORIZED,
            413: "the body is too large",
            429: "too many nodes wait for approval, or too many wrong join codes came from this source address",
        },
    ),
    _worker(
        "POST",
        "/api/node/{id}/heartbeat",
        heartbeat,
        "A sign of life with measurements; bad fields are ignored and shown on the node.",
        takes=HeartbeatRequest,
        gives=HeartbeatResponse,
        codes={200: "stored", **_UNAUTHORIZED, 404: "no such node: register again", 413: "the body is too large"},
    ),
    _worker(
        "POST",
        "/api/node/{id}/drain",
        drain,
        "The worker asks for no new work; its next registration ends this.",
        gives=Acknowledged,
        codes={200: "draining", **_UNAUTHORIZED, 500: "no such node"},
    ),
    _worker(
        "POST",
        "/api/node/{id}/resume",
        resume,
        "The worker ends its own drain. A person's drain and a missing approval stay.",
        gives=Acknowledged,
        codes={200: "taken in", **_UNAUTHORIZED, 500: "no such node"},
    ),
    _worker(
        "POST",
        "/api/node/{id}/deregister",
        deregister,
        "The worker leaves; it is offline until it registers again.",
        gives=Acknowledged,
        codes={200: "offline", **_UNAUTHORIZED, 500: "no such node"},
    ),
    _worker(
        "DELETE",
        "/api/node/{id}",
        deregister,
        "The worker leaves, as with deregister.",
        gives=Acknowledged,
        codes={200: "offline", **_UNAUTHORIZED, 500: "no such node"},
    ),
    _worker(
        "GET",
        "/api/node/{id}/models",
        models,
        "The replicas on this node, which a draining worker waits for.",
        gives=list[ReplicaRow],
        codes={200: "a list, empty for an unknown node", **_UNAUTHORIZED},
    ),
]
