"""What workers say of themselves: `/api/node/*`, in LocalAI's form, so that its workers can join."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache, partial

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.base.errors import AccessDenied, InvalidInput, NotFound
from corral.base.ids import NodeId, source_of
from corral.bus.credentials import UserJwt
from corral.frontend.access.principals import JoinToken, NodeClaim
from corral.frontend.api.answers import answer, node_error, worker_denied
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, BodyTooLarge, Dialect, RouteSpec, read_body
from corral.frontend.nodes.decide.node import BY_WORKER, Node, NodeStatus, NodeType
from corral.frontend.nodes.decide.registration import TooManyPending
from corral.frontend.nodes.registry import Registered
from corral.frontend.nodes.shapes import read_heartbeat, read_registration, secret_of
from corral.frontend.serving.decide.replica import SERVING
from corral.frontend.serving.shapes import replica_rows
from corral.wire.go_json import ZERO, decode, format_time
from corral.wire.keys import HEARTBEAT, REGISTER, hash_secret, same
from corral.wire.refusals import Acknowledged
from corral.wire.registration import (
    FEATURES,
    CorralStatus,
    CorralWelcome,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterRequest,
    RegisterResponse,
)
from corral.wire.replicas import ReplicaRow

_INVALID_TOKEN = "invalid registration token"  # noqa: S105 - a message
_TRUSTED = "corral up"


async def register(context: AdminContext, request: Request, caller: Caller) -> Response:
    claim, source = _claim(caller), _source(context, request)
    header = await context.access.authenticator.join_token(claim.presented)
    if header is None and not await context.nodes.registry.knows_secret(hash_secret(claim.presented)):
        return worker_denied(_INVALID_TOKEN)  # unread: a large body takes much longer to read than to refuse
    try:
        body = await _read_request(request, context.max_body)
    except BodyTooLarge:
        raise
    except InvalidInput as error:
        return worker_denied(_INVALID_TOKEN) if header is None else _unreadable(error)
    if header is None:
        if not _is_own_secret(claim, body):
            return worker_denied(_INVALID_TOKEN)
        return await _admit(context, body, source=source, trusted_by=None)
    if not body.token:
        return node_error(401, "registration token required")
    in_body = await context.access.authenticator.join_token(body.token)
    if in_body is None:
        return node_error(401, _INVALID_TOKEN)
    return await _admit(context, body, source=source, trusted_by=_trusted_by(header, in_body))


def _source(context: AdminContext, request: Request) -> str:
    """Where the caller is, as limits count it. Only gateways reach control's socket, and say whom they speak for."""
    if context.config.socket is not None:
        return source_of(request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip())
    return source_of(request.client.host) if request.client is not None else ""


def _unreadable(error: InvalidInput) -> Response:
    return node_error(400, f"invalid request body: {error.message}")


def _is_own_secret(claim: NodeClaim, body: RegisterRequest) -> bool:
    """A node of ours may come back with its own secret, also after the shared token was changed. That a node has what
    was presented is known by now."""
    secret = secret_of(body)
    return secret is not None and same(secret, claim.presented) and same(body.token, claim.presented)


async def _admit(context: AdminContext, body: RegisterRequest, *, source: str, trusted_by: str | None) -> Response:
    try:
        registration = replace(read_registration(body), registered_from=source)
    except InvalidInput as error:
        return node_error(400, error.message)
    try:
        registered = await context.nodes.registry.register(registration, secret=secret_of(body), trusted_by=trusted_by)
    except TooManyPending as error:
        return node_error(429, error.message)
    return answer(await _welcome(context, registered, is_corral=registration.peer is not None), 201)


def _trusted_by(header: JoinToken, body: JoinToken) -> str | None:
    return _TRUSTED if header.trusted and body.trusted else None


async def _read_request(request: Request, max_body: int) -> RegisterRequest:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidInput("Content-Type", f"must be application/json, got {kind[:80] or 'none'}")
    return decode(await read_body(request, max_body, at_most=REGISTER.max_body), RegisterRequest)


async def _welcome(context: AdminContext, registered: Registered, *, is_corral: bool) -> RegisterResponse:
    node = registered.node
    response = RegisterResponse(
        id=node.id,
        name=node.name,
        node_type=node.type.value,
        status=_join_status(context, node),
        created_at=format_time(node.created_at) if registered.is_new else ZERO,
        corral=CorralWelcome(version=__version__, features=list(FEATURES)) if is_corral else UNSET,
    )
    if node.type is NodeType.AGENT and node.facts.approved_at is not None:
        response.api_token = await context.access.key_ring.issue_to_agent(node.id, node.name)
    if (minted := minted_for(context, node)) is not None:
        response.nats_jwt, response.nats_user_seed = minted.jwt, minted.seed
    return response


def minted_for(context: AdminContext, node: Node) -> UserJwt | None:
    """NATS credentials for a node of LocalAI that was admitted. Corral's workers bring their own."""
    minter = context.config.minter
    if minter is None or node.peer is not None or node.facts.approved_at is None:
        return None
    return minter.mint(node.id, node_type=node.type.value, at=context.clock.now())


def _join_status(context: AdminContext, node: Node) -> str:
    """Workers know two words here: they are in, or they wait."""
    status = context.nodes.fleet.see(node).status
    return status.value if status is NodeStatus.PENDING else NodeStatus.HEALTHY.value


