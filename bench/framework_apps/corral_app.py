"""Starlette as the admin API uses it: our route table, with every real route in front of the one that is called."""

from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from bench.framework_apps.node import one_node
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer, starlette_route
from corral.frontend.routes import ROUTES
from corral.wire.nodes import NodeView


async def get_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(one_node(request.path_params["id"]))


_NODE = RouteSpec(
    method="GET",
    path="/nodes/{id}",
    handler=get_node,
    access=Access.PUBLIC,
    summary="One node.",
    gives=NodeView,
    codes={200: "the node"},
)
_NOTHING = cast(AdminContext, None)  # none of the routes that would need it is called

app = Starlette(routes=[starlette_route(spec, _NOTHING) for spec in (*ROUTES, _NODE)])
