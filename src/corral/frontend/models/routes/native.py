"""Models for administrators: `/api/v1/models`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.ids import NodeId
from corral.frontend.api.answers import answer
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, RouteSpec
from corral.frontend.models.decide.model import ModelProblem, ModelSpec
from corral.frontend.serving.decide.load_job import LoadJob
from corral.frontend.serving.decide.replica import LIVE, UNSERVED, Replica, ReplicaState
from corral.frontend.serving.load_jobs import LoadProgress
from corral.frontend.serving.shapes import replica_view
from corral.wire.go_json import format_time
from corral.wire.models import LoadJobView, ModelList, ModelProblemView, ModelView

COLD = "cold"
LOADING = "loading"
UNUSABLE = "unusable"


async def list_models(context: AdminContext, request: Request, caller: Caller) -> Response:
    catalogue = context.models.catalogue.catalogue
    living: dict[str, list[Replica]] = defaultdict(list)
    for replica in await context.serving.replicas.living():
        living[replica.model].append(replica)
    jobs = await context.serving.loads.jobs()
    names = await _node_names(context, [replica for found in living.values() for replica in found])
    shown = [
        _view(context, spec, living.get(spec.alias_of or name, ()), jobs.get(spec.alias_of or name), names)
        for name, spec in sorted(catalogue.models.items())
    ]
    return answer(ModelList(items=shown, problems=_problem_views(catalogue.problems)))


async def show_model(context: AdminContext, request: Request, caller: Caller) -> Response:
    name = request.path_params["name"]
    catalogue = context.models.catalogue.catalogue
    spec = catalogue.models.get(name)
    problems = _problem_views(catalogue.problems_of(name))
    if spec is None and problems:
        return answer(_unusable(name, problems))
    if spec is None:
        raise context.models.catalogue.unknown(name)
    serving = spec.alias_of or name
    replicas = await context.serving.replicas.of_model(serving)
    job = (await context.serving.loads.jobs()).get(serving)
    shown = _view(context, spec, replicas, job, await _node_names(context, replicas))
    return answer(msgspec.structs.replace(shown, config=dict(spec.config), problems=problems))


def _problem_views(problems: Iterable[ModelProblem]) -> list[ModelProblemView]:
    return [ModelProblemView(source=one.source, name=one.name, problem=one.problem) for one in problems]


def _unusable(name: str, problems: list[ModelProblemView]) -> ModelView:
    """There is no such model, but there is a file that should have been one."""
    source = problems[0].source
    return ModelView(name=name, backend="", model="", revision="", source=source, state=UNUSABLE, problems=problems)


async def _node_names(context: AdminContext, replicas: Sequence[Replica]) -> Mapping[NodeId, str]:
    return await context.nodes.fleet.names({replica.node_id for replica in replicas})


def _view(
    context: AdminContext,
    spec: ModelSpec,
    replicas: Sequence[Replica],
    job: LoadJob | None,
    names: Mapping[NodeId, str],
) -> ModelView:
    return ModelView(
        name=spec.name,
        backend=spec.backend,
        model=spec.model,
        alias_of=spec.alias_of,
        revision=spec.revision,
        source=spec.source,
        state=_state(replicas, job),
        warnings=list(spec.warnings),
        replicas=[replica_view(one, context.serving.gateways, node=names.get(one.node_id, "")) for one in replicas],
        load_job=None if job is None else _job_view(job, context.serving.loads.progress_of(job)),
    )


def _state(replicas: Sequence[Replica], job: LoadJob | None) -> str:
    living = [replica for replica in replicas if replica.state in LIVE]
    loaded = [replica for replica in living if replica.state is ReplicaState.LOADED]
    if loaded:
        return UNSERVED if all(replica.is_unserved for replica in loaded) else ReplicaState.LOADED.value
    if job is not None:
        return job.state.value
    return LOADING if living else COLD


def _job_view(job: LoadJob, progress: LoadProgress) -> LoadJobView:
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


ROUTES = [
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
