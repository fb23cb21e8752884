"""Models for administrators: `/api/v1/models`, and their removal."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.ids import NodeId
from corral.frontend.access.decide import Permission
from corral.frontend.api.plans import PLAN_HASH, STALE, act_on_plan, plan_hash_in
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer
from corral.frontend.models.decide.model import ModelProblem, ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.models.decide.stored import StoredModel, WeightFile
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.routes.native import idempotency_key
from corral.frontend.operations.shapes import operation_view
from corral.frontend.serving.decide.act_plan import ActPlan
from corral.frontend.serving.decide.load_job import LoadJob
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState, barrier
from corral.frontend.serving.routes.scheduling import rule_views
from corral.frontend.serving.shapes import load_job_view, replica_views
from corral.wire.go_json import format_time
from corral.wire.models import (
    LoadJobView,
    LoadReason,
    ModelEngineView,
    ModelFileView,
    ModelList,
    ModelMemoryView,
    ModelOriginView,
    ModelProblemView,
    ModelView,
)
from corral.wire.operation_views import OperationView
from corral.wire.plans import StaleActPlan

COLD = "cold"
LOADING = "loading"
UNUSABLE = "unusable"
ELSEWHERE = "elsewhere"
DISABLED = "disabled"


async def list_models(context: AdminContext, request: Request, caller: Caller) -> Response:
    models = context.models.catalogue
    replicas = await context.serving.replicas.living()
    by_model: dict[str, list[Replica]] = defaultdict(list)
    for replica in replicas:
        by_model[replica.model].append(replica)
    jobs = await context.serving.loads.furthest_jobs()
    names = await context.nodes.fleet.names(_nodes_of(replicas, jobs.values()))
    engines = _engines(context)
    views = []
    for name, spec in _shown(context).items():
        serving = spec.alias_of or name
        view = _view(context, spec, by_model.get(serving, ()), jobs.get(serving), names)
        views.append(msgspec.structs.replace(view, engines=engines.get(serving, [])))
    listed_names = {view.name for view in views}
    views += [_elsewhere(name, model_engines) for name, model_engines in engines.items() if name not in listed_names]
    views.sort(key=attrgetter("name"))
    offered = [_file_view(file) for file in models.offered]
    return answer(ModelList(items=views, problems=_problem_views(models.catalogue.problems), offered=offered))


def _engines(context: AdminContext) -> Mapping[str, list[ModelEngineView]]:
    """Engines that somebody else runs, by the models that they answer for."""
    engines_by_model: dict[str, list[ModelEngineView]] = defaultdict(list)
    for engine in context.engines.service.current:
        state = context.engines.watch.of(engine.id).state.value if engine.is_enabled else DISABLED
        engines_by_model[engine.model].append(ModelEngineView(name=engine.name, state=state))
    return engines_by_model


def _elsewhere(name: str, engines: list[ModelEngineView]) -> ModelView:
    """A model of which the fleet has neither a configuration nor files."""
    return ModelView(name=name, backend="", model="", revision="", source="", state=ELSEWHERE, engines=engines)


def _nodes_of(replicas: Iterable[Replica], jobs: Iterable[LoadJob]) -> set[NodeId]:
    return {replica.node_id for replica in replicas} | {job.node_id for job in jobs if job.node_id is not None}


def _shown(context: AdminContext) -> dict[str, ModelSpec]:
    """All models that can be used, or could if they were not disabled."""
    models = context.models.catalogue
    disabled = {row.name: models.spec_of(row) for row in models.rows.values() if row.is_disabled}
    readable = {name: spec for name, spec in disabled.items() if isinstance(spec, ModelSpec)}
    return {**models.catalogue.models, **readable}


async def show_model(context: AdminContext, request: Request, caller: Caller) -> Response:
    name = request.path_params["name"]
    catalogue = context.models.catalogue.catalogue
    spec = _shown(context).get(name)
    problems = _problem_views(catalogue.problems_of(name))
    if spec is None and problems:
        # There is no such model, but there is a file that should have been one.
        source = problems[0].source
        return answer(
            ModelView(name=name, backend="", model="", revision="", source=source, state=UNUSABLE, problems=problems)
        )
    engines = _engines(context).get(name if spec is None else spec.alias_of or name, [])
    if spec is None and engines:
        return answer(_elsewhere(name, engines))
    if spec is None:
        raise context.models.catalogue.unknown(name)
    serving = spec.alias_of or name
    replicas = await context.serving.replicas.of_model(serving)
    job = (await context.serving.loads.furthest_jobs()).get(serving)
    names = await context.nodes.fleet.names(_nodes_of(replicas, [] if job is None else [job]))
    view = _view(context, spec, replicas, job, names)
    rule = await context.serving.scheduling.find(name)
    scheduling = None if rule is None else (await rule_views(context, [rule]))[0]
    config = dict(spec.config)
    return answer(
        msgspec.structs.replace(view, config=config, problems=problems, scheduling=scheduling, engines=engines)
    )


def _problem_views(problems: Iterable[ModelProblem]) -> list[ModelProblemView]:
    return [ModelProblemView(source=each.source, name=each.name, problem=each.problem) for each in problems]


def _view(
    context: AdminContext,
    spec: ModelSpec,
    replicas: Sequence[Replica],
    job: LoadJob | None,
    names: Mapping[NodeId, str],
) -> ModelView:
    models = context.models.catalogue
    row = models.rows.get(spec.name)
    state, reason = _state(replicas, job, context.serving.adapted.problem)
    view = ModelView(
        name=spec.name,
        backend=spec.backend,
        model=spec.model,
        alias_of=spec.alias_of,
        revision=spec.revision,
        source=spec.source,
        state=state,
        reason=reason,
        warnings=list(spec.warnings),
        replicas=replica_views(replicas, context.serving.gateways, names),
        load_job=None if job is None else _job_view(context, job, names),
        bytes=models.size_of(spec),
        memory=None if spec.alias_of else _memory(models.needs_of(spec)),
    )
    return view if row is None else _with_row(view, row)


def _memory(needs: ModelNeeds) -> ModelMemoryView:
    return ModelMemoryView(ram=needs.ram, vram=needs.vram, ram_beside_gpu=needs.ram_beside_gpu, source=needs.source)


def _job_view(context: AdminContext, job: LoadJob, names: Mapping[NodeId, str]) -> LoadJobView:
    node = "" if job.node_id is None else names.get(job.node_id, "")
    return load_job_view(job, context.serving.loads.progress_of(job), node=node, now=context.clock.now())


def _with_row(view: ModelView, row: StoredModel) -> ModelView:
    """Add what the database knows beside the configuration."""
    origin = row.origin
    return msgspec.structs.replace(
        view,
        kind=row.source.value,
        number=row.number,
        changed_at=format_time(row.changed_at),
        changed_by=row.changed_by,
        origin=None if origin is None or row.file else ModelOriginView(**msgspec.structs.asdict(origin)),
        files=[_file_view(file) for file in row.files],
        bytes=sum(file.size for file in row.files) or view.bytes,
        is_disabled=row.is_disabled,
        is_pinned=row.is_pinned,
    )


def _file_view(file: WeightFile) -> ModelFileView:
    return ModelFileView(path=file.path, size=file.size, digest=file.digest)


def _state(replicas: Sequence[Replica], job: LoadJob | None, adapter_problem: str) -> tuple[str, str]:
    """The state of a model, and why it has this state if that has no place elsewhere."""
    living = [replica for replica in replicas if replica.state in LIVE]
    if loaded := [replica for replica in living if replica.state is ReplicaState.LOADED]:
        problem = barrier(loaded, adapter_problem)
        return (LoadReason.NOT_REACHABLE.value, problem) if problem else (ReplicaState.LOADED.value, "")
    if job is not None:
        return job.state.value, ""
    return LOADING if living else COLD, ""


async def remove(context: AdminContext, request: Request, caller: Caller) -> Response:
    name = request.path_params["name"]

    async def act(mark: str | None) -> Response:
        operation = await removed(context, request, caller, number=None if mark is None else int(mark))
        view = operation_view(operation, context.operations.progress.look(operation), context.clock.monotonic())
        return answer(view, 202, {"Location": f"/api/v1/operations/{operation.id}"})

    async def plan() -> ActPlan:
        return await context.serving.plans.model_removal(name)

    is_known = await context.operations.service.with_key(idempotency_key(request)) is not None
    return await act_on_plan("" if is_known else plan_hash_in(request.query_params), plan, act)


async def removed(context: AdminContext, request: Request, caller: Caller, *, number: int | None = None) -> Operation:
    name, key = request.path_params["name"], idempotency_key(request)
    return await context.models.removal.remove(name, by=caller.name, idempotency_key=key, number=number)


REMOVAL_CODES = {
    404: "no model has this name",
    409: "there is a file of this name that cannot be read",
}
ROUTES = [
    RouteSpec(
        method="DELETE",
        path="/api/v1/models/{name:path}",
        handler=remove,
        access=Permission.MODELS_ACT,
        summary="Remove a model from the fleet: at once for requests, then its replicas and its files.",
        gives=OperationView,
        query={"plan_hash": PLAN_HASH},
        refusals={409: StaleActPlan},
        codes={
            202: "accepted, with the operation that nodes follow",
            **REMOVAL_CODES,
            409: f"{REMOVAL_CODES[409]}; or {STALE}",
        },
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/models",
        handler=list_models,
        access=Permission.MODELS_READ,
        summary="All models with their living replicas, and the files that were passed over.",
        gives=ModelList,
        codes={200: "a list"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/models/{name:path}",
        handler=show_model,
        access=Permission.MODELS_READ,
        summary="One model with its configuration, and with the replicas of the last day.",
        gives=ModelView,
        codes={200: "the model, or the file that should have been one", 404: "no model has this name"},
    ),
]
