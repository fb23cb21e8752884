"""What an act would do before it is done: drains, removals of nodes and models, changes of the rules of scheduling."""

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_body
from corral.frontend.nodes.routes.native import node_id_of, read_drain
from corral.frontend.serving.routes.scheduling import planned_change
from corral.frontend.serving.shapes import act_plan_view
from corral.wire.go_json import decode
from corral.wire.plans import ActPlanView, DrainAsk, ModelRemovalAsk
from corral.wire.scheduling import SchedulingPlanAsk


async def plan_drain(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = await read_drain(context, request)
    return answer(act_plan_view(await context.serving.plans.drain(node_id_of(request), is_forced=ask.force)))


async def plan_node_removal(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(act_plan_view(await context.serving.plans.node_removal(node_id_of(request))))


async def plan_model_removal(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), ModelRemovalAsk)
    return answer(act_plan_view(await context.serving.plans.model_removal(ask.name)))


async def plan_scheduling(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), SchedulingPlanAsk)
    change, unload = await planned_change(context, ask)
    return answer(act_plan_view(await context.serving.plans.scheduling(change, by=caller.name, unload=unload)))


_PLAN = RouteSpec(
    method="POST",
    path="/api/v1/nodes/{id}/drain/plan",
    handler=plan_drain,
    access=Permission.NODES_READ,
    summary="What draining a node would do: what moves where, what ends, and what stays because nothing can take it.",
    takes=DrainAsk,
    may_be_empty=True,
    gives=ActPlanView,
    codes={200: "the plan; nothing was changed", 400: "not what is expected", 404: "no such node"},
)

ROUTES = [
    _PLAN,
    replace(
        _PLAN,
        path="/api/v1/nodes/{id}/removal/plan",
        handler=plan_node_removal,
        access=Permission.NODES_READ,
        summary="What removing a node would do: models that move or lose service, and what is cancelled there.",
        takes=None,
        may_be_empty=False,
        codes={200: "the plan; nothing was changed", 404: "no such node"},
    ),
    replace(
        _PLAN,
        path="/api/v1/model-removals/plan",
        handler=plan_model_removal,
        access=Permission.MODELS_READ,
        summary="What removing a model would do: replicas that end, names that lead nowhere, and which files go.",
        takes=ModelRemovalAsk,
        may_be_empty=False,
        codes={
            200: "the plan; nothing was changed",
            400: "not what is expected",
            404: "no model has this name",
            409: "it is being pulled, or there is a file of this name that cannot be read",
        },
    ),
    replace(
        _PLAN,
        path="/api/v1/scheduling/plan",
        handler=plan_scheduling,
        access=Permission.SCHEDULING_READ,
        summary="What rules of scheduling would lead to, until nothing is left to do: what is loaded, moved and ended.",
        takes=SchedulingPlanAsk,
        may_be_empty=False,
        codes={200: "the plan; nothing was changed", 400: "something is missing or malformed; `field` names it"},
    ),
]
