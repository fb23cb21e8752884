"""`/metrics`: the series of control and those of all its gateways, in one answer.

Counted when asked: nothing is kept on the way of a request. A gateway that is silent is shown as such, and its series
are gone until it is heard again.
"""

from collections import Counter
from contextlib import suppress
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client import PROCESS_COLLECTOR as PROCESS_METRICS
from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.base.errors import CorralError
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec
from corral.frontend.engines.decide import EngineState
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.gateways.reports import SeenGateway
from corral.frontend.serving.loading.model_loader import STEP_BOUNDS
from corral.wire.metrics import REPORT_AGE, UP, MetricDescription, MetricFamily, MetricKind, Sample, families, render

_BUILD: Final = MetricDescription(
    "corral_build_info", MetricKind.GAUGE, "Version of this frontend; always 1.", ("version",)
)
_NATS: Final = MetricDescription("corral_nats_connected", MetricKind.GAUGE, "1 while NATS is connected.")
_DATABASE: Final = MetricDescription("corral_database_up", MetricKind.GAUGE, "1 while the database answers.")
_BRAKE: Final = MetricDescription(
    "corral_brake_held",
    MetricKind.GAUGE,
    "1 while nothing is evicted or rescheduled, because many nodes went silent together.",
)
_NODES: Final = MetricDescription("corral_nodes", MetricKind.GAUGE, "Nodes by status.", ("status",))
_REPLICAS: Final = MetricDescription(
    "corral_replicas", MetricKind.GAUGE, "Replicas by state; those that ended stay for a day.", ("state",)
)
_LOAD_JOBS: Final = MetricDescription(
    "corral_load_jobs", MetricKind.GAUGE, "Cold loads that are not done, by state.", ("state",)
)
_MODELS: Final = MetricDescription(
    "corral_models",
    MetricKind.GAUGE,
    "Models in the models directory that are `usable`, and those `passed_over`.",
    ("kind",),
)
_ENGINES: Final = MetricDescription(
    "corral_external_engines",
    MetricKind.GAUGE,
    "Engines that somebody else runs and that are enabled, by the state that this frontend sees.",
    ("state",),
)
_LAST_EVENT: Final = MetricDescription("corral_last_event", MetricKind.GAUGE, "Sequence number of the newest event.")
_EVENTS: Final = MetricDescription(
    "corral_events_total",
    MetricKind.COUNTER,
    "Events of the fleet by kind, such as `model.loaded`, `model.load_failed` and `replica.evicted`, since this "
    "frontend started.",
    ("kind",),
)
_HEARTBEATS: Final = MetricDescription(
    "corral_heartbeats_total", MetricKind.COUNTER, "Heartbeats stored by this frontend."
)
_LOAD_STEPS: Final = MetricDescription(
    "corral_load_step_seconds",
    MetricKind.HISTOGRAM,
    "How long the steps of cold loads took that this frontend brought to their end.",
    ("step",),
)
_STAGED: Final = MetricDescription(
    "corral_staged_bytes_total", MetricKind.COUNTER, "Bytes of models that this frontend sent to nodes."
)
_STAGING: Final = MetricDescription(
    "corral_staging_seconds_total", MetricKind.COUNTER, "How long stagings of this frontend took, together."
)

OF_CONTROL: Final = (
    _BUILD,
    _NATS,
    _DATABASE,
    _BRAKE,
    _NODES,
    _REPLICAS,
    _LOAD_JOBS,
    _MODELS,
    _ENGINES,
    _LAST_EVENT,
    _EVENTS,
    _HEARTBEATS,
    _LOAD_STEPS,
    _STAGED,
    _STAGING,
)


async def metrics(context: AdminContext, request: Request, caller: Caller) -> Response:
    registry = CollectorRegistry()
    registry.register(PROCESS_METRICS)
    control_metrics = render(await _own_families(context)).encode()
    gateways = gateway_metrics(context.serving.gateways.seen()).encode()
    return Response(generate_latest(registry) + control_metrics + gateways, media_type=CONTENT_TYPE_LATEST)


async def _own_families(context: AdminContext) -> list[MetricFamily]:
    catalogue, meter = context.models.catalogue.catalogue, context.serving.loads.meter
    engines = Counter(
        context.engines.watch.of(engine.id).state for engine in context.engines.service.current if engine.is_enabled
    )
    stored: list[MetricFamily] = []
    with suppress(CorralError):  # without the database, what only the database knows is left out
        statuses = await context.nodes.fleet.count_by_status()
        replicas = await context.serving.replicas.count_by_state()
        jobs = Counter(job.state for job in await context.serving.loads.jobs())
        await context.record.counts.catch_up()
        stored = [
            _NODES.with_values({status.value: count for status, count in statuses.items()}),
            _REPLICAS.with_values({state.value: replicas.get(state, 0) for state in ReplicaState}),
            _LOAD_JOBS.with_values({state.value: jobs[state] for state in LoadState}),
            _LAST_EVENT.with_value(await context.record.events.last_sequence()),
        ]
    return [
        _BUILD.with_values({__version__: 1}),
        _NATS.with_value(int(context.bus.connected)),
        _DATABASE.with_value(int(bool(stored))),
        _BRAKE.with_value(int(context.nodes.brake.holds)),
        *stored,
        _MODELS.with_values({"usable": len(catalogue.models), "passed_over": len(catalogue.problems)}),
        _ENGINES.with_values({state.value: engines[state] for state in EngineState}),
        _EVENTS.with_values({kind.value: times for kind, times in sorted(context.record.counts.counts.items())}),
        _HEARTBEATS.with_value(context.nodes.heartbeats.taken),
        _LOAD_STEPS.family(
            sample
            for step, counts in meter.steps.items()
            for sample in counts.samples(STEP_BOUNDS, {"step": step.value})
        ),
        _STAGED.with_value(meter.staged_bytes),
        _STAGING.with_value(round(meter.staging_seconds, 3)),
    ]


def gateway_metrics(gateways: list[SeenGateway]) -> str:
    up, age = UP.family(), REPORT_AGE.family()
    for gateway in gateways:
        label = {"gateway": gateway.id}
        up.samples.append(Sample(label, 0 if gateway.is_silent else 1))
        age.samples.append(Sample(label, round(gateway.age.total_seconds(), 3)))
    counts = {
        gateway.id: gateway.counts for gateway in gateways if gateway.counts is not None and not gateway.is_silent
    }
    return render([up, age, *families(counts)])


ROUTES = [
    RouteSpec(
        method="GET",
        path="/metrics",
        handler=metrics,
        access=Access.METRICS,
        summary="Metrics of this frontend and of its gateways, for Prometheus.",
        codes={200: "the metrics"},
        media="text/plain",
    ),
]
