"""Nodes for administrators in Corral's own form: `/api/v1/nodes/*`, with right codes and all facts. What the other
routes about nodes read or show in the same way is here, too.
"""

from collections.abc import Awaitable, Mapping
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.frontend.api.route import (
    MAX_LIMIT,
    Access,
    AdminContext,
    Caller,
    RouteSpec,
    answer,
    no_content,
    read_body,
    read_limit,
)
from corral.frontend.nodes.decide.node import Node, NodeLoad, NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import NodeFilter
from corral.frontend.nodes.shapes import node_detail
from corral.frontend.serving.shapes import replica_view
from corral.wire.go_json import read_object
from corral.wire.nodes import NodeDetail, NodePage, label_problem
from corral.wire.replicas import ReplicaView

QUERY: Final = {
    "status": "only nodes in this status; may be given several times",
    "type": "`backend` or `agent`",
    "label": "only nodes with this label, as `key=value`; may be given several times",
    "name": "only nodes whose name contains this",
    "limit": f"page size, 1 to {MAX_LIMIT}",
    "cursor": "where the last page ended",
}

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


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
        statuses=_choices(query, "status", NodeStatus),
        types=_choices(query, "type", NodeType),
        labels=labels,
        name_contains=query.get("name", ""),
    )


def _choices(query: QueryParams, name: str, choices: type[ChoiceT]) -> frozenset[ChoiceT]:
    texts = query.getlist(name)
    for text in texts:
        if text not in set(choices):
            raise InvalidInput(name, f"must be one of {', '.join(choices)}, got {text[:40]!r}")
    return frozenset(map(choices, texts))


async def read_labels(context: AdminContext, request: Request) -> dict[str, str]:
    """A map of texts; InvalidInput says which entry is none."""
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
    return await _shown(context, await context.nodes.fleet.get(node_id_of(request)))


async def list_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    node = (await context.nodes.fleet.get(node_id_of(request))).node
    replicas = await context.serving.replicas.on_node(node.id)
    return answer([replica_view(replica, context.serving.gateways, node=node.name) for replica in replicas])


async def approve_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.approve(node_id_of(request), by=caller.name))


async def drain_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.drain(node_id_of(request), by=caller.name))


async def resume_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _changed(context, context.nodes.registry.resume(node_id_of(request), by=caller.name))


async def remove_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.registry.remove(node_id_of(request), by=caller.name)
    return no_content()


async def put_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    labels = await read_labels(context, request)
    return await _changed(context, context.nodes.registry.replace_labels(node_id_of(request), labels, by=caller.name))


async def patch_labels(context: AdminContext, request: Request, caller: Caller) -> Response:
    labels = await read_labels(context, request)
    return await _changed(context, context.nodes.registry.merge_labels(node_id_of(request), labels, by=caller.name))


async def delete_label(context: AdminContext, request: Request, caller: Caller) -> Response:
    key = request.path_params["key"]
    return await _changed(context, context.nodes.registry.remove_label(node_id_of(request), key, by=caller.name))


async def _changed(context: AdminContext, change: Awaitable[Node]) -> Response:
    return await _shown(context, context.nodes.fleet.see(await change))


async def _shown(context: AdminContext, seen: SeenNode) -> Response:
    load = (await node_loads(context))[seen.node.id]
    return answer(node_detail(seen, load, context.nodes.fleet.policy))


_UNKNOWN = {404: "no such node"}
_native = partial(RouteSpec, access=Access.ADMIN)
_change = partial(_native, gives=NodeDetail)

ROUTES = [
    _native(
        "GET",
        "/api/v1/nodes",
        list_nodes,
        "Nodes by name with all facts, page by page.",
        gives=NodePage,
        query=QUERY,
        codes={200: "a page", 400: "a filter makes no sense"},
    ),
    _change("GET", "/api/v1/nodes/{id}", get_node, "One node with all facts.", codes={200: "the node", **_UNKNOWN}),
    _native(
        "GET",
        "/api/v1/nodes/{id}/replicas",
        list_replicas,
        "The living replicas of one node, with the requests under way there.",
        gives=list[ReplicaView],
        codes={200: "a list", **_UNKNOWN},
    ),
    _change(
        "POST",
        "/api/v1/nodes/{id}/approve",
        approve_node,
        "Admit a pending node.",
        codes={200: "approved", **_UNKNOWN, 409: "it is not pending"},
    ),
    _change(
        "POST",
        "/api/v1/nodes/{id}/drain",
        drain_node,
        "No new work for this node until a person resumes it.",
        codes={200: "draining", **_UNKNOWN},
    ),
    _change("POST", "/api/v1/nodes/{id}/resume", resume_node, "End a drain.", codes={200: "resumed", **_UNKNOWN}),
    _native(
        "DELETE",
        "/api/v1/nodes/{id}",
        remove_node,
        "Forget a node with its secret and its keys.",
        codes={204: "forgotten", **_UNKNOWN},
    ),
    _change(
        "PUT",
        "/api/v1/nodes/{id}/labels",
        put_labels,
        "Exactly these labels.",
        codes={200: "the node", 400: "not a map of texts", **_UNKNOWN},
    ),
    _change(
        "PATCH",
        "/api/v1/nodes/{id}/labels",
        patch_labels,
        "These labels in addition.",
        codes={200: "the node", 400: "not a map of texts", **_UNKNOWN},
    ),
    _change(
        "DELETE",
        "/api/v1/nodes/{id}/labels/{key:path}",
        delete_label,
        "Take one label away.",
        codes={200: "the node", **_UNKNOWN},
    ),
]
