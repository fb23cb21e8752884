"""The live stream in one event loop: snapshots, changes, resuming, permissions."""

import msgspec

from corral.wire.live import FleetSummaryAnswer
from tests.kit.asgi import open_stream
from tests.kit.frontend import Frontend
from tests.kit.live import until_ready


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


async def register(frontend: Frontend, name: str) -> str:
    answer = await frontend.register({"name": name, "address": f"{name}:50051", "total_ram": 8, "available_ram": 2})
    assert answer.status in (200, 201), answer
    body = msgspec.json.decode(answer.body, type=dict[str, object])
    await frontend.call("POST", f"/api/v1/nodes/{body['id']}/approve")
    await frontend.settle()
    return str(body["id"])


async def test_a_reader_gets_a_snapshot_of_every_topic_then_ready(frontend: Frontend) -> None:
    node = await register(frontend, "gpu-1")
    async with open_stream(frontend.app, "/api/v1/live", headers=bearer(frontend.admin_key)) as stream:
        snapshots = await until_ready(stream)
    assert set(snapshots) == {"summary", "attention", "nodes", "replicas", "operations", "loads"}
    row = snapshots["nodes"][node]
    assert (row["name"], row["status"], row["kind"]) == ("gpu-1", "healthy", "localai")
    assert row["ram"] == {"total": 8, "used": 6, "reserved": 0}
    assert row["disk"] == {"total": None, "free": None}
    assert snapshots["summary"]["fleet"]["nodes"]["healthy"] == 1


async def test_the_summary_says_what_the_stream_says(frontend: Frontend) -> None:
    await register(frontend, "gpu-1")
    answer = await frontend.call("GET", "/api/v1/fleet/summary")
    given = msgspec.json.decode(answer.body, type=FleetSummaryAnswer)
    async with open_stream(
        frontend.app, "/api/v1/live?topics=summary,attention", headers=bearer(frontend.admin_key)
    ) as stream:
        snapshots = await until_ready(stream)
    assert snapshots["summary"]["fleet"] == msgspec.to_builtins(given.summary)
    assert list(snapshots["attention"]) == [item.id for item in given.attention]
