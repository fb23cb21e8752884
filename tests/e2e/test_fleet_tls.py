"""TLS inside the fleet, with real processes and a real engine: what passes the network, and who is let in."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.models import chat_model
from tests.kit.ports import lasting_range
from tests.kit.relay import Relay
from tests.kit.serving import ServingFleet, serving_fleet
from tests.kit.waiting import eventually

ON = {"CORRAL_FLEET_TLS": "true"}


async def is_answered(fleet: ServingFleet) -> bool:
    return (await fleet.question().ask()).is_served


@asynccontextmanager
async def watched_fleet(folder: Path) -> AsyncIterator[tuple[ServingFleet, Relay]]:
    """A worker with TLS and files of its own. All that others send it passes through a relay that remembers it."""
    models = folder / "models"
    models.mkdir()
    shutil.copyfile(chat_model(), models / "chat.gguf")
    ports = lasting_range(20)
    own = {
        "CORRAL_ADDRESS": f"127.0.0.1:{ports[0]}",
        "CORRAL_HTTP_ADDRESS": f"127.0.0.1:{ports[0] - 1}",
        "CORRAL_MAX_PORT": str(ports[-1]),
    }
    async with Relay(ports[0] - 1) as relay:
        own["CORRAL_ADVERTISE_HTTP_ADDRESS"] = f"127.0.0.1:{relay.port}"
        async with serving_fleet(
            folder, names=("w1",), own_models=True, settings=ON, worker_settings=ON | own, beat_seconds=2
        ) as fleet:
            yield fleet, relay


def plainly(port: int, path: str) -> bytes:
    """The first line that a program without TLS is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            return answer.readline()


async def test_nothing_that_passes_the_network_can_be_read(tmp_path: Path) -> None:
    async with watched_fleet(tmp_path) as (fleet, relay):
        await eventually(lambda: is_answered(fleet), "an answer", seconds=120)
        assert (tmp_path / "w1" / "models" / "chat" / "chat.gguf").stat().st_size == chat_model().stat().st_size
        passed = bytes(relay.passed)
        assert len(passed) > chat_model().stat().st_size  # the file, the gRPC calls and the chat went through
        for word in (
            b"general.architecture",
            b"LoadModel",
            b"chat/completions",
            b"messages",
            b"Authorization",
            b"Bearer",
        ):
            assert word not in passed

        assert b" 200 " in await asyncio.to_thread(plainly, relay.port, "/healthz")
        assert b" 401 " in await asyncio.to_thread(plainly, relay.port, "/v1/files/models/chat/chat.gguf")

        [node] = (await fleet.control.nodes()).values()
        assert "fleet-tls" in (node.corral.features if node.corral else ())


async def test_answers_go_on_while_the_door_is_killed_and_while_control_is_away(tmp_path: Path) -> None:
    async with serving_fleet(tmp_path, names=("w1",), settings=ON, worker_settings=ON, beat_seconds=2) as fleet:
        await eventually(lambda: is_answered(fleet), "an answer", seconds=120)
        worker = fleet.workers["w1"]
        [door] = [child for child in worker.started() if "corral.processes.door" in child.cmdline()]
        door.kill()
        await eventually(lambda: is_answered(fleet), "an answer through the next door", seconds=60)
        await fleet.control.kill()
        assert await is_answered(fleet)


@pytest.mark.parametrize("side", ["frontend", "worker"])
async def test_one_side_alone_says_what_to_do(tmp_path: Path, side: str) -> None:
    """A frontend with it serves workers without it; a worker with it insists, and says why nobody reaches it."""
    settings, of_worker = (ON, {}) if side == "frontend" else ({}, ON)
    async with serving_fleet(tmp_path, names=("w1",), settings=settings, worker_settings=of_worker) as fleet:
        if side == "frontend":
            await eventually(lambda: is_answered(fleet), "an answer", seconds=120)
            return
        worker = fleet.workers["w1"]

        async def is_told() -> bool:
            await asyncio.sleep(0)
            return "the frontend makes no certificates: turn it on there, or off here" in worker.output

        await eventually(is_told, "the reason in the worker's log")

        async def is_shown() -> bool:
            [node] = (await fleet.control.nodes()).values()
            return any("makes no certificates" in problem for problem in node.problems)

        await eventually(is_shown, "the reason in the node")
