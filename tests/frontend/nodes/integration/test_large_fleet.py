"""What is done differently because there may be thousands of nodes must not be seen from outside."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast
from urllib.parse import urlencode

import pytest
from sqlalchemy import event

from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.store.db import Database
from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN, Frontend


async def join(frontend: Frontend, name: str, *, token: str = TRUSTED_TOKEN, **more: object) -> str:
    answer = await frontend.register({"name": name, "address": "10.0.0.1:50051", **more}, token=token)
    assert answer.status == 201
    return str(cast(dict[str, object], answer.json())["id"])


async def beat(frontend: Frontend, id: str) -> None:
    answer = await frontend.call("POST", f"/api/node/{id}/heartbeat", {}, key=REGISTRATION_TOKEN)
    assert answer.status == 200


async def walk(frontend: Frontend, **query: str) -> list[str]:
    """Names from all pages."""
    names: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await frontend.call("GET", "/api/v1/nodes?" + urlencode({**query, **cursor}))
        page = cast(dict[str, object], answer.json())
        names += [node["name"] for node in cast(list[dict[str, str]], page["items"])]
        if page["next_cursor"] is None:
            return names
        cursor = {"cursor": str(page["next_cursor"])}


@pytest.fixture
async def fleet(frontend: Frontend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Ten nodes in all states, read three at a time; names by state."""
    monkeypatch.setattr("corral.frontend.nodes.fleet._BATCH", 3)
    ids = {
        f"n{number}": await join(frontend, f"n{number}", labels={"parity": "odd" if number % 2 else "even"})
        for number in range(9)
    }
    await join(frontend, "n9", token=REGISTRATION_TOKEN)
    for number in (2, 7):
        await frontend.call("POST", f"/api/v1/nodes/{ids[f'n{number}']}/drain")
    await frontend.call("POST", f"/api/node/{ids['n4']}/deregister", key=REGISTRATION_TOKEN)
    for _ in range(16):
        await clock.advance(timedelta(seconds=2))
        await frontend.control.context.nodes.hearing.tick()
    await asyncio.gather(*(beat(frontend, id) for name, id in ids.items() if name != "n8"))
    await frontend.settle()
    return {
        NodeStatus.PENDING: {"n9"},
        NodeStatus.DRAINING: {"n2", "n7"},
        NodeStatus.OFFLINE: {"n4"},
        NodeStatus.UNHEALTHY: {"n8"},
        NodeStatus.HEALTHY: {"n0", "n1", "n3", "n5", "n6"},
    }


@pytest.mark.parametrize("limit", ["1", "2", "3", "4", "100"])
async def test_a_filter_finds_all_its_nodes_on_pages_of_any_size(
    frontend: Frontend, fleet: dict[str, set[str]], limit: str
) -> None:
    for status, names in fleet.items():
        assert await walk(frontend, status=status, limit=limit) == sorted(names)
    assert await walk(frontend, limit=limit) == [f"n{number}" for number in range(10)]
    assert await walk(frontend, label="parity=odd", limit=limit) == ["n1", "n3", "n5", "n7"]
    assert await walk(frontend, label="parity=odd", status="draining", limit=limit) == ["n7"]
    assert await walk(frontend, name="N7", type="agent", limit=limit) == []


async def test_metrics_count_what_lists_show(frontend: Frontend, fleet: dict[str, set[str]]) -> None:
    metrics = (await frontend.call("GET", "/metrics")).body.decode()

    for status, names in fleet.items():
        assert f'corral_nodes{{status="{status}"}} {len(names)}' in metrics.splitlines()


async def test_heartbeats_that_come_together_share_transactions(frontend: Frontend, database: Database) -> None:
    ids = [await join(frontend, f"n{number}") for number in range(20)]

    with transactions(database) as begun:
        await asyncio.gather(*(beat(frontend, id) for id in ids))

    # The first batch is of those that came first, the second of all others; each is read and then written.
    assert len(begun) <= 4


@contextmanager
def transactions(database: Database) -> Iterator[list[object]]:
    begun: list[object] = []

    def note(connection: object) -> None:
        begun.append(connection)

    for engine in database.engines:
        event.listen(engine.sync_engine, "begin", note)
    try:
        yield begun
    finally:
        for engine in database.engines:
            event.remove(engine.sync_engine, "begin", note)
