"""Litestar, which encodes msgspec structs by itself."""

# mypy: ignore-errors
# Its framework is not installed where types are checked.

from litestar import Litestar, get

from bench.framework_apps.node import one_node
from corral.wire.nodes import NodeView


@get("/nodes/{id:str}")
async def get_node(id: str) -> NodeView:
    return one_node(id)


app = Litestar([get_node])
