"""Models for administrators: `/api/v1/models`, and their removal."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.ids import NodeId
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer
from corral.frontend.models.decide.model import ModelProblem, ModelSpec
from corral.frontend.models.decide.stored import StoredModel, WeightFile
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.routes.native import idempotency_key
from corral.frontend.operations.shapes import operation_view
from corral.frontend.serving.decide.load_job import LoadJob
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState
from corral.frontend.serving.shapes import replica_view
from corral.wire.go_json import format_time
from corral.wire.models import LoadJobView, ModelFileView, ModelList, ModelOriginView, ModelProblemView, ModelView
from corral.wire.operation_views import OperationView

COLD = "cold"
LOADING = "loading"
UNUSABLE = "unusable"


async def list_models(context: AdminContext, request: Request, caller: Caller) -> Response:
    models = context.models.catalogue
    replicas = await context.serving.replicas.living()
    by_model: dict[str, list[Replica]] = defaultdict(list)
    for replica in replicas:
        by_model[replica.model].append(replica)
    jobs = await context.serving.loads.jobs()
    names = await context.nodes.fleet.names({replica.node_id for replica in replicas})
    views = [
        _view(context, spec, by_model.get(spec.alias_of or name, ()), jobs.get(spec.alias_of or name), names)
        for name, spec in sorted(_shown(context).items())
    ]
    offered = [_file_view(file) for file in models.offered]
    return answer(ModelList(items=views, problems=_problem_views(models.catalogue.problems), offered=offered))


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
    if spec is None:
        raise context.models.catalogue.unknown(name)
    serving = spec.alias_of or name
    replicas = await context.serving.replicas.of_model(serving)
    job = (await context.serving.loads.jobs()).get(serving)
    names = await context.nodes.fleet.names({replica.node_id for replica in replicas})
    view = _view(context, spec, replicas, job, names)
    return answer(msgspec.structs.replace(view, config=dict(spec.config), problems=problems))


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
    view = ModelView(
        name=spec.name,
        backend=spec.backend,
        model=spec.model,
        alias_of=spec.alias_of,
        revision=spec.revision,
        source=spec.source,
        state=_state(replicas, job),
        warnings=list(spec.warnings),
        replicas=[
            replica_view(replica, context.serving.gateways, node=names.get(replica.node_id, "")) for replica in replicas
        ],
        load_job=None if job is None else _job_view(context, job),
        bytes=models.size_of(spec),
    )
    return view if row is None else _with_row(view, row)


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


def _state(replicas: Sequence[Replica], job: LoadJob | None) -> str:
    living = [replica for replica in replicas if replica.state in LIVE]
    if any(replica.state is ReplicaState.LOADED for replica in living):
        return ReplicaState.LOADED.value
    if job is not None:
        return job.state.value
    return LOADING if living else COLD


def _job_view(context: AdminContext, job: LoadJob) -> LoadJobView:
    progress = context.serving.loads.progress_of(job)
    return LoadJobView(
        state=job.state.value,
        failures=job.failures,
        message=job.message,
        retry_at=format_time(job.retry_at),
        reason=job.reason or "",
        engine_lines=list(job.engine_lines),
        phase=progress.phase,
        current_bytes=progress.current_bytes,
        total_bytes=progress.total_bytes,
        eta_seconds=progress.eta_seconds,
    )


async def remove(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await removed(context, request, caller)
    view = operation_view(operation, context.operations.progress.look(operation), context.clock.monotonic())
    return answer(view, 202, {"Location": f"/api/v1/operations/{operation.id}"})


async def removed(context: AdminContext, request: Request, caller: Caller) -> Operation:
    name, key = request.path_params["name"], idempotency_key(request)
    return await context.models.removal.remove(name, by=caller.name, idempotency_key=key)


REMOVAL_CODES = {
    404: "no model has this name",
    409: "there is a file of this name that cannot be read",
}
ROUTES = [
    RouteSpec(
        method="DELETE",
        path="/api/v1/models/{name:path}",
        handler=remove,
        access=Access.ADMIN,
        summary="Remove a model from the fleet: at once for whoever asks it, then its replicas and its files.",
        gives=OperationView,
        codes={202: "accepted, with the operation that nodes follow", **REMOVAL_CODES},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/models",
        handler=list_models,
        access=Access.ADMIN,
        summary="All models with their living replicas, and the files that were passed over.",
        gives=ModelList,
        codes={200: "a list"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/models/{name:path}",
        handler=show_model,
        access=Access.ADMIN,
        summary="One model with its configuration, and with the replicas of the last day.",
        gives=ModelView,
        codes={200: "the model, or the file that should have been one", 404: "no model has this name"},
    ),
]
