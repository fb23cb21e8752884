"""Plain Starlette, encoded by msgspec."""

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.framework_apps.node import one_node

_encoder = msgspec.json.Encoder()


async def get_node(request: Request) -> Response:
    return Response(_encoder.encode(one_node(request.path_params["id"])), media_type="application/json")


app = Starlette(routes=[Route("/nodes/{id}", get_node)])