async def heartbeat(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_body(request, context.max_body, at_most=HEARTBEAT.max_body)
    read = cache(partial(read_heartbeat, body, context.clock.now()))
    try:
        node = await context.nodes.heartbeats.beat(_node_id(request), _claim(caller), read)
    except AccessDenied:
        return worker_denied(_INVALID_TOKEN)
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
    return await _act(
        context,
        request,
        caller,
        lambda id: context.nodes.registry.drain(id, by=BY_WORKER),
        said=("node set to draining", "failed to drain node"),
    )


async def resume(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Ends the worker's own drain only: it approves nothing, and a person's drain stays."""
    return await _act(
        context,
        request,
        caller,
        lambda id: context.nodes.registry.resume(id, by=BY_WORKER),
        said=("node resumed", "failed to resume node"),
    )


async def deregister(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _act(
        context,
        request,
        caller,
        context.nodes.registry.deregister,
        said=("node set to offline", "failed to deactivate node"),
    )


async def models(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A gateway that is silent may have anything under way: a worker that waits for an end waits for that too."""
    try:
        await _check(context, _node_id(request), _claim(caller))
    except AccessDenied:
        return worker_denied(_INVALID_TOKEN)
    except NotFound:
        return answer([])
    rows = replica_rows(await context.serving.replicas.on_node(_node_id(request)), context.serving.gateways)
    for row in rows if context.serving.gateways.silent() else []:
        row.in_flight += row.state in SERVING
    return answer(rows)


async def _act(
    context: AdminContext,
    request: Request,
    caller: Caller,
    act: Callable[[NodeId], Awaitable[Node]],
    *,
    said: tuple[str, str],
) -> Response:
    done, failed = said
    node_id = _node_id(request)
    try:
        await _check(context, node_id, _claim(caller))
        await act(node_id)
    except AccessDenied:
        return worker_denied(_INVALID_TOKEN)
    except NotFound:
        return node_error(500, failed)
    return answer({"message": done})


async def _check(context: AdminContext, node_id: NodeId, claim: NodeClaim) -> None:
    """Does the caller speak for this node? NotFound only to those who hold a valid token."""
    try:
        node = (await context.nodes.fleet.get(node_id)).node
    except NotFound:
        if await claim.may_ask():
            raise
        raise AccessDenied(_INVALID_TOKEN) from None
    if not await claim.fits(node.secret_hash):
        raise AccessDenied(_INVALID_TOKEN)


def _claim(caller: Caller) -> NodeClaim:
    if caller.claim is None:
        raise RuntimeError("this route is for workers")
    return caller.claim


def _node_id(request: Request) -> NodeId:
    return NodeId(request.path_params["id"])


_UNAUTHORIZED = {401: "no token, a wrong one, or not this node's own secret"}
_SELF = RouteSpec(
    method="POST",
    path="",
    handler=register,
    access=Access.WORKER,
    dialect=Dialect.LOCALAI,
    summary="",
    codes={},
)

ROUTES = [
    replace(
        _SELF,
        path="/api/node/register",
        summary="A worker joins, or comes back.",
        takes=RegisterRequest,
        gives=RegisterResponse,
        codes={
            201: "registered; `pending` until approved",
            400: "the body cannot be used; the message names the field",
            **_UNAUTHORIZED,
            413: "the body is too large",
            429: "too many nodes wait for approval, in all or from this source address",
        },
    ),
    replace(
        _SELF,
        path="/api/node/{id}/heartbeat",
        handler=heartbeat,
        summary="A sign of life with measurements; bad fields are ignored and shown on the node.",
        takes=HeartbeatRequest,
        gives=HeartbeatResponse,
        codes={200: "stored", **_UNAUTHORIZED, 404: "no such node: register again", 413: "the body is too large"},
    ),
    replace(
        _SELF,
        path="/api/node/{id}/drain",
        handler=drain,
        summary="The worker asks for no new work; its next registration ends this.",
        gives=Acknowledged,
        codes={200: "draining", **_UNAUTHORIZED, 500: "no such node"},
    ),
    replace(
        _SELF,
        path="/api/node/{id}/resume",
        handler=resume,
        summary="The worker ends its own drain. A person's drain and a missing approval stay.",
        gives=Acknowledged,
        codes={200: "taken in", **_UNAUTHORIZED, 500: "no such node"},
    ),
    replace(
        _SELF,
        path="/api/node/{id}/deregister",
        handler=deregister,
        summary="The worker leaves; it is offline until it registers again.",
        gives=Acknowledged,
        codes={200: "offline", **_UNAUTHORIZED, 500: "no such node"},
    ),
    replace(
        _SELF,
        method="DELETE",
        path="/api/node/{id}",
        handler=deregister,
        summary="The same as deregister.",
        gives=Acknowledged,
        codes={200: "offline", **_UNAUTHORIZED, 500: "no such node"},
    ),
    replace(
        _SELF,
        method="GET",
        path="/api/node/{id}/models",
        handler=models,
        summary="The replicas on this node, which a draining worker waits for.",
        gives=list[ReplicaRow],
        codes={200: "a list, empty for an unknown node", **_UNAUTHORIZED},
    ),
]
