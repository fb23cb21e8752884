"""`/metrics`: the series of control and those of all its gateways, in one answer.

Counted when asked: nothing is kept on the way of a request. A gateway that is silent is shown as such, and its series
are gone until it is heard again.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client import PROCESS_COLLECTOR as PROCESS_METRICS
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.admin.context import AdminContext, Caller
from corral.admin.route import Access, RouteSpec
from corral.base.errors import CorralError
from corral.control.gateway_reports import SeenGateway
from corral.domain.load_job import LoadState
from corral.domain.replica import ReplicaState
from corral.protocol.gateway_counters import REPORT_AGE, UP, families
from corral.protocol.metrics import Family, Sample, render


class _Counted(Collector):
    """Counters that are kept elsewhere, since the registry lives for one scrape only."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        text = "Heartbeats stored by this frontend."
        yield CounterMetricFamily("corral_heartbeats", text, value=self._context.heartbeats.taken)
        text = "Events of the fleet by kind, as far as they were written since this frontend started."
        events = CounterMetricFamily("corral_events", text, labels=["kind"])
        for kind, times in sorted(self._context.happenings.counts.items()):
            events.add_metric([kind.value], times)
        yield events


async def metrics(context: AdminContext, request: Request, caller: Caller) -> Response:
    own = await _own_metrics(context)
    return Response(own + gateway_metrics(context.gateways.seen()).encode(), media_type=CONTENT_TYPE_LATEST)


async def _own_metrics(context: AdminContext) -> bytes:
    registry = CollectorRegistry()
    registry.register(PROCESS_METRICS)
    Gauge("corral_build_info", "Version of this frontend.", ["version"], registry=registry).labels(__version__).set(1)
    connected = Gauge("corral_nats_connected", "1 while NATS is connected.", registry=registry)
    connected.set(1 if context.bus.connected else 0)
    models = Gauge(
        "corral_models", "Models in the models directory, and files passed over.", ["kind"], registry=registry
    )
    models.labels("usable").set(len(context.models.catalogue.models))
    models.labels("passed_over").set(len(context.models.catalogue.problems))
    database = Gauge("corral_database_up", "1 while the database answers.", registry=registry)
    try:
        await _stored(context, registry)
        database.set(1)
    except CorralError:
        database.set(0)
    registry.register(_Counted(context))
    return generate_latest(registry)


async def _stored(context: AdminContext, registry: CollectorRegistry) -> None:
    """What only the database knows."""
    nodes = Gauge("corral_nodes", "Nodes by status.", ["status"], registry=registry)
    for status, count in (await context.fleet.count_by_status()).items():
        nodes.labels(status.value).set(count)
    replicas = Gauge(
        "corral_replicas", "Replicas by state; those that ended stay for a day.", ["state"], registry=registry
    )
    by_state = await context.replicas.count_by_state()
    for state in ReplicaState:
        replicas.labels(state.value).set(by_state.get(state, 0))
    jobs = Gauge("corral_load_jobs", "Cold loads that are not done, by state.", ["state"], registry=registry)
    open_jobs = Counter(job.state for job in (await context.loads.jobs()).values())
    for job_state in LoadState:
        jobs.labels(job_state.value).set(open_jobs[job_state])
    last = Gauge("corral_last_event", "Sequence number of the newest event.", registry=registry)
    last.set(await context.events.last_sequence())
    await context.happenings.catch_up()


def gateway_metrics(gateways: list[SeenGateway]) -> str:
    up, age = UP.family(), REPORT_AGE.family()
    for gateway in gateways:
        label = {"gateway": gateway.id}
        up.samples.append(Sample(label, 0 if gateway.is_silent else 1))
        age.samples.append(Sample(label, round(gateway.age.total_seconds(), 3)))
    heard = {one.id: one.counts for one in gateways if one.counts is not None and not one.is_silent}
    shown: list[Family] = [up, age, *families(heard)]
    return render(shown)


ROUTES = [
    RouteSpec(
        method="GET",
        path="/metrics",
        handler=metrics,
        access=Access.METRICS,
        summary="Metrics of this frontend and of its gateways, for Prometheus.",
        codes={200: "the metrics"},
    ),
]
