"""A whole worker on a real NATS server: commands reach it, and its absence harms nothing else."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import NoResponders
from corral.base.ids import NodeId
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.processes.exit_codes import ExitCode
from corral.wire.subjects import node_stop
from corral.worker.config import WorkerConfig
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port

GOLDEN_ID = NodeId("11111111-2222-4333-8444-555555555555")


async def test_a_registered_and_connected_worker_is_ready(worker: Any, on_nats: WorkerConfig) -> None:
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        assert await running.ask("/readyz") == (200, "ok")


@pytest.mark.parametrize("payload", [b"null", b"", b"{}", b"not json"])
async def test_a_stop_over_nats_drains_deregisters_and_ends(
    worker: Any, on_nats: WorkerConfig, frontend: Any, control: NatsBus, payload: bytes
) -> None:
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        for _ in range(3):
            await control.publish(node_stop(GOLDEN_ID), payload)
        assert await running.ended() is ExitCode.OK

    assert frontend.actions == ["register", "drain", "models", "deregister"]


async def test_heartbeats_go_on_while_nats_is_down(
    worker: Any, on_nats: WorkerConfig, frontend: Any, nats: PlainNats, control: NatsBus
) -> None:
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        await nats.kill()
        await running.until_answers("/readyz", (503, "not ready: not connected to NATS"))

        for beat in (1, 2, 3):
            await running.pass_time(seconds=10)
            await frontend.until_received("heartbeat", beat)

        await nats.start()
        await running.until_answers("/readyz", (200, "ok"))
        await control.wait_connected()
        await control.publish(node_stop(GOLDEN_ID), b"null")
        assert await running.ended() is ExitCode.OK


async def test_a_worker_starts_without_nats_and_hears_it_later(
    worker: Any, on_nats: WorkerConfig, frontend: Any, nats: PlainNats, control: NatsBus
) -> None:
    await nats.kill()

    async with worker(on_nats) as running:
        await frontend.until_received("register")
        await running.clock.until_sleeping(1)
        await nats.start()
        await running.until_answers("/readyz", (200, "ok"))
        await control.wait_connected()
        await control.publish(node_stop(GOLDEN_ID), b"null")
        assert await running.ended() is ExitCode.OK


async def test_a_worker_with_a_new_id_listens_under_that_one_only(
    worker: Any, on_nats: WorkerConfig, frontend: Any, answer: Any, control: NatsBus
) -> None:
    frontend.will_answer("register", answer(201, {"id": "first"}), answer(201, {"id": "second"}))
    frontend.will_answer("heartbeat", answer(404))

    async with worker(on_nats) as running:
        await running.pass_time(seconds=10)
        await frontend.until_received("register", 2)
        await running.clock.until_sleeping(1)
        with pytest.raises(NoResponders):
            await control.request(node_stop(NodeId("first")), b"null", timeout=timedelta(seconds=10))
        await control.publish(node_stop(NodeId("second")), b"null")
        assert await running.ended() is ExitCode.OK

    assert frontend.received[-1].path == "/api/node/second/deregister"


async def test_a_worker_that_may_no_longer_listen_is_not_ready(
    worker: Any, on_nats: WorkerConfig, nats: PlainNats, tmp_path: Path
) -> None:
    """The permission goes while the server is away, and comes back later; the worker lives through both."""
    config = tmp_path / "nats" / "nats-server.conf"
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        allowed = config.read_text()
        settings = json.loads(allowed)
        may_hear = settings["authorization"]["users"][1]["permissions"]["subscribe"]
        names = ("stop", "models.>", "model.>", "backend.list", "backend.stop", "corral.>")
        kept = [f"nodes.*.{name}" for name in names]
        settings["authorization"]["users"][1]["permissions"]["subscribe"] = [
            one for one in may_hear if one != "nodes.*.>" and not one.startswith("nodes.")
        ] + kept
        await nats.kill()
        config.write_text(json.dumps(settings))
        await nats.start()

        refused = [f"nodes.{GOLDEN_ID}.backend.{name}" for name in ("delete", "install", "upgrade")]
        reasons = ", ".join(f"not allowed to listen to {subject}" for subject in refused)
        await running.until_answers("/readyz", (503, f"not ready: {reasons}"))
        assert await running.ask("/healthz") == (200, "ok")

        await nats.kill()
        config.write_text(allowed)
        await nats.start()
        await running.until_answers("/readyz", (200, "ok"))


async def test_a_nats_user_that_may_not_listen_ends_the_worker(
    worker: Any, config: WorkerConfig, frontend: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = {"user": "deaf", "password": "x", "permissions": {"subscribe": ["elsewhere"]}}
    strict = PlainNats(tmp_path / "strict", port=lasting_port(), extra={"authorization": {"users": [deaf]}})
    strict.prepare()
    deafened = replace(config, bus=BusConfig(url=strict.url.replace("nats://", "nats://deaf:x@")))

    async with strict, worker(deafened) as running:
        assert await running.ended() is ExitCode.DENIED

    assert frontend.actions == ["register", "drain", "models", "deregister"]
    assert f"nodes.{GOLDEN_ID}.stop" in caplog.text
