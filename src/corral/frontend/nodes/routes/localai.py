"""Nodes for administrators in LocalAI's form: `/api/nodes/*`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.ids import NodeId
from corral.frontend.api.answers import answer, no_content, node_error
from corral.frontend.api.bodies import read_compat
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, Dialect, RouteSpec, read_body
from corral.frontend.nodes.decide.node import Node, NodeLoad, NodeType
from corral.frontend.nodes.routes.localai_self import minted_for
from corral.frontend.nodes.routes.query import QUERY, read_filter, read_page
from corral.frontend.nodes.shapes import node_view
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.shapes import replica_rows
from corral.wire.go_json import read_object
from corral.wire.nodes import NodeView, VramBudget, label_problem
from corral.wire.refusals import Acknowledged
from corral.wire.registration import ApproveResponse, ReplicaLimit
from corral.wire.replicas import ReplicaRow


class ReplicasValue(msgspec.Struct, kw_only=True):
    value: ReplicaLimit = 0


class BudgetValue(msgspec.Struct, kw_only=True):
    value: str = ""


async def list_nodes(context: AdminContext, request: Request, caller: Caller) -> Response:
    """All nodes by name. With `limit` or `cursor` a page, whose successor the header `X-Next-Cursor` names."""
    filter = read_filter(request.query_params)
    page = read_page(request.query_params)
    loads = await node_loads(context)
    if page is None:
        return answer([node_view(seen, loads[seen.node.id]) for seen in await context.nodes.fleet.all(filter)])
    found = await context.nodes.fleet.page(filter, limit=page.limit, cursor=page.cursor)
    headers = {"X-Next-Cursor": found.next_cursor} if found.next_cursor else {}
    return answer([node_view(seen, loads[seen.node.id]) for seen in found.items], headers=headers)


async def node_loads(context: AdminContext) -> Mapping[NodeId, NodeLoad]:
    """How much each node has to do; nodes without replicas have nothing."""
    return context.serving.gateways.node_loads(await context.serving.replicas.places())


async def list_loaded(context: AdminContext, request: Request, caller: Caller) -> Response:
    loaded = [replica for replica in await context.serving.replicas.living() if replica.state is ReplicaState.LOADED]
    healthy = await context.nodes.fleet.healthy({replica.node_id for replica in loaded})
    return answer(replica_rows([one for one in loaded if one.node_id in healthy], context.serving.gateways))


async def list_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(replica_rows(await context.serving.replicas.on_node(_node_id(request)), context.serving.gateways))


async def get_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        seen = await context.nodes.fleet.get(_node_id(request))
    except NotFound:
        return _not_found()
    return answer(node_view(seen, (await node_loads(context))[seen.node.id]))


async def remove_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        await context.nodes.registry.remove(_node_id(request), by=caller.name)
    except NotFound:
        return node_error(500, "failed to deregister node")
    return answer({"message": "node deregistered"})


async def drain_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        await context.nodes.registry.drain(_node_id(request), by=caller.name)
    except NotFound:
        return node_error(500, "failed to drain node")
    return answer({"message": "node set to draining"})


async def resume_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        await context.nodes.registry.resume(_node_id(request), by=caller.name)
    except NotFound:
        return node_error(500, "failed to resume node")
    return answer({"message": "node resumed"})


async def approve_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        node = await context.nodes.registry.approve(_node_id(request), by=caller.name)
    except NotFound:
        return _not_found()
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
    if (minted := minted_for(context, node)) is not None:
        approved |= {"nats_jwt": minted.jwt, "nats_user_seed": minted.seed}
    return answer(approved)


async def get_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        return answer((await context.nodes.fleet.get(_node_id(request))).node.labels.effective)
    except NotFound:
        return _not_found()


async def put_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_labels(context, request)
    return await _labelled(context.nodes.registry.replace_labels(_node_id(request), wanted, by=caller.name))


async def patch_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_labels(context, request)
    return await _labelled(context.nodes.registry.merge_labels(_node_id(request), wanted, by=caller.name))


async def delete_label(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        await context.nodes.registry.remove_label(_node_id(request), request.path_params["key"], by=caller.name)
    except NotFound:
        return _not_found()
    return no_content()


async def read_labels(context: AdminContext, request: Request) -> dict[str, str]:
    """A map of texts; InvalidInput says which entry is none."""
    document = read_object(await read_body(request, context.max_body))
    labels: dict[str, str] = {}
    for key, value in document.items():
        if not isinstance(value, str):
            raise InvalidInput(f"labels.{key[:64]}", "must be a text")
        labels[key] = value
    if problem := label_problem(labels):
        raise InvalidInput("labels", problem)
    return labels


async def _labelled(change: Awaitable[Node]) -> Response:
    try:
        return answer((await change).labels.effective)
    except NotFound:
        return _not_found()


async def put_max_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    value = (await read_compat(context, request, ReplicasValue)).value
    if value < 1:
        return node_error(400, "value must be >= 1")
    return await _override(
        lambda: context.nodes.registry.set_max_replicas(_node_id(request), value, by=caller.name),
        {"max_replicas_per_model": value},
    )


async def delete_max_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _override(
        lambda: context.nodes.registry.set_max_replicas(_node_id(request), None, by=caller.name), {"reset": True}
    )


async def put_vram_budget(context: AdminContext, request: Request, caller: Caller) -> Response:
    value = (await read_compat(context, request, BudgetValue)).value
    try:
        VramBudget.read(value)
    except ValueError as error:
        return node_error(400, f"invalid vram budget: {error}")
    return await _override(
        lambda: context.nodes.registry.set_vram_budget(_node_id(request), value, by=caller.name), {"vram_budget": value}
    )


async def delete_vram_budget(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _override(
        lambda: context.nodes.registry.set_vram_budget(_node_id(request), None, by=caller.name), {"reset": True}
    )


async def _override(change: Callable[[], Awaitable[Node]], done: dict[str, object]) -> Response:
    try:
        await change()
    except NotFound:
        return _not_found()
    return answer(done)


def _not_found() -> Response:
    return node_error(404, "node not found")


def _node_id(request: Request) -> NodeId:
    return NodeId(request.path_params["id"])


_UNKNOWN = {404: "no such node"}
_ADMIN = RouteSpec(
    method="GET",
    path="",
    handler=list_nodes,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI,
    summary="",
    codes={},
)

ROUTES = [
    replace(
        _ADMIN,
        path="/api/nodes",
        summary="All nodes by name; filtered and page by page when asked.",
        gives=list[NodeView],
        query=QUERY,
        codes={200: "a list", 400: "a filter makes no sense"},
    ),
    replace(
        _ADMIN,
        path="/api/nodes/models",
        handler=list_loaded,
        summary="Loaded replicas on healthy nodes.",
        gives=list[ReplicaRow],
        codes={200: "a list"},
    ),
    replace(
        _ADMIN,
        path="/api/nodes/{id}",
        handler=get_node,
        summary="One node.",
        gives=NodeView,
        codes={200: "the node", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        path="/api/nodes/{id}/models",
        handler=list_replicas,
        summary="Replicas of one node in all states.",
        gives=list[ReplicaRow],
        codes={200: "a list, empty for an unknown node"},
    ),
    replace(
        _ADMIN,
        method="DELETE",
        path="/api/nodes/{id}",
        handler=remove_node,
        summary="Forget a node with its secret and its keys.",
        gives=Acknowledged,
        codes={200: "forgotten", 500: "no such node"},
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/drain",
        handler=drain_node,
        summary="No new work for this node until a person resumes it.",
        gives=Acknowledged,
        codes={200: "draining", 500: "no such node"},
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/resume",
        handler=resume_node,
        summary="End a drain; it approves nothing.",
        gives=Acknowledged,
        codes={200: "resumed", 500: "no such node"},
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/approve",
        handler=approve_node,
        summary="Admit a pending node: the only way to become healthy.",
        gives=ApproveResponse,
        codes={200: "approved", 400: "it is not pending", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        path="/api/nodes/{id}/labels",
        handler=get_labels,
        summary="The labels in force.",
        gives=dict[str, str],
        codes={200: "a map", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="PUT",
        path="/api/nodes/{id}/labels",
        handler=put_labels,
        summary="Exactly these labels; reported ones that are missing here stay away.",
        gives=dict[str, str],
        codes={200: "the labels in force", 400: "not a map of texts", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="PATCH",
        path="/api/nodes/{id}/labels",
        handler=patch_labels,
        summary="These labels in addition.",
        gives=dict[str, str],
        codes={200: "the labels in force", 400: "not a map of texts", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="DELETE",
        path="/api/nodes/{id}/labels/{key:path}",
        handler=delete_label,
        summary="Take one label away, also one that the worker reports.",
        codes={204: "gone", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="PUT",
        path="/api/nodes/{id}/max-replicas-per-model",
        handler=put_max_replicas,
        summary="A person's limit; it wins over the worker's and survives its registrations.",
        takes=ReplicasValue,
        codes={200: "set", 400: "below 1, or not a number", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="DELETE",
        path="/api/nodes/{id}/max-replicas-per-model",
        handler=delete_max_replicas,
        summary="Back to what the worker reports.",
        codes={200: "reset", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="PUT",
        path="/api/nodes/{id}/vram-budget",
        handler=put_vram_budget,
        summary="How much video memory models may use: `80%`, `0.8`, `12GB`, `8GiB`, bytes, or empty for all.",
        takes=BudgetValue,
        codes={200: "set", 400: "not a budget", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="DELETE",
        path="/api/nodes/{id}/vram-budget",
        handler=delete_vram_budget,
        summary="Back to what the worker reports.",
        codes={200: "reset", **_UNKNOWN},
    ),
]
