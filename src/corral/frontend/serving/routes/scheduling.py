"""Rules of scheduling: LocalAI's routes under `/api/nodes/scheduling`, and Corral's own; loading by hand."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from msgspec.structs import replace as replace_struct
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import Conflict, InvalidInput
from corral.base.ids import NodeId
from corral.frontend.access.decide import Permission
from corral.frontend.api.plans import PLAN_HASH, STALE, act_on_plan, plan_hash_in
from corral.frontend.api.route import (
    AdminContext,
    Caller,
    Dialect,
    RouteSpec,
    answer,
    no_content,
    node_error,
    read_body,
    read_compat,
)
from corral.frontend.serving.decide.act_plan import ActPlan
from corral.frontend.serving.decide.scaling import ReplicaCounts
from corral.frontend.serving.decide.scheduling import RuleSource, SchedulingRule, SchedulingWish
from corral.frontend.serving.scheduling import (
    PruneRules,
    RulesChange,
    declaration,
    removal,
    revised,
    revision,
)
from corral.frontend.serving.shapes import loading_view, scheduling_row, scheduling_view
from corral.wire.go_json import decode
from corral.wire.models import REASON_SENTENCES, LoadReason
from corral.wire.placement import ModelLoadView
from corral.wire.plans import StaleActPlan
from corral.wire.refusals import Acknowledged
from corral.wire.scheduling import (
    ModelLoadAsk,
    NamedScheduling,
    SchedulingAsk,
    SchedulingChanges,
    SchedulingFields,
    SchedulingList,
    SchedulingPlanAsk,
    SchedulingRevision,
    SchedulingRow,
    SchedulingSet,
    SchedulingView,
)
from corral.wire.view import Loading

# LocalAI's form.


async def list_rows(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer([scheduling_row(rule) for rule in await context.serving.scheduling.all()])


async def get_row(context: AdminContext, request: Request, caller: Caller) -> Response:
    rule = await context.serving.scheduling.find(request.path_params["model"])
    return node_error(404, "no scheduling config for model") if rule is None else answer(scheduling_row(rule))


async def post_row(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = await read_compat(context, request, SchedulingAsk)

    def revise(wish: SchedulingWish) -> SchedulingWish:
        counted = replace(
            wish,
            node_selector=ask.node_selector or {},
            min_replicas=ask.min_replicas,
            max_replicas=ask.max_replicas,
            spread_all=ask.spread_all,
        )
        return revised(
            counted,
            route_policy=ask.route_policy,
            balance_abs_threshold=ask.balance_abs_threshold,
            balance_rel_threshold=ask.balance_rel_threshold,
            min_prefix_match=ask.min_prefix_match,
        )

    try:
        rule = await context.serving.scheduling.revise(ask.model_name, revise, by=caller.name)
    except InvalidInput as error:
        raise InvalidInput("", f"{error.field} {error.problem}") from error
    return answer(scheduling_row(rule))


async def delete_row(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.serving.scheduling.delete(request.path_params["model"], by=caller.name)
    return no_content()


# Corral's own form.


async def list_rules(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(SchedulingList(items=await rule_views(context, await context.serving.scheduling.all())))


async def get_rule(context: AdminContext, request: Request, caller: Caller) -> Response:
    rule = await context.serving.scheduling.get(request.path_params["model"])
    return answer((await rule_views(context, [rule]))[0])


async def put_rule(context: AdminContext, request: Request, caller: Caller) -> Response:
    """What is left out is as in a model without a rule."""
    return await _revise(context, request, caller, keeps=False)


async def patch_rule(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _revise(context, request, caller, keeps=True)


async def _revise(context: AdminContext, request: Request, caller: Caller, *, keeps: bool) -> Response:
    model = request.path_params["model"]
    fields = decode(await read_body(request, context.config.max_body), SchedulingRevision)
    stated = await _stated(context, fields)

    def revise(wish: SchedulingWish) -> SchedulingWish:
        return replace(wish if keeps else SchedulingWish(model=model), **stated)

    async def act(mark: str | None) -> Response:
        rule = await context.serving.scheduling.revise(model, revise, by=caller.name, mark=mark)
        return answer((await rule_views(context, [rule]))[0])

    return await _on_plan(context, fields.plan_hash, revision(model, revise), caller, act)


async def delete_rule(context: AdminContext, request: Request, caller: Caller) -> Response:
    model = request.path_params["model"]

    async def act(mark: str | None) -> Response:
        if not await context.serving.scheduling.delete(model, by=caller.name, mark=mark):
            await context.serving.scheduling.get(model)  # says that there is none
        return no_content()

    return await _on_plan(context, plan_hash_in(request.query_params), removal([model]), caller, act)


async def declare(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = decode(await read_body(request, context.config.max_body), SchedulingSet)
    change = declaration(await _wishes(context, body.rules), prune=_prune(body.prune))

    async def act(mark: str | None) -> Response:
        changed = await context.serving.scheduling.change(change, by=caller.name, mark=mark)
        return answer(
            SchedulingChanges(added=list(changed.added), changed=list(changed.changed), removed=list(changed.removed))
        )

    return await _on_plan(context, body.plan_hash, change, caller, act)


async def _on_plan(
    context: AdminContext,
    plan_hash: str | UnsetType,
    change: RulesChange,
    caller: Caller,
    act: Callable[[str | None], Awaitable[Response]],
) -> Response:
    async def plan() -> ActPlan:
        return await context.serving.plans.scheduling(change, by=caller.name)

    return await act_on_plan(plan_hash, plan, act)


async def planned_change(context: AdminContext, ask: SchedulingPlanAsk) -> tuple[RulesChange, frozenset[str]]:
    """The change of rules that is to be planned, and the models that are unloaded besides."""
    wishes = await _wishes(context, ask.rules)
    if both := {wish.model for wish in wishes} & set(ask.remove):
        raise InvalidInput("remove", f"names {min(both)[:100]!r}, which has a rule in `rules`")
    change = declaration(wishes, prune=_prune(ask.prune), remove=ask.remove, source=RuleSource.API)
    return change, frozenset(context.models.catalogue.find(name).name for name in ask.unload)


def _prune(text: str) -> PruneRules:
    if text not in list(PruneRules):
        words = ", ".join(repr(prune.value) for prune in PruneRules)
        raise InvalidInput("prune", f"is {text[:50]!r}; say one of {words}")
    return PruneRules(text)


async def _wishes(context: AdminContext, rules: Sequence[NamedScheduling]) -> list[SchedulingWish]:
    return [SchedulingWish(model=rule.model, **await _stated(context, rule)) for rule in rules]  # type: ignore[arg-type]


async def _stated(context: AdminContext, fields: SchedulingFields) -> dict[str, object]:
    """The fields that were given, with ids of nodes instead of their names."""
    stated = {
        name: value
        for name in SchedulingFields.__struct_fields__
        if not isinstance(value := getattr(fields, name), UnsetType)
    }
    if fields.pinned_nodes is not UNSET:
        stated["pinned_nodes"] = await context.serving.scheduling.nodes_named(fields.pinned_nodes)
    return stated


async def rule_views(context: AdminContext, rules: Sequence[SchedulingRule]) -> list[SchedulingView]:
    """Rules with how far the fleet is with each."""
    if not rules:
        return []
    counts: Mapping[str, ReplicaCounts] = await context.serving.scaling.counts()
    names = await context.nodes.fleet.names({id for rule in rules for id in rule.wish.pinned_nodes})
    catalogue = context.models.catalogue.catalogue
    views = []
    for rule in rules:
        spec = catalogue.serving(rule.model)
        unknown = ReplicaCounts(problem="no model has this name, or it is disabled")
        standing = unknown if spec is None else counts.get(spec.name, ReplicaCounts())
        views.append(scheduling_view(rule, standing, names))
    return views


# By hand.


async def load(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), ModelLoadAsk)
    return answer(loading_view(await context.serving.scaling.load(ask.name, await _node(context, ask))), 202)


async def show_load(context: AdminContext, request: Request, caller: Caller) -> Response:
    name = request.path_params["name"]
    spec = context.models.catalogue.find(name)
    if not (caller.may_ask(name) or caller.may_ask(spec.name)):
        raise context.models.catalogue.unknown(name)
    status = await context.serving.loads.status_of(spec.name)
    loading = None if status is None else _shown_to(caller, loading_view(status))
    return answer(ModelLoadView(model=spec.name, loading=loading))


def _shown_to(caller: Caller, loading: Loading) -> Loading:
    """Names of nodes, paths and what engines print are for those who may read logs; others get a plain reason."""
    if caller.can(Permission.NODES_LOGS):
        return loading
    reason = loading.reason if loading.reason in REASON_SENTENCES else ""
    message = REASON_SENTENCES[LoadReason(reason)] if reason else ""
    return replace_struct(loading, node="", message=message, reason=reason, file="", engine_lines=[])


async def unload(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), ModelLoadAsk)
    spec, node_id = context.models.catalogue.find(ask.name), await _node(context, ask)
    demand = await context.serving.scaling.demand(spec.name)
    if demand:
        raise Conflict(f"the rule of scheduling of {spec.name} would load it again: {demand}; change the rule first")
    if node_id is None:
        await context.serving.node_models.unload_everywhere(spec.name, by=caller.name)
    else:
        await context.serving.node_models.unload(node_id, spec.name, by=caller.name)
    return answer(Acknowledged(message="model unloaded"))


async def _node(context: AdminContext, ask: ModelLoadAsk) -> NodeId | None:
    try:
        return next(iter(await context.serving.scheduling.nodes_named([ask.node] if ask.node else [])), None)
    except InvalidInput as error:
        raise InvalidInput("node", error.problem) from error


_LOCALAI = RouteSpec(
    method="GET",
    path="/api/nodes/scheduling",
    handler=list_rows,
    access=Permission.SCHEDULING_READ,
    dialect=Dialect.LOCALAI,
    summary="How many replicas models should have, and where: all rules.",
    gives=list[SchedulingRow],
    codes={200: "a list", 500: "the database failed"},
)
_RULE = "/api/v1/scheduling/{model:path}"
_NATIVE = RouteSpec(
    method="GET",
    path="/api/v1/scheduling",
    handler=list_rules,
    access=Permission.SCHEDULING_READ,
    summary="All rules of scheduling, and how far the fleet is with each.",
    gives=SchedulingList,
    codes={200: "a list, by model"},
)
_BAD = {400: "something is missing or malformed; `field` names it"}
_NO_RULE = {404: "the model has no rule"}

ROUTES = [
    _LOCALAI,
    replace(
        _LOCALAI,
        method="POST",
        handler=post_row,
        access=Permission.SCHEDULING_ACT,
        summary="Set how many replicas a model should have, and where. Counts and selector are replaced; of the other "
        "fields, what is left out stays.",
        takes=SchedulingAsk,
        gives=SchedulingRow,
        codes={200: "the rule after it", 400: "the counts or thresholds contradict each other, or are out of range"},
    ),
    replace(
        _LOCALAI,
        path="/api/nodes/scheduling/{model:path}",
        handler=get_row,
        access=Permission.SCHEDULING_READ,
        summary="How many replicas one model should have, and where.",
        gives=SchedulingRow,
        codes={200: "the rule", 404: "the model has none"},
    ),
    replace(
        _LOCALAI,
        method="DELETE",
        path="/api/nodes/scheduling/{model:path}",
        handler=delete_row,
        access=Permission.SCHEDULING_ACT,
        summary="Have no rule for a model any more.",
        gives=None,
        codes={204: "there is none now", 500: "the database failed"},
    ),
    _NATIVE,
    replace(
        _NATIVE,
        method="PUT",
        handler=declare,
        access=Permission.SCHEDULING_ACT,
        summary="Make these the rules of the models that they name: for a file that declares them. Others stay, unless "
        "`prune` says otherwise.",
        takes=SchedulingSet,
        gives=SchedulingChanges,
        refusals={409: StaleActPlan},
        codes={200: "what changed", **_BAD, 409: STALE},
    ),
    replace(
        _NATIVE,
        path=_RULE,
        handler=get_rule,
        access=Permission.SCHEDULING_READ,
        summary="The rule of one model, and how far the fleet is with it.",
        gives=SchedulingView,
        codes={200: "the rule", **_NO_RULE},
    ),
    replace(
        _NATIVE,
        method="PUT",
        path=_RULE,
        handler=put_rule,
        access=Permission.SCHEDULING_ACT,
        summary="Set the rule of a model. It takes effect at once.",
        takes=SchedulingRevision,
        gives=SchedulingView,
        refusals={409: StaleActPlan},
        codes={200: "the rule after it", **_BAD, 409: STALE},
    ),
    replace(
        _NATIVE,
        method="PATCH",
        path=_RULE,
        handler=patch_rule,
        access=Permission.SCHEDULING_ACT,
        summary="Change some fields of a model's rule, or make it one. It takes effect at once.",
        takes=SchedulingRevision,
        gives=SchedulingView,
        refusals={409: StaleActPlan},
        codes={200: "the rule after it", **_BAD, 409: STALE},
    ),
    replace(
        _NATIVE,
        method="DELETE",
        path=_RULE,
        handler=delete_rule,
        access=Permission.SCHEDULING_ACT,
        summary="Have no rule for a model any more: it is loaded when somebody asks.",
        gives=None,
        query={"plan_hash": PLAN_HASH},
        refusals={409: StaleActPlan},
        codes={204: "deleted", **_NO_RULE, 409: STALE},
    ),
    replace(
        _NATIVE,
        method="POST",
        path="/api/v1/model-loads",
        handler=load,
        access=Permission.MODELS_ACT,
        summary="Load a model without waiting for a request; with a node, have a replica there.",
        takes=ModelLoadAsk,
        gives=Loading,
        codes={
            202: "how far it is",
            400: "no node has this id or name",
            404: "no model has this name",
            409: "the node cannot take it, and why",
        },
    ),
    replace(
        _NATIVE,
        path="/api/v1/model-loads/{name:path}",
        handler=show_load,
        access=Permission.MODELS_LIST,
        summary="How far the load of a model is, for those who wait for its answer.",
        gives=ModelLoadView,
        codes={200: "how far it is, or that none is under way", 404: "no model has this name"},
    ),
    replace(
        _NATIVE,
        method="POST",
        path="/api/v1/model-unloads",
        handler=unload,
        access=Permission.MODELS_ACT,
        summary="Unload a model everywhere, or on one node, after the requests that it answers, and wait for that. The "
        "next request loads it again.",
        takes=ModelLoadAsk,
        gives=Acknowledged,
        codes={
            200: "nothing runs for it there",
            400: "no node has this id or name",
            404: "no model has this name",
            409: "a rule would load it again, or it is just being loaded",
            500: "a node does not answer",
        },
    ),
]
