"""Each bench in its smallest form: that it runs, finds no errors and leaves nothing behind. Figures are not judged.

`make bench` and `make bench-check` run this file; `make test` does not collect a file of this name.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from bench import (
    against,
    downloads,
    engines,
    estimates,
    fanout,
    files,
    frameworks,
    gateway,
    idle,
    images,
    images_streams,
    joins,
    live,
    page,
    peers,
    placement,
    questions,
    run,
    staging,
    warm,
    worker,
)
from bench.fleet import Scale, heartbeats
from bench.report import Row, Table
from bench.start import start


def figures(table: Table) -> dict[object, Row]:
    return {row["what"]: row for row in table.rows}


def measured(rows: Iterable[Row]) -> list[float]:
    return [value for row in rows if isinstance(value := row["measured"], float | int)]


async def test_heartbeats_of_a_few_nodes() -> None:
    tiny = Scale(
        seconds=2.0,
        nodes=6,
        many_nodes=10,
        interval_seconds=0.2,
        reads=20,
        reads_per_second=100,
        settling_seconds=0.1,
    )

    (table,) = await heartbeats(tiny, databases=["sqlite"])

    rows = figures(table)
    for failed in ("registrations that failed", "heartbeats that failed", "lists that failed"):
        assert rows[failed]["measured"] == 0
    assert rows["10 nodes: requests that failed"]["measured"] == 0
    assert all(value >= 0 for value in measured(table.rows))
    assert len(measured(table.rows)) == len(table.rows)


async def test_operations_on_a_few_nodes() -> None:
    tiny = fanout.Scale(
        few=2, many=6, hanging=1, dead=1, rounds=1, work_seconds=0.01, killed_after_seconds=0.1, slowest_seconds=0.3
    )

    runs, more = await fanout.fanout(tiny, databases=["sqlite"])

    assert len(runs.rows) == 10
    assert all(isinstance(row["proven"], float) and row["proven"] > 0 for row in runs.rows)
    assert figures(more)["killed in a delete: nodes that keep the backend"]["measured"] == 0


async def test_placing_a_few_models() -> None:
    (table,) = await placement.placement(placement.Scale(nodes=20, models=10, replicas=30))

    assert figures(table)["models that found a place"]["measured"] == 10
    assert all(value >= 0 for value in measured(table.rows))


async def test_two_readers_of_a_fleet_of_three() -> None:
    tiny = live.Scale(seconds=0.5, settling_seconds=0.1, nodes=3, readers=2, changes=2)

    on_sqlite, on_postgres = await live.live(tiny)

    assert "added by all readers" in figures(on_sqlite)
    assert "with all readers" in figures(on_postgres)


async def test_a_page_in_front_of_a_few_nodes() -> None:
    tiny = page.Scale(many=5, most=8, seconds=0.5, most_seconds=0.5, idle_seconds=0.5, pages=2, changes=2)

    (table,) = await page.page(tiny)

    rows = figures(table)
    assert rows["first page, requests to other hosts"]["measured"] == 0
    assert f"8 nodes, {page.CHANGES_PER_SECOND} changes/s: frame, p95" in rows
    assert len(measured(table.rows)) == len(table.rows)


async def test_an_idle_fleet_of_two_sizes() -> None:
    tiny = idle.Scale(seconds=0.5, settling_seconds=0.1, fleets=(1, 2))

    on_sqlite, on_postgres = await idle.idle(tiny)

    assert [row["unit"] for row in on_sqlite.rows] == ["% of a core", "MB resident"] * 2
    assert [row["unit"] for row in on_postgres.rows] == ["% of a core", "MB resident", "statements/s"] * 2
    assert all(value >= 0 for value in measured([*on_sqlite.rows, *on_postgres.rows]))


async def test_pulling_a_small_image() -> None:
    tiny = images_streams.Scale(streams=3, quiet_seconds=0.5, turns=1)

    pulled, cut, beside = await images.images(2, rounds=1, scale=tiny)

    assert all(value > 0 for value in measured(pulled.rows))
    assert figures(cut)["whole layers that were fetched again"]["measured"] == 0
    assert figures(beside)["streams that broke"]["measured"] == 0
    assert all(value >= 0 for value in measured(cut.rows))


async def test_receiving_a_small_file() -> None:
    async def send(source: Path, url: str, headers: Mapping[str, str]) -> float:
        """As `curl -T`, which not every machine has."""
        began = time.monotonic()
        with source.open("rb") as body:
            async with aiohttp.ClientSession() as session, session.put(url, data=body, headers=headers) as answer:
                assert answer.status == 200
        return time.monotonic() - began

    table = await files.files(20_000_000, rounds=1, send=send)

    assert table.title == "Receiving a file of 20 MB"
    assert all(value >= 0 for value in measured(table.rows))
    assert len(measured(table.rows)) == len(table.rows)


@pytest.mark.usefixtures("s3_client")
async def test_staging_a_small_file() -> None:
    table = await staging.staging(20_000_000, rounds=1)

    assert table.title == "Bringing a file of 20 MB to a worker"
    assert figures(table)["bytes that second stagings send"]["measured"] == 0
    assert len(measured(table.rows)) == len(table.rows)


async def test_a_small_file_for_three_nodes() -> None:
    table = await peers.peers(3_000_000, nodes=3, speed=50e6)

    assert table.title == "A file of 3 MB for 3 nodes, over cables of 50 MB/s"
    assert len(measured(table.rows)) == len(table.rows)


async def test_downloading_a_small_file() -> None:
    (table,) = await downloads.downloads(5_000_000, rounds=1, beside=False)

    assert table.title == "Downloading a file of 5 MB from nginx over loopback"
    assert figures(table)["Corral"]["measured"]
    assert all(value >= 0 for value in measured(table.rows))


async def test_a_worker_under_a_little_load() -> None:
    tiny = worker.Scale(slow_seconds=2, burst=16, flood=60, again=3, idle_seconds=0.1)

    (table,) = await worker.worker(None, tiny)

    rows = figures(table)
    assert rows["flood: not answered"]["measured"] == 0
    assert len(measured(table.rows)) == len(table.rows)


async def test_a_gateway_before_an_engine() -> None:
    async with gateway.open_ways() as ways:
        found = await gateway.measure(ways, "stream", clients=2, seconds=0.5)

    assert {"engine", "gateway"} <= found.keys()
    assert all(load.streams > 0 and not load.failed for load in found.values())
    assert len(gateway.rate_table("2 clients", found).rows) == len(found)


async def test_an_adapter_before_an_engine() -> None:
    await gateway.build()
    async with engines.open_echo(per_message=8) as (ways, pids):
        found = {way.name: await gateway.run_load(way, 2, 0.5, "stream", key=key) for way, key in ways}

    assert pids.keys() == {"echo", "adapter", "gateway"}
    assert found.keys() == {"adapter", "gateway"}
    assert all(load.streams > 0 and not load.failed for load in found.values())


async def test_a_few_nodes_that_join() -> None:
    table = await joins.joins(nodes=3)

    assert len(measured(table.rows)) == 2
    assert all(value > 0 for value in measured(table.rows))


async def test_a_second_of_warm_requests() -> None:
    statements, memory = await warm.warm(1.0)

    assert cast("float", figures(statements)["answers"]["measured"]) > 0
    assert all(value > 0 for value in measured(memory.rows))


def test_asking_one_question() -> None:
    table = questions.ask({"What is the capital of France?": "paris"}, {"its own": questions.own_settings()})

    (row,) = table.rows
    assert row["right"] == 1
    assert row["repeats itself"] == 0


async def test_starting_once() -> None:
    table = await start(times=1, cold_starts=0)

    assert all(value > 0 for value in measured(table.rows))


async def test_the_frameworks_that_corral_uses() -> None:
    own = [contender for contender in frameworks.CONTENDERS if not contender.is_extra]

    table = await frameworks.frameworks(0.2, contenders=own, rounds=1)

    assert [row["framework"] for row in table.rows] == [contender.name for contender in own]
    assert all(row["errors"] == 0 for row in table.rows)


async def test_one_command_to_an_answer() -> None:
    (table,) = await run.run(schemes=frozenset({"file"}))

    (row,) = table.rows
    assert row["what"] == "file"
    assert row["again from the hub (MB)"] == 0


async def test_the_memory_of_two_small_models() -> None:
    small = [case for case in estimates.CASES if case.made is None or case.made.architecture == "bert"]

    (table,) = await estimates.estimates(cases=small)

    assert [row["verdict"] for row in table.rows] == ["ok", "ok"]


async def test_the_gateways_and_adapters_of_two_trees_in_turns() -> None:
    turns = against.Turns(count=2, seconds=0.2)
    gateways = await against.gateways(against.HERE, turns)
    adapters = await against.adapters(against.HERE, turns)

    assert [row["failed"] for row in (*gateways.rows, *adapters.rows)] == [0] * (
        len(gateways.rows) + len(adapters.rows)
    )
    assert len(gateways.rows) == 5
    assert str(gateways.rows[0]["streams/s"]).endswith(")")
