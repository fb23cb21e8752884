"""Nodes for administrators in LocalAI's form: `/api/nodes/*`."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import Conflict, NotFound
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import (
    AdminContext,
    Caller,
    Dialect,
    RouteHandler,
    RouteSpec,
    answer,
    no_content,
    node_error,
    read_compat,
    read_limit,
)
from corral.frontend.nodes.contacts import NodeGone, NodePending, WorkerUnreachable
from corral.frontend.nodes.decide.node import NodeType
from corral.frontend.nodes.logs import WorkerAnswer
from corral.frontend.nodes.routes.native import QUERY, node_id_of, node_loads, read_filter, read_labels
from corral.frontend.nodes.shapes import node_view
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.shapes import replica_rows
from corral.wire.logs import LogLine
from corral.wire.nodes import NodeView, VramBudget
from corral.wire.refusals import Acknowledged
from corral.wire.registration import ApproveResponse, ReplicaLimit
from corral.wire.replicas import ReplicaRow


class ReplicasValue(msgspec.Struct, kw_only=True):
    value: ReplicaLimit = 0


class BudgetValue(msgspec.Struct, kw_only=True):
    value: str = ""


def _when_missing(status: int, message: str) -> Callable[[RouteHandler], RouteHandler]:
    """LocalAI's answer where there is no such node; not the same on all routes."""

    def wrap(handler: RouteHandler) -> RouteHandler:
        @wraps(handler)
        async def wrapped(context: AdminContext, request: Request, caller: Caller) -> Response:
            try:
                return await handler(context, request, caller)
            except NotFound:
                return node_error(status, message)

        return wrapped

    return wrap


_or_not_found = _when_missing(404, "node not found")


async def list_nodes(context: AdminContext, request: Request, caller: Caller) -> Response:
    """All nodes by name. With `limit` or `cursor` a page, whose successor the header `X-Next-Cursor` names."""
    query = request.query_params
    headers: dict[str, str] = {}
    filter, loads = read_filter(query), await node_loads(context)
    if "limit" in query or "cursor" in query:
        page = await context.nodes.fleet.page(filter, limit=read_limit(query), cursor=query.get("cursor"))
        nodes = page.items
        if page.next_cursor:
            headers["X-Next-Cursor"] = page.next_cursor
    else:
        nodes = await context.nodes.fleet.all(filter)
    return answer([node_view(seen, loads[seen.node.id]) for seen in nodes], headers=headers)


async def list_loaded(context: AdminContext, request: Request, caller: Caller) -> Response:
    loaded = [replica for replica in await context.serving.replicas.living() if replica.state is ReplicaState.LOADED]
    healthy = await context.nodes.fleet.healthy({replica.node_id for replica in loaded})
    served = [replica for replica in loaded if replica.node_id in healthy]
    return answer(replica_rows(served, context.serving.gateways))


async def list_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(replica_rows(await context.serving.replicas.on_node(node_id_of(request)), context.serving.gateways))


@_or_not_found
async def get_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    seen = await context.nodes.fleet.get(node_id_of(request))
    return answer(node_view(seen, (await node_loads(context))[seen.node.id]))


@_when_missing(500, "failed to deregister node")
async def remove_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.registry.remove(node_id_of(request), by=caller.name)
    return answer({"message": "node deregistered"})


@_when_missing(500, "failed to drain node")
async def drain_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.registry.drain(node_id_of(request), by=caller.name)
    return answer({"message": "node set to draining"})


@_when_missing(500, "failed to resume node")
async def resume_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.registry.resume(node_id_of(request), by=caller.name)
    return answer({"message": "node resumed"})


@_when_missing(400, "failed to approve node: no node has this id")
async def approve_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        node, minted = await context.nodes.registry.approve_localai(node_id_of(request), by=caller.name)
    except Conflict as error:
        return node_error(400, f"failed to approve node: {error.message}")
    approved: dict[str, object] = {
        "id": node.id,
        "message": "node approved",
        "name": node.name,
        "node_type": node.type.value,
        "status": context.nodes.fleet.see(node).status.value,
    }
    if node.type is NodeType.AGENT:
        approved["api_token"] = await context.access.key_ring.issue_to_agent(node.id, node.name)
    if minted is not None:
        approved |= {"nats_jwt": minted.jwt, "nats_user_seed": minted.seed}
    return answer(approved)


