"""The last hour over HTTP: what gateways report and nodes beat, and what makes no sense."""

from datetime import timedelta

import msgspec
import pytest

from corral.wire.live import HistoryAnswer
from corral.wire.metrics import GatewayCounts, ModelCounts
from corral.wire.view import Finished, GatewayReport
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
STEP = timedelta(seconds=10)


def report(sequence: int, **fields: object) -> GatewayReport:
    finished = Finished(
        replica="r1", model="small", key="k", outcome="ok", requests=2, prompt_tokens=30, completion_tokens=70
    )
    counts = GatewayCounts(models={"small": ModelCounts(in_flight=3)})
    whole = {"finished": [finished], "waiting": {"small": 4}, "counts": counts, **fields}
    return GatewayReport(gateway="g1", sequence=sequence, **whole)  # type: ignore[arg-type]


async def history(frontend: Frontend, query: str = "") -> HistoryAnswer:
    answer = await frontend.call("GET", f"/api/v1/history?{query}")
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body, type=HistoryAnswer)


async def test_what_gateways_report_is_told_per_second_and_model(frontend: Frontend, clock: ManualClock) -> None:
    gateways = frontend.control.context.serving.gateways
    gateways.take(report(1))
    gateways.take(report(1))  # sent again: it counts once
    await clock.advance(STEP)
    gateways.take(report(2, finished=[], waiting={}, counts=GatewayCounts()))
    await clock.advance(STEP)
    told = await history(frontend, "minutes=1")
    assert (told.step_seconds, len({len(series.values) for series in told.series})) == (10, 1)
    last = {(series.name, series.labels["model"]): series.values[-2:] for series in told.series}
    assert last == {
        ("tokens", "small"): [7.0, 0.0],
        ("prompt_tokens", "small"): [3.0, 0.0],
        ("requests", "small"): [0.2, 0.0],
        ("queue", "small"): [4.0, 0.0],
        ("in_flight", "small"): [3.0, 0.0],
    }
    assert all(series.values[:-2] == [None] * 4 for series in told.series), "before the first report nothing is known"
    assert told.frontend == frontend.control.context.frontend_id


async def test_memory_of_nodes_and_their_gpus_follows_heartbeats(frontend: Frontend, clock: ManualClock) -> None:
    body = {"name": "gpu-1", "address": "10.0.0.1:50051"}
    answer = await frontend.register(body)
    node = msgspec.json.decode(answer.body)["id"]
    card = {"id": "GPU-1", "name": "A", "vendor": "nvidia", "total": 80, "free": 20}
    beat = {"total_ram": 8, "available_ram": 2, "total_vram": 80, "available_vram": 20, "corral": {"cards": [card]}}
    assert (await frontend.call("POST", f"/api/node/{node}/heartbeat", beat, key="tok")).status == 200
    await clock.advance(STEP)
    for query in ("series=memory&minutes=1", f"node={node}&minutes=1", "node=gpu-1&minutes=1"):
        told = await history(frontend, query)
        last = {(series.labels["kind"], series.labels.get("card", "")): series.values[-1] for series in told.series}
        assert last == {("ram", ""): 6.0, ("vram", ""): 60.0, ("vram", "GPU-1"): 60.0}
    assert (await history(frontend, "node=nobody")).series == []
    assert (await history(frontend, "model=small")).series == []


@pytest.mark.parametrize(
    ("query", "field"),
    [("series=tokenz", "series"), ("minutes=0", "minutes"), ("minutes=61", "minutes"), ("minutes=x", "minutes")],
)
async def test_what_makes_no_sense_is_refused_by_name(frontend: Frontend, query: str, field: str) -> None:
    answer = await frontend.call("GET", f"/api/v1/history?{query}")
    assert answer.status == 400
    error = msgspec.json.decode(answer.body)["error"]
    assert error["field"] == field
    assert query.partition("=")[2] in error["message"]
