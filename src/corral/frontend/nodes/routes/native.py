"""Nodes for administrators in Corral's own form: `/api/v1/nodes/*`, with right codes and all facts."""

from collections.abc import Awaitable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.base.ids import NodeId
from corral.frontend.api.answers import answer, no_content
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, RouteSpec
from corral.frontend.nodes.decide.node import Node, SeenNode
from corral.frontend.nodes.routes.localai import node_loads, read_labels
from corral.frontend.nodes.routes.query import QUERY, read_filter, read_limit
from corral.frontend.nodes.shapes import node_detail
from corral.frontend.serving.shapes import replica_view
from corral.wire.nodes import NodeDetail, NodePage
from corral.wire.replicas import ReplicaView


async def list_nodes(context: AdminContext, request: Request, caller: Caller) -> Response:
    query = request.query_params
    page = await context.nodes.fleet.page(read_filter(query), limit=read_limit(query), cursor=query.get("cursor"))
    loads = await node_loads(context)
    items = [node_detail(seen, loads[seen.node.id], context.nodes.fleet.policy) for seen in page.items]
    return answer(NodePage(items=items, next_cursor=page.next_cursor, alarm=context.nodes.brake.reason))


async def get_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _shown(context, await context.nodes.fleet.get(_node_id(request)))


async def list_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    node = (await context.nodes.fleet.get(_node_id(request))).node
    return answer(
        [
            replica_view(one, context.serving.gateways, node=node.name)
            for one in await context.serving.replicas.on_node(node.id)
        ]
    )


async def approve_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.approve(_node_id(request), by=caller.name))


async def drain_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.drain(_node_id(request), by=caller.name))


async def resume_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.resume(_node_id(request), by=caller.name))


async def remove_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.registry.remove(_node_id(request), by=caller.name)
    return no_content()


async def put_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_labels(context, request)
    return await _changed(context, context.nodes.registry.replace_labels(_node_id(request), wanted, by=caller.name))


async def patch_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_labels(context, request)
    return await _changed(context, context.nodes.registry.merge_labels(_node_id(request), wanted, by=caller.name))


async def delete_label(context: AdminContext, request: Request, caller: Caller) -> Response:
    key = request.path_params["key"]
    return await _changed(context, context.nodes.registry.remove_label(_node_id(request), key, by=caller.name))


async def _changed(context: AdminContext, change: Awaitable[Node]) -> Response:
    return await _shown(context, context.nodes.fleet.see(await change))


async def _shown(context: AdminContext, seen: SeenNode) -> Response:
    load = (await node_loads(context))[seen.node.id]
    return answer(node_detail(seen, load, context.nodes.fleet.policy))


def _node_id(request: Request) -> NodeId:
    return NodeId(request.path_params["id"])


_UNKNOWN = {404: "no such node"}
_NATIVE = RouteSpec(
    method="POST",
    path="",
    handler=list_nodes,
    access=Access.ADMIN,
    summary="",
    codes={},
    gives=NodeDetail,
)

ROUTES = [
    replace(
        _NATIVE,
        method="GET",
        path="/api/v1/nodes",
        summary="Nodes by name with all facts, page by page.",
        gives=NodePage,
        query=QUERY,
        codes={200: "a page", 400: "a filter makes no sense"},
    ),
    replace(
        _NATIVE,
        method="GET",
        path="/api/v1/nodes/{id}",
        handler=get_node,
        summary="One node with all facts.",
        codes={200: "the node", **_UNKNOWN},
    ),
    replace(
        _NATIVE,
        method="GET",
        path="/api/v1/nodes/{id}/replicas",
        handler=list_replicas,
        summary="The living replicas of one node, with the requests under way there.",
        gives=list[ReplicaView],
        codes={200: "a list", **_UNKNOWN},
    ),
    replace(
        _NATIVE,
        path="/api/v1/nodes/{id}/approve",
        handler=approve_node,
        summary="Admit a pending node.",
        codes={200: "approved", **_UNKNOWN, 409: "it is not pending"},
    ),
    replace(
        _NATIVE,
        path="/api/v1/nodes/{id}/drain",
        handler=drain_node,
        summary="No new work for this node until a person resumes it.",
        codes={200: "draining", **_UNKNOWN},
    ),
    replace(
        _NATIVE,
        path="/api/v1/nodes/{id}/resume",
        handler=resume_node,
        summary="End a drain.",
        codes={200: "resumed", **_UNKNOWN},
    ),
    replace(
        _NATIVE,
        method="DELETE",
        path="/api/v1/nodes/{id}",
        handler=remove_node,
        summary="Forget a node with its secret and its keys.",
        gives=None,
        codes={204: "forgotten", **_UNKNOWN},
    ),
    replace(
        _NATIVE,
        method="PUT",
        path="/api/v1/nodes/{id}/labels",
        handler=put_labels,
        summary="Exactly these labels.",
        codes={200: "the node", 400: "not a map of texts", **_UNKNOWN},
    ),
    replace(
        _NATIVE,
        method="PATCH",
        path="/api/v1/nodes/{id}/labels",
        handler=patch_labels,
        summary="These labels in addition.",
        codes={200: "the node", 400: "not a map of texts", **_UNKNOWN},
    ),
    replace(
        _NATIVE,
        method="DELETE",
        path="/api/v1/nodes/{id}/labels/{key:path}",
        handler=delete_label,
        summary="Take one label away.",
        codes={200: "the node", **_UNKNOWN},
    ),
]
