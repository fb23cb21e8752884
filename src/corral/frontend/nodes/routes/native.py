"""Nodes for administrators in Corral's own form: `/api/v1/nodes/*`, with right codes and all facts. What the other
routes about nodes read or show in the same way is here, too.
"""

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import QueryField, number, some_of, switch
from corral.frontend.api.plans import PLAN_HASH, STALE, act_on_plan, plan_hash_in
from corral.frontend.api.route import (
    MAX_LIMIT,
    AdminContext,
    Caller,
    RouteSpec,
    answer,
    no_content,
    read_body,
    read_choices,
    read_limit,
    read_switch,
)
from corral.frontend.nodes.decide.node import Node, NodeLoad, NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import NodeFilter
from corral.frontend.nodes.shapes import card_views, change_view, node_detail
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.act_plan import ActPlan
from corral.frontend.serving.shapes import drain_view, replica_views
from corral.wire.go_json import decode, read_object
from corral.wire.labels import label_problem
from corral.wire.nodes import CardChange, CardView, DrainView, NodeDetail, NodePage
from corral.wire.plans import DrainAsk, StaleActPlan
from corral.wire.replicas import ReplicaView

QUERY: Final[Mapping[str, str | QueryField]] = {
    "status": some_of("only nodes in this status; may be given several times", NodeStatus),
    "type": some_of("`backend` or `agent`; may be given several times", NodeType),
    "label": some_of("only nodes with this label, as `key=value`; may be given several times"),
    "name": "only nodes whose name contains this",
    "limit": number(f"page size, 1 to {MAX_LIMIT}", least=1, most=MAX_LIMIT),
    "cursor": "where the last page ended",
}

_CHANGES: Final = frozenset({EventKind.NODE_MOVED, EventKind.NODE_CHANGED, EventKind.NODE_SUSPECTED})
_MOST_CHANGES: Final = 5


def node_id_of(request: Request) -> NodeId:
    return NodeId(request.path_params["id"])


async def node_loads(context: AdminContext) -> Mapping[NodeId, NodeLoad]:
    """How much each node has to do; nodes without replicas have nothing."""
    return context.serving.gateways.node_loads(await context.serving.replicas.places())


def read_filter(query: QueryParams) -> NodeFilter:
    labels = {}
    for text in query.getlist("label"):
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidInput("label", f"must look like key=value, got {text[:40]!r}")
        labels[key] = value
    return NodeFilter(
        statuses=read_choices(query, "status", NodeStatus),
        types=read_choices(query, "type", NodeType),
        labels=labels,
        name_contains=query.get("name", ""),
    )


async def read_labels(context: AdminContext, request: Request) -> dict[str, str]:
    """Read labels as a map of texts. InvalidInput names the entry that is not a text."""
    document = read_object(await read_body(request, context.config.max_body))
    labels: dict[str, str] = {}
    for key, value in document.items():
        if not isinstance(value, str):
            raise InvalidInput(f"labels.{key[:64]}", "must be a text")
        labels[key] = value
    if problem := label_problem(labels):
        raise InvalidInput("labels", problem)
    return labels


async def list_nodes(context: AdminContext, request: Request, caller: Caller) -> Response:
    query = request.query_params
    page = await context.nodes.fleet.page(read_filter(query), limit=read_limit(query), cursor=query.get("cursor"))
    loads = await node_loads(context)
    items = [node_detail(seen, loads[seen.node.id], context.nodes.fleet.policy) for seen in page.items]
    return answer(NodePage(items=items, next_cursor=page.next_cursor, alarm=context.nodes.brake.reason))


async def get_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    seen = await context.nodes.fleet.get(node_id_of(request))
    detail = node_detail(seen, (await node_loads(context))[seen.node.id], context.nodes.fleet.policy)
    changes = await context.record.events.newest_of(seen.node.id, _CHANGES, limit=_MOST_CHANGES)
    detail.changes = [change_view(stored.event) for stored in changes]
    return answer(detail)


async def list_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    node = (await context.nodes.fleet.get(node_id_of(request))).node
    replicas = await context.serving.replicas.on_node(node.id)
    return answer(replica_views(replicas, context.serving.gateways, {node.id: node.name}))


async def approve_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.approve(node_id_of(request), by=caller.name))


async def drain_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    node_id, ask = node_id_of(request), await read_drain(context, request)

    async def act(mark: str | None) -> Response:
        node = await context.nodes.registry.drain(node_id, by=caller.name, mark=mark)
        if ask.force:
            await context.serving.draining.force(node_id, by=caller.name)
        return await _shown(context, context.nodes.fleet.see(node))

    async def plan() -> ActPlan:
        return await context.serving.plans.drain(node_id, is_forced=ask.force)

    return await act_on_plan(ask.plan_hash, plan, act)


async def read_drain(context: AdminContext, request: Request) -> DrainAsk:
    """How a node is to be drained: in the body, which may be left out, or whether by force in the query."""
    body = await read_body(request, context.config.max_body)
    ask = decode(body, DrainAsk) if body else DrainAsk()
    ask.force = read_switch(request.query_params, "force") or ask.force
    return ask


async def get_drain(context: AdminContext, request: Request, caller: Caller) -> Response:
    seen, plan = await context.serving.draining.progress(node_id_of(request))
    return answer(drain_view(seen, plan, within=context.config.room.drain))


async def resume_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.resume(node_id_of(request), by=caller.name))


async def remove_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    node_id = node_id_of(request)

    async def act(mark: str | None) -> Response:
        await context.nodes.registry.remove(node_id, by=caller.name)
        return no_content()

    async def plan() -> ActPlan:
        return await context.serving.plans.node_removal(node_id)

    return await act_on_plan(plan_hash_in(request.query_params), plan, act)


