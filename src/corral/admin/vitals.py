"""Is this frontend alive, is it ready, and how does it fare: `/healthz`, `/readyz`, `/metrics`, `/api/v1/version`."""

from collections.abc import Iterator
from dataclasses import replace

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client import PROCESS_COLLECTOR as PROCESS_METRICS
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from corral import __version__
from corral.admin.answers import answer
from corral.admin.context import AdminContext, Caller
from corral.admin.route import Access, RouteSpec
from corral.base.errors import CorralError
from corral.protocol.node_views import VersionView
from corral.protocol.registration import FEATURES


async def healthz(context: AdminContext, request: Request, caller: Caller) -> Response:
    return PlainTextResponse("ok")


async def readyz(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Ready when the database answers and NATS is connected."""
    reasons = [] if context.bus.connected else ["NATS is not connected"]
    try:
        await context.database.check()
    except CorralError as error:
        reasons.append(error.message)
    if context.stopping.is_set():
        reasons.append("shutting down")
    if reasons:
        return PlainTextResponse(f"not ready: {'; '.join(reasons)}", 503)
    return PlainTextResponse("ok")


async def version(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(VersionView(version=__version__, frontend_id=context.frontend_id, features=list(FEATURES)))


class _Heartbeats(Collector):
    """A counter that we keep ourselves, since the registry lives for one scrape only."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        text = "Heartbeats stored by this frontend."
        yield CounterMetricFamily("corral_heartbeats", text, value=self._context.heartbeats.taken)


async def metrics(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Counted when asked: nothing is kept on the way of a request."""
    registry = CollectorRegistry()
    registry.register(PROCESS_METRICS)
    Gauge("corral_build_info", "Version of this frontend.", ["version"], registry=registry).labels(__version__).set(1)
    registry.register(_Heartbeats(context))
    connected = Gauge("corral_nats_connected", "1 while NATS is connected.", registry=registry)
    connected.set(1 if context.bus.connected else 0)
    database = Gauge("corral_database_up", "1 while the database answers.", registry=registry)
    nodes = Gauge("corral_nodes", "Nodes by status.", ["status"], registry=registry)
    try:
        for status, count in (await context.fleet.count_by_status()).items():
            nodes.labels(status.value).set(count)
        last = Gauge("corral_last_event", "Sequence number of the newest event.", registry=registry)
        last.set(await context.events.last_sequence())
        database.set(1)
    except CorralError:
        database.set(0)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


_VITAL = RouteSpec(
    method="GET",
    path="",
    handler=healthz,
    access=Access.PUBLIC,
    summary="",
    codes={},
)

ROUTES = [
    replace(_VITAL, path="/healthz", summary="The process is alive.", codes={200: "always"}),
    replace(
        _VITAL,
        path="/readyz",
        handler=readyz,
        summary="The frontend can do its work.",
        codes={200: "ready", 503: "not ready; the text says why"},
    ),
    replace(
        _VITAL,
        path="/metrics",
        handler=metrics,
        access=Access.METRICS,
        summary="Metrics for Prometheus.",
        codes={200: "the metrics"},
    ),
    replace(
        _VITAL,
        path="/api/v1/version",
        handler=version,
        access=Access.ADMIN,
        summary="Version and features of this frontend.",
        gives=VersionView,
        codes={200: "the version"},
    ),
]