@_or_not_found
async def get_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer((await context.nodes.fleet.get(node_id_of(request))).node.labels.effective)


@_or_not_found
async def put_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    labels = await read_labels(context, request)
    node = await context.nodes.registry.replace_labels(node_id_of(request), labels, by=caller.name)
    return answer(node.labels.effective)


@_or_not_found
async def patch_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    labels = await read_labels(context, request)
    node = await context.nodes.registry.merge_labels(node_id_of(request), labels, by=caller.name)
    return answer(node.labels.effective)


async def delete_label(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A node that nobody knows has no labels, so LocalAI counts this label as removed."""
    with suppress(NotFound):
        await context.nodes.registry.remove_label(node_id_of(request), request.path_params["key"], by=caller.name)
    return no_content()


@_or_not_found
async def put_max_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    value = (await read_compat(context, request, ReplicasValue)).value
    if value < 1:
        return node_error(400, "value must be >= 1")
    await context.nodes.registry.set_max_replicas(node_id_of(request), value, by=caller.name)
    return answer({"max_replicas_per_model": value})


@_or_not_found
async def delete_max_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.registry.set_max_replicas(node_id_of(request), None, by=caller.name)
    return answer({"reset": True})


@_or_not_found
async def put_vram_budget(context: AdminContext, request: Request, caller: Caller) -> Response:
    value = (await read_compat(context, request, BudgetValue)).value
    try:
        VramBudget.read(value)
    except ValueError as error:
        return node_error(400, f"invalid vram budget: {error}")
    await context.nodes.registry.set_vram_budget(node_id_of(request), value, by=caller.name)
    return answer({"vram_budget": value})


@_or_not_found
async def delete_vram_budget(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.registry.set_vram_budget(node_id_of(request), None, by=caller.name)
    return answer({"reset": True})


async def list_logs(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _passed_on(context.nodes.logs.names(node_id_of(request)))


async def get_log(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _passed_on(context.nodes.logs.lines(node_id_of(request), request.path_params["model"]))


async def _passed_on(asking: Awaitable[WorkerAnswer]) -> Response:
    """A node may send anything. As plain text it is nothing that a browser would run, whatever the node calls it."""
    try:
        reply = await asking
    except NodeGone:
        return node_error(404, "node not found")
    except NodePending as error:
        return node_error(409, error.message)
    except WorkerUnreachable as error:
        return node_error(502, error.message)
    headers = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    return Response(reply.body, reply.status, headers=headers)


_UNKNOWN = {404: "no such node"}
_NO_LOGS = {
    **_UNKNOWN,
    409: "the node waits for approval, and is not contacted",
    502: "its HTTP server cannot be reached",
}
_route = partial(RouteSpec, dialect=Dialect.LOCALAI)

ROUTES = [
    _route(
        "GET",
        "/api/nodes",
        list_nodes,
        "All nodes by name; filtered and page by page when asked.",
        access=Permission.NODES_READ,
        gives=list[NodeView],
        query=QUERY,
        codes={200: "a list", 400: "a filter makes no sense"},
    ),
    _route(
        "GET",
        "/api/nodes/models",
        list_loaded,
        "Loaded replicas on healthy nodes.",
        access=Permission.MODELS_READ,
        gives=list[ReplicaRow],
        codes={200: "a list"},
    ),
    _route(
        "GET",
        "/api/nodes/{id}",
        get_node,
        "One node.",
        access=Permission.NODES_READ,
        gives=NodeView,
        codes={200: "the node", **_UNKNOWN},
    ),
    _route(
        "GET",
        "/api/nodes/{id}/models",
        list_replicas,
        "Replicas of one node in all states.",
        access=Permission.MODELS_READ,
        gives=list[ReplicaRow],
        codes={200: "a list, empty for an unknown node"},
    ),
    _route(
        "DELETE",
        "/api/nodes/{id}",
        remove_node,
        "Forget a node with its secret and its keys.",
        access=Permission.NODES_ADMIT,
        gives=Acknowledged,
        codes={200: "forgotten", 500: "no such node"},
    ),
    _route(
        "POST",
        "/api/nodes/{id}/drain",
        drain_node,
        "No new work for this node until a person resumes it.",
        access=Permission.NODES_ACT,
        gives=Acknowledged,
        codes={200: "draining", 500: "no such node"},
    ),
    _route(
        "POST",
        "/api/nodes/{id}/resume",
        resume_node,
        "End a drain; it approves nothing.",
        access=Permission.NODES_ACT,
        gives=Acknowledged,
        codes={200: "resumed", 500: "no such node"},
    ),
    _route(
        "POST",
        "/api/nodes/{id}/approve",
        approve_node,
        "Admit a pending node: the only way to become healthy.",
        access=Permission.NODES_ADMIT,
        gives=ApproveResponse,
        codes={200: "approved", 400: "it is not pending, or there is no such node"},
    ),
    _route(
        "GET",
        "/api/nodes/{id}/labels",
        get_labels,
        "The labels in force.",
        access=Permission.NODES_READ,
        gives=dict[str, str],
        codes={200: "a map", **_UNKNOWN},
    ),
    _route(
        "PUT",
        "/api/nodes/{id}/labels",
        put_labels,
        "Exactly these labels; reported ones that are missing here stay away.",
        access=Permission.NODES_ACT,
        gives=dict[str, str],
        codes={200: "the labels in force", 400: "not a map of texts", **_UNKNOWN},
    ),
    _route(
        "PATCH",
        "/api/nodes/{id}/labels",
        patch_labels,
        "These labels in addition.",
        access=Permission.NODES_ACT,
        gives=dict[str, str],
        codes={200: "the labels in force", 400: "not a map of texts", **_UNKNOWN},
    ),
    _route(
        "DELETE",
        "/api/nodes/{id}/labels/{key:path}",
        delete_label,
        "Take one label away, also one that the worker reports.",
        access=Permission.NODES_ACT,
        codes={204: "gone, or never there"},
    ),
    _route(
        "PUT",
        "/api/nodes/{id}/max-replicas-per-model",
        put_max_replicas,
        "A person's limit; it wins over the worker's and survives its registrations.",
        access=Permission.NODES_ACT,
        takes=ReplicasValue,
        codes={200: "set", 400: "below 1, or not a number", **_UNKNOWN},
    ),
    _route(
        "DELETE",
        "/api/nodes/{id}/max-replicas-per-model",
        delete_max_replicas,
        "Back to what the worker reports.",
        access=Permission.NODES_ACT,
        codes={200: "reset", **_UNKNOWN},
    ),
    _route(
        "PUT",
        "/api/nodes/{id}/vram-budget",
        put_vram_budget,
        "How much video memory models may use: `80%`, `0.8`, `12GB`, `8GiB`, bytes, or empty for all.",
        access=Permission.NODES_ACT,
        takes=BudgetValue,
        codes={200: "set", 400: "not a budget", **_UNKNOWN},
    ),
    _route(
        "DELETE",
        "/api/nodes/{id}/vram-budget",
        delete_vram_budget,
        "Back to what the worker reports.",
        access=Permission.NODES_ACT,
        codes={200: "reset", **_UNKNOWN},
    ),
    _route(
        "GET",
        "/api/nodes/{id}/backend-logs",
        list_logs,
        "Of what the node has logs, asked for now.",
        access=Permission.NODES_LOGS,
        gives=list[str],
        codes={200: "names of models and backends, as `text/plain`, since the worker wrote them", **_NO_LOGS},
    ),
    _route(
        "GET",
        "/api/nodes/{id}/backend-logs/{model:path}",
        get_log,
        "The last lines that processes of a model printed; of one process when its key is given.",
        access=Permission.NODES_LOGS,
        gives=list[LogLine],
        codes={200: "lines by their time, none for a name without a log", **_NO_LOGS},
    ),
]