async def put_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    labels = await read_labels(context, request)
    return await _changed(context, context.nodes.registry.replace_labels(node_id_of(request), labels, by=caller.name))


async def patch_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    labels = await read_labels(context, request)
    return await _changed(context, context.nodes.registry.merge_labels(node_id_of(request), labels, by=caller.name))


async def delete_label(context: AdminContext, request: Request, caller: Caller) -> Response:
    key = request.path_params["key"]
    return await _changed(context, context.nodes.registry.remove_label(node_id_of(request), key, by=caller.name))


async def list_cards(context: AdminContext, request: Request, caller: Caller) -> Response:
    node = (await context.nodes.fleet.get(node_id_of(request))).node
    users: dict[str, list[str]] = {}
    for replica in await context.serving.replicas.on_node(node.id):
        for card in replica.cards:
            users.setdefault(card, []).append(replica.process_key)
    return answer(card_views(node, users))


async def put_card(context: AdminContext, request: Request, caller: Caller) -> Response:
    change = decode(await read_body(request, context.config.max_body), CardChange)
    card = request.path_params["card"]
    return await _changed(
        context, context.nodes.registry.put_card(node_id_of(request), card, is_out=change.is_out, by=caller.name)
    )


async def _changed(context: AdminContext, change: Awaitable[Node]) -> Response:
    return await _shown(context, context.nodes.fleet.see(await change))


async def _shown(context: AdminContext, seen: SeenNode) -> Response:
    load = (await node_loads(context))[seen.node.id]
    return answer(node_detail(seen, load, context.nodes.fleet.policy))


_UNKNOWN = {404: "no such node"}
_change = partial(RouteSpec, gives=NodeDetail)

ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/nodes",
        list_nodes,
        "Nodes by name with all facts, page by page.",
        access=Permission.NODES_READ,
        gives=NodePage,
        query=QUERY,
        codes={200: "a page", 400: "a filter makes no sense"},
    ),
    _change(
        "GET",
        "/api/v1/nodes/{id}",
        get_node,
        "One node with all facts.",
        access=Permission.NODES_READ,
        codes={200: "the node", **_UNKNOWN},
    ),
    RouteSpec(
        "GET",
        "/api/v1/nodes/{id}/replicas",
        list_replicas,
        "The living replicas of one node, with the requests under way there.",
        access=Permission.NODES_READ,
        gives=list[ReplicaView],
        codes={200: "a list", **_UNKNOWN},
    ),
    RouteSpec(
        "GET",
        "/api/v1/nodes/{id}/cards",
        list_cards,
        "The GPUs of one node, with the replicas that may use each.",
        access=Permission.NODES_READ,
        gives=list[CardView],
        codes={200: "a list, empty where the node tells only sums", **_UNKNOWN},
    ),
    _change(
        "PUT",
        "/api/v1/nodes/{id}/cards/{card}",
        put_card,
        "Take a GPU out of service, or put it back. What uses it goes on; it gets nothing new.",
        access=Permission.NODES_ACT,
        takes=CardChange,
        codes={200: "the node", 400: "not what is expected", 404: "no such node, or it has no such GPU"},
    ),
    _change(
        "POST",
        "/api/v1/nodes/{id}/approve",
        approve_node,
        "Admit a pending node.",
        access=Permission.NODES_ADMIT,
        codes={200: "approved", **_UNKNOWN, 409: "it is not pending"},
    ),
    _change(
        "POST",
        "/api/v1/nodes/{id}/drain",
        drain_node,
        "Empty this node: no new work until a person resumes it, and its replicas move where they can.",
        access=Permission.NODES_ACT,
        takes=DrainAsk,
        may_be_empty=True,
        refusals={409: StaleActPlan},
        query={"force": switch("`true` also ends what no other node can take")},
        codes={
            200: "draining",
            400: "a bad body, or force is neither true nor false",
            **_UNKNOWN,
            409: f"it is not heard, so not forced; or {STALE}",
        },
    ),
    RouteSpec(
        "GET",
        "/api/v1/nodes/{id}/drain",
        get_drain,
        "How far the drain of a node is: what is left there, what moves, and what cannot, with every node's reason.",
        access=Permission.NODES_READ,
        gives=DrainView,
        codes={200: "how far it is", **_UNKNOWN},
    ),
    _change(
        "POST",
        "/api/v1/nodes/{id}/resume",
        resume_node,
        "End a drain.",
        access=Permission.NODES_ACT,
        codes={200: "resumed", **_UNKNOWN},
    ),
    RouteSpec(
        "DELETE",
        "/api/v1/nodes/{id}",
        remove_node,
        "Forget a node with its secret and its keys.",
        access=Permission.NODES_ADMIT,
        query={"plan_hash": PLAN_HASH},
        refusals={409: StaleActPlan},
        codes={204: "forgotten", **_UNKNOWN, 409: STALE},
    ),
    _change(
        "PUT",
        "/api/v1/nodes/{id}/labels",
        put_labels,
        "Exactly these labels.",
        access=Permission.NODES_ACT,
        codes={200: "the node", 400: "not a map of texts", **_UNKNOWN},
    ),
    _change(
        "PATCH",
        "/api/v1/nodes/{id}/labels",
        patch_labels,
        "These labels in addition.",
        access=Permission.NODES_ACT,
        codes={200: "the node", 400: "not a map of texts", **_UNKNOWN},
    ),
    _change(
        "DELETE",
        "/api/v1/nodes/{id}/labels/{key:path}",
        delete_label,
        "Take one label away.",
        access=Permission.NODES_ACT,
        codes={200: "the node", **_UNKNOWN},
    ),
]
