"""What control makes of its gateways' reports: what is known, what is unknown, and what is forgotten."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.frontend.diagnosis.routes.metrics import gateway_metrics
from corral.frontend.serving.gateways.reports import FORGOTTEN_AFTER, GONE_AFTER, SILENT_AFTER, GatewayReports
from corral.frontend.serving.replica_health import ReplicaHealth
from corral.wire.metrics import GatewayCounts, ModelCounts, RequestCount
from corral.wire.view import MODEL_GONE, Finished, GatewayReport, ReplicaFailure
from tests.kit.clock import ManualClock

TICK = timedelta(milliseconds=1)


class Suspicions:
    def __init__(self) -> None:
        self.ids: list[str] = []
        self.emptied: list[str] = []

    def suspect(self, ids: Iterable[str]) -> None:
        self.ids.extend(ids)

    def empty(self, ids: Iterable[str]) -> None:
        self.emptied.extend(ids)


class NoEngines:
    def suspect(self, failures: Iterable[ReplicaFailure]) -> None:
        pass


@pytest.fixture
def suspicions() -> Suspicions:
    return Suspicions()


@pytest.fixture
def reports(clock: ManualClock, suspicions: Suspicions) -> GatewayReports:
    return GatewayReports(cast(ReplicaHealth, suspicions), clock, engines=NoEngines())


def report(gateway: str = "g1", sequence: int = 1, **parts: Any) -> GatewayReport:
    return GatewayReport(gateway=gateway, sequence=sequence, **parts)


async def test_requests_under_way_are_the_sum_of_all_gateways(reports: GatewayReports) -> None:
    reports.take(report("g1", in_flight={"r1": 2, "r2": 1}))
    reports.take(report("g2", in_flight={"r1": 3}))
    assert reports.in_flight() == {"r1": 5, "r2": 1}
    assert reports.silent() == 0


async def test_a_silent_gateway_s_share_is_unknown_and_later_nobody_s(
    reports: GatewayReports, clock: ManualClock
) -> None:
    reports.take(report("g1", in_flight={"r1": 2}))
    await clock.advance(SILENT_AFTER)
    assert (reports.in_flight(), reports.silent()) == ({"r1": 2}, 0)
    await clock.advance(TICK)
    assert (reports.in_flight(), reports.silent()) == ({}, 1)
    await clock.advance(GONE_AFTER)
    assert (reports.in_flight(), reports.silent()) == ({}, 0)
    reports.take(report("g1", sequence=2, in_flight={"r1": 1}))
    assert (reports.in_flight(), reports.silent()) == ({"r1": 1}, 0)


async def test_a_gateway_that_said_good_bye_is_not_silent(reports: GatewayReports, clock: ManualClock) -> None:
    reports.take(report("g1", in_flight={"r1": 1}))
    reports.take(report("g1", sequence=2, is_last=True))
    await clock.advance(SILENT_AFTER + TICK)
    assert (reports.in_flight(), reports.silent(), reports.seen()) == ({}, 0, [])


async def test_a_batch_that_comes_again_is_news_only_once(reports: GatewayReports, suspicions: Suspicions) -> None:
    for _ in range(3):
        reports.take(report(failures=[ReplicaFailure(replica="r1", reason="refused")]))
    assert suspicions.ids == ["r1"]
    reports.take(report(sequence=2, failures=[ReplicaFailure(replica="r2", reason="refused")]))
    assert (suspicions.ids, suspicions.emptied) == (["r1", "r2"], [])
    reports.take(report(sequence=3, failures=[ReplicaFailure(replica="r3", reason=MODEL_GONE)]))
    assert suspicions.emptied == ["r3"]


async def test_the_last_use_of_a_replica_is_known_from_reports(reports: GatewayReports, clock: ManualClock) -> None:
    assert reports.last_used("r1") is None
    reports.take(report(finished=[Finished(replica="r1", model="m", key="k", outcome="ok", requests=1)]))
    first = clock.now()
    await clock.advance(timedelta(seconds=3))
    reports.take(report(sequence=2, in_flight={"r2": 1}))
    assert (reports.last_used("r1"), reports.last_used("r2")) == (first, clock.now())


async def test_the_long_silent_and_too_many_are_forgotten(reports: GatewayReports, clock: ManualClock) -> None:
    reports.take(report("old"))
    await clock.advance(FORGOTTEN_AFTER + TICK)
    for number in range(1200):
        reports.take(report(f"g{number}"))
    names = {one.id for one in reports.seen()}
    assert len(names) == 1000
    assert "old" not in names
    assert "g1199" in names


def counted(requests: int) -> GatewayCounts:
    lines = [RequestCount(code=200, outcome="ok", requests=requests)]
    return GatewayCounts(host="box", pid=7, version="1", models={'odd "name"\\': ModelCounts(requests=lines)})


async def test_series_of_all_gateways_are_shown_and_those_of_silent_ones_are_not(
    reports: GatewayReports, clock: ManualClock
) -> None:
    reports.take(report("g1", counts=counted(5)))
    await clock.advance(SILENT_AFTER + TICK)
    reports.take(report("g2", counts=counted(7)))
    samples = {
        (sample.name, sample.labels["gateway"], sample.labels.get("model", "")): sample.value
        for family in text_string_to_metric_families(gateway_metrics(reports.seen()))
        for sample in family.samples
    }

    assert samples["corral_gateway_up", "g1", ""] == 0
    assert samples["corral_gateway_up", "g2", ""] == 1
    assert samples["corral_gateway_report_age_seconds", "g1", ""] == pytest.approx(5.001)
    assert samples["corral_gateway_requests_total", "g2", 'odd "name"\\'] == 7
    assert {gateway for name, gateway, _ in samples if name.endswith("_total")} == {"g2"}


async def test_without_gateways_there_are_no_series(reports: GatewayReports) -> None:
    assert gateway_metrics(reports.seen()) == ""
