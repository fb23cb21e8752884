"""Nodes that are simply there: written into the database beside a running frontend, healthy, heard of once an hour."""

from datetime import UTC, datetime, timedelta
from typing import Final

from corral.base.ids import new_node_id
from corral.frontend.nodes.decide.node import Capacity, Gpu, Node, NodeFacts, NodeStatus
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.store.db import Database
from corral.wire.labels import NodeLabels

_HOUR: Final = timedelta(hours=1)
_GIBIBYTE: Final = 1024**3


async def store_nodes(database_url: str, count: int) -> None:
    database = await Database.open(database_url, lock=False)
    try:
        nodes = Nodes(database)
        for number in range(count):
            await nodes.admit(_node(number, datetime.now(UTC)), events=[], policy=AdmissionPolicy())
    finally:
        await database.close()


def _node(number: int, now: datetime) -> Node:
    return Node(
        id=new_node_id(),
        name=f"stored-{number:06d}",
        address=f"10.1.{number // 250}.{number % 250}:50051",
        http_address=f"10.1.{number // 250}.{number % 250}:50050",
        facts=NodeFacts(approved_at=now, approved_by="bench", last_heartbeat=now, stated_interval=_HOUR),
        capacity=Capacity(total_ram=64 * _GIBIBYTE, available_ram=48 * _GIBIBYTE, total_vram=24 * _GIBIBYTE),
        gpu=Gpu(vendor="nvidia", compute_capability="8.9"),
        capability="nvidia-cuda-12",
        labels=NodeLabels(reported={"zone": f"zone-{number % 3}", "rack": f"rack-{number % 40}"}),
        announced=NodeStatus.HEALTHY,
        created_at=now,
        registered_at=now,
        updated_at=now + _HOUR,  # health looks at a node that was changed; this way it does not look at all of them now
    )
