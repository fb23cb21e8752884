"""Where models run and why: all replicas, every node's verdict on a model, and what changes and acts would lead to."""

import asyncio

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput, NotFound
from corral.base.ids import NodeId
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_body
from corral.frontend.models.routes.native import show_model
from corral.frontend.nodes.routes.native import node_id_of, read_drain
from corral.frontend.serving.decide.placement import place
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.what_if import (
    BackendDeleted,
    Change,
    ModelScaled,
    NodeDown,
    NodeDrained,
    consequences,
)
from corral.frontend.serving.routes.scheduling import planned_change
from corral.frontend.serving.shapes import (
    act_plan_view,
    change_in_words,
    consequence_view,
    load_job_view,
    needs_view,
    replica_views,
    verdict_view,
    what_if_summary,
    why_summary,
)
from corral.wire.go_json import decode
from corral.wire.placement import ReplicaList, WhatIfAsk, WhatIfView, WhyView
from corral.wire.plans import ActPlanView, DrainAsk, ModelRemovalAsk
from corral.wire.scheduling import SchedulingPlanAsk

_MOST_REPLICAS = 1000
_WHY = "/why"


async def explain(context: AdminContext, request: Request, caller: Caller) -> Response:
    name = request.path_params["name"]
    catalogue = context.models.catalogue
    if catalogue.catalogue.serving(name) is None and name + _WHY in catalogue.rows:
        # A model may be called so.
        request.path_params["name"] = name + _WHY
        return await show_model(context, request, caller)
    spec = catalogue.find(name)
    snapshot = await context.serving.snapshots.take()
    choice = place(snapshot.request(spec), snapshot.candidates(spec))
    jobs = [job for job in snapshot.jobs if job.model == spec.name]
    replicas = snapshot.of_model(spec.name)
    names = {seen.node.id: seen.node.name for seen in snapshot.nodes}
    loads, gateways = context.serving.loads, context.serving.gateways
    view = WhyView(
        model=spec.name,
        asked=name,
        summary=why_summary(spec.name, choice, replicas, jobs, names),
        needs=needs_view(snapshot.needs_of(spec.name)),
        verdicts=[verdict_view(verdict, replicas) for verdict in choice.verdicts],
        replicas=replica_views(replicas, gateways, names),
        jobs=[
            load_job_view(job, loads.progress_of(job), node=names.get(job.node_id or NodeId(""), ""), now=snapshot.at)
            for job in sorted(jobs, key=lambda job: job.ordinal)
        ],
    )
    return answer(view)


async def list_replicas(context: AdminContext, request: Request, caller: Caller) -> Response:
    replicas = await context.serving.replicas.living()
    names = await context.nodes.fleet.names({replica.node_id for replica in replicas})
    ordered = sorted(replicas, key=lambda each: (each.model, names.get(each.node_id, ""), each.index))
    return answer(ReplicaList(items=replica_views(ordered, context.serving.gateways, names)))


async def suppose(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), WhatIfAsk)
    snapshot = await context.serving.snapshots.take()
    change = _change(context, ask, snapshot)
    names = {seen.node.id: seen.node.name for seen in snapshot.nodes}
    outcome = await asyncio.to_thread(consequences, snapshot, change)  # seconds in a fleet of thousands
    view = WhatIfView(
        change=change_in_words(change, names),
        summary=what_if_summary(outcome),
        consequences=[consequence_view(each, names) for each in outcome],
    )
    return answer(view)


def _change(context: AdminContext, ask: WhatIfAsk, snapshot: FleetSnapshot) -> Change:
    named = [field for field in ("node", "model", "backend") if getattr(ask, field)]
    if len(named) != 1:
        raise InvalidInput("", f"must name one of node, model and backend, got {' and '.join(named) or 'none'}")
    if ask.node:
        return _node_change(ask, snapshot)
    if ask.model:
        if ask.replicas is None or not 0 <= ask.replicas <= _MOST_REPLICAS:
            raise InvalidInput("replicas", f"must be a number from 0 to {_MOST_REPLICAS}, got {ask.replicas}")
        return ModelScaled(model=context.models.catalogue.find(ask.model).name, count=ask.replicas)
    _becomes(ask, "deleted")
    return BackendDeleted(backend=ask.backend)


def _node_change(ask: WhatIfAsk, snapshot: FleetSnapshot) -> Change:
    id = NodeId(ask.node)
    _becomes(ask, "down", "drained")
    if all(seen.node.id != id for seen in snapshot.nodes):
        raise NotFound(f"there is no node {ask.node[:100]}")
    return NodeDown(node_id=id) if ask.becomes == "down" else NodeDrained(node_id=id)


def _becomes(ask: WhatIfAsk, *words: str) -> None:
    if ask.becomes not in words:
        raise InvalidInput("becomes", f"must be {' or '.join(words)}, got {ask.becomes[:40]!r}")


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
    RouteSpec(
        method="GET",
        path="/api/v1/models/{name:path}/why",
        handler=explain,
        access=Permission.MODELS_READ,
        summary="Where a model runs, what its loads do, and what every node says to one more replica of it.",
        gives=WhyView,
        codes={200: "every node's verdict", 404: "no model has this name"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/replicas",
        handler=list_replicas,
        access=Permission.MODELS_READ,
        summary="All replicas that live: what each takes, has under way and answers.",
        gives=ReplicaList,
        codes={200: "a list, by model and node"},
    ),
    RouteSpec(
        method="POST",
        path="/api/v1/what-if",
        handler=suppose,
        access=Permission.MODELS_READ,
        summary="What a change of the fleet would do: which models would move where, and which would lose service.",
        takes=WhatIfAsk,
        gives=WhatIfView,
        codes={
            200: "what would happen; nothing was changed",
            400: "it does not say what is to change",
            404: "no node or model has this name",
        },
    ),
]
