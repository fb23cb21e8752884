"""Routes about files of models on nodes: bringing them there, and seeing what was brought."""

from starlette.requests import Request
from starlette.responses import Response

from corral.base.ids import NodeId
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_body
from corral.frontend.operations.routes.native import idempotency_key
from corral.frontend.operations.shapes import operation_view
from corral.frontend.serving.staging.operations import StagingAsk
from corral.wire.go_json import decode, format_time
from corral.wire.model_files import NodeFilesView, StagedModelView, StagingStart
from corral.wire.operation_views import OperationView


async def stage(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = decode(await read_body(request, context.config.max_body), StagingStart)
    ask = StagingAsk(
        model=body.model,
        nodes=tuple(NodeId(id) for id in body.nodes),
        labels=body.selector,
        is_everywhere=body.all,
        by=caller.name,
        idempotency_key=idempotency_key(request),
    )
    operation = await context.serving.stagings.start(ask)
    view = operation_view(operation, context.operations.progress.look(operation), context.clock.monotonic())
    return answer(view, 202, {"Location": f"/api/v1/operations/{operation.id}"})


async def node_files(context: AdminContext, request: Request, caller: Caller) -> Response:
    node = (await context.nodes.fleet.get(NodeId(request.path_params["id"]))).node
    items = [
        StagedModelView(
            model=staged.model,
            bytes=staged.bytes,
            files=len(staged.files),
            revision=staged.revision,
            staged_at=format_time(staged.staged_at),
            used_at=format_time(staged.used_at),
            needed=needed,
        )
        for staged, needed in await context.serving.staged.of_node(node.id)
    ]
    view = NodeFilesView(
        node_id=node.id,
        node=node.name,
        items=items,
        bytes=sum(item.bytes for item in items),
        total_disk=node.capacity.total_disk,
        available_disk=node.capacity.available_disk,
    )
    return answer(view)


ROUTES = [
    RouteSpec(
        method="POST",
        path="/api/v1/model-stagings",
        handler=stage,
        access=Permission.MODELS_ACT,
        summary="Bring the files of a model to nodes, and load nothing. Nothing is sent of what a node has. A repeated "
        "call with the same header `Idempotency-Key` starts nothing.",
        takes=StagingStart,
        gives=OperationView,
        codes={
            202: "accepted",
            400: "the body cannot be read, or does not say where",
            404: "no model or no node has this name",
            409: "no node fits, or one of them waits for approval",
        },
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/nodes/{id}/files",
        handler=node_files,
        access=Permission.MODELS_READ,
        summary="What frontends have brought to a node for models, the longest unused first, and what of it may go.",
        gives=NodeFilesView,
        codes={200: "all of it", 404: "no node has this id"},
    ),
]
