"""Nodes that are drained while clients ask: real workers, backends and gateways."""

from functools import partial
from pathlib import Path

import msgspec

from corral.wire.nodes import DrainView
from tests.kit.load_clients import StreamRequest, counted, under_load
from tests.kit.models import write_model
from tests.kit.serving import ServingFleet, serving_fleet
from tests.kit.waiting import eventually

CLIENTS = 4
SLOWLY = ["tokens:20", "rate:25"]
"""Answers of nearly a second: all clients read one when a drain begins, and some whenever something happens in it."""


async def is_served(question: StreamRequest) -> bool:
    return (await question.ask()).is_served


async def drained(fleet: ServingFleet, node_id: str) -> DrainView | None:
    """How far the drain is, once it has ended."""
    answer = await fleet.control.call("GET", f"/api/v1/nodes/{node_id}/drain")
    view = msgspec.json.decode(answer.body, type=DrainView)
    return view if view.state == "drained" else None


async def test_no_request_fails_while_a_busy_node_is_drained_and_comes_back(tmp_path: Path) -> None:
    async with serving_fleet(tmp_path, beat_seconds=5) as fleet:
        write_model(fleet.models, "echo", backend="echo", options=SLOWLY)
        question = fleet.question(model="echo")
        await eventually(lambda: is_served(question), "the first answer", seconds=60)
        for _ in range(2):  # there, and back again
            [before] = await fleet.loaded("echo")
            async with under_load(question, clients=CLIENTS) as load:
                await load.until_answered(CLIENTS * 3)
                await load.until_under_way(CLIENTS)
                assert (await fleet.control.call("POST", f"/api/v1/nodes/{before.node_id}/drain")).status == 200
                await eventually(partial(drained, fleet, before.node_id), "the node to be drained", seconds=90)
                await load.until_answered(len(load.answers) + CLIENTS * 3)
            assert all(answer.is_served for answer in load.answers), counted(load.answers)
            [after] = await fleet.loaded("echo")
            assert after.node_id != before.node_id
            assert (await fleet.control.call("POST", f"/api/v1/nodes/{before.node_id}/resume")).status == 200
        assert [event["why"] for event in await fleet.events("replica.unloading")] == ["its node is drained"] * 2
        assert await fleet.events("replica.lost") == []
