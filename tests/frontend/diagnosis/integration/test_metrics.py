"""One page of metrics for control, its fleet and its gateways; and what gateways are told of control's own state."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from corral.base.errors import DatabaseUnavailable
from corral.bus.port import Bus
from corral.frontend.api.route import Caller
from corral.frontend.diagnosis.routes.metrics import OF_CONTROL, metrics
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from corral.wire.metrics import (
    FIRST_BYTE_BOUNDS,
    PER_GATEWAY,
    REPORT_AGE,
    UP,
    GatewayCounts,
    ModelCounts,
    RequestCount,
)
from corral.wire.view import GatewayReport
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend

GATEWAY_KEY = "key-of-the-gateways"


@pytest.fixture
async def frontend(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Frontend]:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.yaml").write_text("name: small\nbackend: echo\nparameters: {model: x}\n")
    (tmp_path / "models" / "bad.yaml").write_text("[")
    config = frontend_config(tmp_path, gateway_key=GATEWAY_KEY)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        yield opened


async def page_of(frontend: Frontend) -> str:
    answer = await frontend.call("GET", "/metrics")
    assert answer.status == 200
    return answer.body.decode()


async def test_one_page_shows_control_its_fleet_and_its_gateways(frontend: Frontend, clock: ManualClock) -> None:
    await frontend.register({"name": "w1", "address": "127.0.0.1:50051"}, token=TRUSTED_TOKEN)
    await frontend.control.context.serving.loads.ensure("small")
    lines = [RequestCount(code=200, outcome="ok", requests=3)]
    counts = GatewayCounts(connections=4, models={"small": ModelCounts(requests=lines, in_flight=2)})
    report = msgspec.to_builtins(GatewayReport(gateway="g", sequence=1, counts=counts), str_keys=True)
    assert (await frontend.call("POST", "/api/v1/gateway/report", report, key=GATEWAY_KEY)).status == 204
    page = await page_of(frontend)

    for line in (
        'corral_nodes{status="healthy"} 1',
        'corral_replicas{state="loaded"} 0',
        'corral_load_jobs{state="pending"} 1',
        'corral_load_jobs{state="failed"} 0',
        'corral_events_total{kind="node.registered"} 1',
        'corral_events_total{kind="model.loaded"} 0',
        'corral_models{kind="usable"} 1',
        'corral_models{kind="passed_over"} 1',
        "corral_database_up 1",
        'corral_gateway_up{gateway="g"} 1',
        'corral_gateway_connections_total{gateway="g"} 4',
        'corral_gateway_requests_total{gateway="g",model="small",code="200",outcome="ok"} 3',
        'corral_gateway_in_flight{gateway="g",model="small"} 2',
    ):
        assert line in page.splitlines(), line
    names = [family.name for family in text_string_to_metric_families(page)]
    assert len(names) == len(set(names))


async def test_every_sample_has_the_labels_that_the_reference_names(frontend: Frontend) -> None:
    model = ModelCounts(requests=[RequestCount(code=200, outcome="ok", requests=3)])
    model.first_byte.add(0.1, FIRST_BYTE_BOUNDS)
    counts = GatewayCounts(
        models={"small": model}, refusals={"x": 1}, passed={200: 1}, time_outs={"idle": 1}, view_age_seconds=1
    )
    frontend.control.context.serving.gateways.take(GatewayReport(gateway="g", sequence=1, counts=counts))
    frontend.control.context.serving.loads.meter.loaded({"stage": 3.0})
    described = {one.name: set(one.labels) for one in (*OF_CONTROL, UP, REPORT_AGE, *PER_GATEWAY)}
    exported = {
        family.name if family.type == "histogram" else sample.name: set(sample.labels) - {"le"}
        for family in text_string_to_metric_families(await page_of(frontend))
        for sample in family.samples
        if sample.name.startswith("corral_")
    }
    assert exported == described


async def test_times_are_counted_by_how_long_they_were(frontend: Frontend) -> None:
    model = ModelCounts()
    for seconds in (0.05, 0.2, 0.2, 1000.0):
        model.first_byte.add(seconds, FIRST_BYTE_BOUNDS)
    counts = GatewayCounts(models={"small": model})
    frontend.control.context.serving.gateways.take(GatewayReport(gateway="g", sequence=1, counts=counts))
    meter = frontend.control.context.serving.loads.meter
    meter.loaded({"place": 0.01, "stage": 70.0})
    meter.staged(1_000_000, 2.5)
    page = (await page_of(frontend)).splitlines()

    for line in (
        'corral_gateway_first_byte_seconds_bucket{gateway="g",model="small",le="0.05"} 1',
        'corral_gateway_first_byte_seconds_bucket{gateway="g",model="small",le="0.1"} 1',
        'corral_gateway_first_byte_seconds_bucket{gateway="g",model="small",le="0.25"} 3',
        'corral_gateway_first_byte_seconds_bucket{gateway="g",model="small",le="300.0"} 3',
        'corral_gateway_first_byte_seconds_bucket{gateway="g",model="small",le="+Inf"} 4',
        'corral_gateway_first_byte_seconds_sum{gateway="g",model="small"} 1000.45',
        'corral_gateway_first_byte_seconds_count{gateway="g",model="small"} 4',
        'corral_load_step_seconds_bucket{step="stage",le="60.0"} 0',
        'corral_load_step_seconds_bucket{step="stage",le="300.0"} 1',
        'corral_load_step_seconds_count{step="place"} 1',
        "corral_staged_bytes_total 1000000",
        "corral_staging_seconds_total 2.5",
    ):
        assert line in page, line


async def test_events_are_counted_once_however_often_somebody_looks(frontend: Frontend, clock: ManualClock) -> None:
    event = Event(kind=EventKind.MODEL_LOADED, at=clock.now(), actor="test")
    await frontend.control.context.record.events.record([event] * 1500)
    for _ in range(2):
        assert 'corral_events_total{kind="model.loaded"} 1500' in await page_of(frontend)


async def test_metrics_tell_that_the_database_is_away(frontend: Frontend, database: Database) -> None:
    """Called as the route does where metrics are public: to know a key, control needs the database."""
    database._closed = True
    try:
        page = (await metrics(frontend.control.context, cast(Request, None), Caller())).body
    finally:
        database._closed = False
    assert b"corral_database_up 0" in bytes(page).splitlines()


async def test_gateways_are_told_what_control_lacks_and_keep_the_rest(frontend: Frontend, database: Database) -> None:
    view = frontend.control.context.serving.view
    await view.refresh()
    before = view.current
    assert before is not None
    database._closed = True
    try:
        with pytest.raises(DatabaseUnavailable):
            await view.refresh()
        ready = await frontend.call("GET", "/api/v1/ready", key="")
    finally:
        database._closed = False

    assert (ready.status, ready.body) == (503, b"not ready: the database does not answer")
    assert view.current is not None
    assert view.current.control.problems == ("the database does not answer",)
    assert (view.current.keys, view.current.version) == (before.keys, before.version + 1)
    await view.refresh()
    assert view.current.control.problems == ()
    assert (await frontend.call("GET", "/api/v1/ready", key="")).status == 200


async def test_gateways_are_told_whether_metrics_are_public(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = frontend_config(tmp_path, metrics_public=True)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        await opened.control.context.serving.view.refresh()
        assert opened.control.context.serving.view.current is not None
        assert opened.control.context.serving.view.current.control.metrics_public
        assert (await opened.call("GET", "/metrics", key="")).status == 200
