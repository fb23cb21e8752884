"""The lists of operations and events through the API: filters, cursors, and what is said about bad ones."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from corral.frontend.record.decide import EventKind
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""
OPERATIONS, EVENTS = "/api/v1/operations", "/api/v1/events"


async def get(world: World, path: str, *, status: int = 200, **query: object) -> Any:
    answer = await world.frontend.call("GET", f"{path}?{urlencode(query, doseq=True)}")
    assert answer.status == status, answer.body
    return answer.json()


async def start(world: World, backend: str, *nodes: str) -> str:
    await world.clock.advance(timedelta(seconds=1))
    ask = {"verb": "install", "backend": backend, "nodes": list(nodes)}
    answer = await world.frontend.call("POST", OPERATIONS, ask)
    assert answer.status == 202, answer.body
    return str(answer.json()["id"])


async def test_operations_are_filtered_and_paged(world: World) -> None:
    await world.backends("w1")
    await world.backends("w2")
    first, second = [seen.node.id for seen in await world.control.context.nodes.fleet.all()]
    made = [await start(world, "echo", first), await start(world, "vllm", second), await start(world, "echo", second)]

    async def ids(**query: object) -> list[str]:
        return [one["id"] for one in (await get(world, OPERATIONS, **query))["items"]]

    assert await ids() == made[::-1]
    assert await ids(backend="echo") == [made[2], made[0]]
    assert await ids(backend="echo", node=first) == [made[0]]
    assert await ids(state=["running", "failed"], verb="install") == made[::-1]
    assert await ids(state="done") == []
    assert await ids(asked_by="admin", text="VLL") == [made[1]]
    page = await get(world, OPERATIONS, backend="echo", limit=1)
    again = await get(world, OPERATIONS, backend="echo", limit=1, cursor=page["next_cursor"])
    assert [page["items"][0]["id"], again["items"][0]["id"], again["next_cursor"]] == [made[2], made[0], None]


async def test_events_are_filtered_and_read_backwards(world: World) -> None:
    await world.backends("w1")
    [seen] = await world.control.context.nodes.fleet.all()
    operation = await start(world, "echo", seen.node.id)
    await world.frontend.call("POST", f"/api/v1/nodes/{seen.node.id}/drain")

    everything = await get(world, EVENTS)
    assert [one["sequence"] for one in everything] == list(range(1, len(everything) + 1))
    assert {one["kind"] for one in await get(world, EVENTS, node=seen.node.id[:8])} >= {"node.draining"}
    assert {one["kind"].partition(".")[0] for one in await get(world, EVENTS, kind="node")} == {"node"}
    [started] = await get(world, EVENTS, subject=operation)
    assert (started["kind"], started["data"]["backend"]) == ("operation.started", "echo")
    assert [one["kind"] for one in await get(world, EVENTS, actor="admin", kind=["node.draining", "key"])] == [
        "node.draining"
    ]
    last = everything[-1]["sequence"]
    assert [one["sequence"] for one in await get(world, EVENTS, before=last, limit=2)] == [last - 2, last - 1]
    assert await get(world, EVENTS, text="no event says this") == []


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        (OPERATIONS, {"state": "odd"}, "state"),
        (OPERATIONS, {"verb": "dance"}, "verb"),
        (OPERATIONS, {"text": "x" * 201}, "text"),
        (OPERATIONS, {"backend": "a\0b"}, "backend"),
        (OPERATIONS, {"cursor": "nonsense"}, "cursor"),
        (OPERATIONS, {"limit": "0"}, "limit"),
        (EVENTS, {"kind": "weather"}, "kind"),
        (EVENTS, {"before": "-1"}, "before"),
        (EVENTS, {"before": "9" * 30}, "before"),
        (EVENTS, {"after": "first"}, "after"),
        (EVENTS, {"actor": "x" * 201}, "actor"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_named(
    world: World, path: str, query: dict[str, str], field: str
) -> None:
    error = (await get(world, path, status=400, **query))["error"]
    assert (error["code"], error["field"]) == ("invalid_input", field)


async def test_every_kind_of_event_can_be_asked_for(world: World) -> None:
    for kind in EventKind:
        assert isinstance(await get(world, EVENTS, kind=kind.value), list)
