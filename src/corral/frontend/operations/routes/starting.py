"""Corral's own routes that start an operation on backends, and that plan one before."""

from msgspec import convert
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput, Overtaken
from corral.base.ids import NodeId
from corral.frontend.access.decide import Permission
from corral.frontend.api.plans import STALE
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, checked_galleries, read_body
from corral.frontend.backends.decide.backend import BACKEND_VERBS, payload_of
from corral.frontend.backends.decide.plan_words import counts_of, plan_text
from corral.frontend.backends.operations import Preview
from corral.frontend.backends.planning import Ask, Planned
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.operations.decide.intent import IntentKind, Verb
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.routes.native import idempotency_key, planned_view
from corral.frontend.operations.shapes import operation_view
from corral.frontend.serving.decide.replica import SERVING
from corral.galleries.build_uris import BackendRef
from corral.wire.go_json import decode
from corral.wire.operation_views import OperationAsk, OperationView, Plan, StalePlan
from corral.wire.plans import EndingReplicaView, PlanError, plan_hash

_AWAY = (NodeStatus.OFFLINE, NodeStatus.UNHEALTHY)


async def start(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = decode(await read_body(request, context.config.max_body), OperationAsk)
    ask = _ask(body, request, caller)
    if not body.plan_hash:
        return accepted(context, await context.backends.operations.start(ask))
    if (earlier := await context.operations.service.with_key(ask.idempotency_key)) is not None:
        return accepted(context, earlier)
    preview = await context.backends.operations.preview(ask)
    plan = await _plan_of(context, ask, preview)
    if plan.hash == body.plan_hash:
        try:
            return accepted(context, await context.backends.operations.start_previewed(ask, preview))
        except Overtaken:
            plan = await _plan_of(context, ask, await context.backends.operations.preview(ask))
    return answer(StalePlan(error=PlanError(), plan=plan), 409)


async def plan(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = decode(await read_body(request, context.config.max_body), OperationAsk)
    ask = _ask(body, request, caller)
    return answer(await _plan_of(context, ask, await context.backends.operations.preview(ask)))


def accepted(context: AdminContext, operation: Operation) -> Response:
    """The answer to a request that started an operation, or found the one that it had started before."""
    view = operation_view(operation, context.operations.progress.look(operation), context.clock.monotonic())
    return answer(view, 202, {"Location": f"/api/v1/operations/{operation.id}"})


def _ask(body: OperationAsk, request: Request, caller: Caller) -> Ask:
    if body.verb not in BACKEND_VERBS:
        raise InvalidInput("verb", f"is {body.verb[:50]!r}; say one of {', '.join(BACKEND_VERBS)}")
    if body.uri or body.galleries:
        caller.demand(Permission.BACKENDS_TRUST)
    checked_galleries(body.galleries, "galleries")
    return Ask(
        verb=Verb(body.verb),
        ref=convert(body, BackendRef, from_attributes=True),
        force=body.force,
        nodes=tuple(NodeId(node_id) for node_id in body.nodes),
        labels=body.labels,
        by=caller.name,
        idempotency_key=idempotency_key(request),
        refuses_unknown=True,
    )


async def _plan_of(context: AdminContext, ask: Ask, preview: Preview) -> Plan:
    """The plan that people see, with its hash."""
    items = [planned_view(planned) for planned in preview.planned]
    ending = await _ending(context, preview)
    view = Plan(
        items=items,
        hash=_hash(ask, preview, ending),
        counts=counts_of(items),
        replicas_end=ending,
        rules=list(preview.rules),
    )
    view.text = plan_text(view, ask.verb)
    return view


async def _ending(context: AdminContext, preview: Preview) -> list[EndingReplicaView]:
    """The replicas that would end with their backend."""
    changing = [plan for plan in preview.planned if not plan.hindrance and not plan.is_reached]
    ending = await context.serving.rollout.ending([(plan.node.node, plan.wish) for plan in changing])
    under_way, silent = context.serving.gateways.in_flight(), context.serving.gateways.silent()
    return [
        EndingReplicaView(
            node_id=node.id,
            node=node.name,
            model=replica.model,
            in_flight=None if silent and replica.state in SERVING else under_way[replica.id],
        )
        for node, replica in ending
    ]


def _hash(ask: Ask, preview: Preview, ending: list[EndingReplicaView]) -> str:
    """The hash of what was asked for, what would be sent where and what ends; changing numbers are left out."""
    ref = ask.ref
    request = [ask.verb.value, ref.backend, ref.uri, ref.name, ref.alias, ref.galleries, ask.force]
    places = sorted(_place(plan, preview) for plan in preview.planned)
    ends = sorted([replica.node_id, replica.model] for replica in ending)
    return plan_hash([request, places, ends, sorted(preview.rules)])


def _place(plan: Planned, preview: Preview) -> list[object]:
    """What decides about one node. The artefact of a forced install has the id of its operation, which is left out."""
    node_id, key = plan.node.node.id, plan.wish.key
    sent = payload_of(replace(plan.wish.artefact, renewal=""))
    state = [bool(plan.hindrance), plan.is_reached, bool(plan.unknown), plan.node.status in _AWAY]
    return [node_id, key, state, preview.generations[node_id, IntentKind.BACKEND, key], plan_hash(sent)]


_ADMIN = RouteSpec(
    method="POST",
    path="/api/v1/operations",
    handler=start,
    access=Permission.BACKENDS_ACT,
    summary="Install, upgrade or delete a backend on all nodes, on those with certain labels, or on some. A repeated "
    "call with the same header `Idempotency-Key` starts nothing.",
    takes=OperationAsk,
    gives=OperationView,
    refusals={409: StalePlan},
    codes={
        202: "accepted; nodes that are away are waited for",
        400: "something is missing or malformed, or no gallery knows the backend; `field` names it",
        404: "no node has one of the ids",
        409: f"no node is meant, no node has what shall be upgraded, a fleet rule demands otherwise; or {STALE}",
    },
)

ROUTES = [
    _ADMIN,
    replace(
        _ADMIN,
        path="/api/v1/operations/plan",
        handler=plan,
        access=Permission.OPERATIONS_READ,
        summary="What an operation would do, and where it would be blocked; nothing is stored or sent.",
        gives=Plan,
        refusals={},
        codes={
            200: "a line for each node, what ends by it, and a hash that the operation can name",
            400: _ADMIN.codes[400],
            404: _ADMIN.codes[404],
            409: "no node is meant, or no node has what shall be upgraded",
        },
    ),
]
