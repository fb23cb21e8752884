"""Workers with models directories of their own: real processes, a real engine, and kills in the middle of a staging."""

import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from corral.base.tasks import running
from corral.worker.files.uploads import BATCH
from tests.kit.models import chat_model, write_model
from tests.kit.ports import lasting_port
from tests.kit.relay import Relay
from tests.kit.serving import MODEL, ServingFleet, serving_fleet
from tests.kit.waiting import eventually

SOCKET_BUFFERS = sum(
    int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[-1]) for name in ("tcp_rmem", "tcp_wmem")
)
"""What the kernel lets the two sockets of a connection hold."""
IN_FLIGHT = 2 * BATCH + 2 * SOCKET_BUFFERS
"""What the worker had received and not written, and what was in the connections to the wire and behind it."""
SIZE = 4 * IN_FLIGHT
"""Of a file without content: so large that half of it, sent once more, would be noticed."""
_SENT = re.compile(r"model files sent.*?bytes\W+(\d+)")


async def is_answered(fleet: ServingFleet, model: str = MODEL) -> bool:
    return (await fleet.question(model=model).ask()).is_served


def staged(fleet: ServingFleet, worker: str, path: str) -> Path:
    return fleet.models_of(worker) / path


def received(fleet: ServingFleet, worker: str, model: str) -> int:
    """Bytes of the model's files on the worker, those of an unfinished one included."""
    total = 0
    for file in (fleet.models_of(worker) / model).glob("*"):
        with suppress(FileNotFoundError):  # it got its name meanwhile
            total += 0 if "sha256" in file.name else file.stat().st_size
    return total


def sent(fleet: ServingFleet) -> list[int]:
    return [int(count) for count in _SENT.findall(fleet.control.output)]


async def test_a_model_is_answered_by_workers_that_never_had_its_file(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copyfile(chat_model(), models / "chat.gguf")
    async with serving_fleet(tmp_path, own_models=True, beat_seconds=2) as fleet:
        await eventually(lambda: is_answered(fleet), "an answer", seconds=120)
        first = await fleet.serving()
        assert staged(fleet, first.name, "chat/chat.gguf").stat().st_size == chat_model().stat().st_size

        async with fleet.another_worker("w3") as third:
            await fleet.until_healthy("w3")
            for worker in fleet.workers.values():
                await worker.kill()
            await eventually(lambda: is_answered(fleet), "an answer of the third", seconds=120)
            assert third.is_running
            assert [replica.node for replica in await fleet.loaded()] == ["w3"]
        assert staged(fleet, "w3", "chat/chat.gguf").exists()


@pytest.fixture
def heavy(tmp_path: Path) -> str:
    """A model whose engine needs nothing of its large file."""
    write_model(tmp_path / "models", "heavy", backend="echo", parameters={"model": "heavy.bin"})
    with (tmp_path / "models" / "heavy.bin").open("wb") as file:
        file.truncate(SIZE)
    os.utime(tmp_path / "models" / "heavy.bin", (1, 1))
    return "heavy"


@asynccontextmanager
async def fleet_behind_a_wire(folder: Path) -> AsyncIterator[tuple[ServingFleet, Relay]]:
    """One worker, and a wire to its file server."""
    port = lasting_port()
    async with Relay(port) as wire:
        addresses = {
            "CORRAL_HTTP_ADDRESS": f"127.0.0.1:{port}",
            "CORRAL_ADVERTISE_HTTP_ADDRESS": f"127.0.0.1:{wire.port}",
        }
        async with serving_fleet(
            folder, own_models=True, names=["w1"], beat_seconds=2, worker_settings=addresses
        ) as fleet:
            yield fleet, wire


async def until_half(fleet: ServingFleet, wire: Relay, model: str) -> None:
    """Wait until about half of the model's file is there, and no more gets through."""
    wire.freeze_after(SIZE // 2)
    # Asked again and again: a gateway that has not heard of the model yet refuses the first question.
    asking = eventually(lambda: is_answered(fleet, model), "an answer", seconds=120)
    async with running(asking, name="question"):
        await wire.until_frozen()


async def test_a_worker_that_is_killed_meanwhile_gets_the_rest(tmp_path: Path, heavy: str) -> None:
    async with fleet_behind_a_wire(tmp_path) as (fleet, wire):
        await until_half(fleet, wire, heavy)
        await fleet.workers["w1"].kill()
        assert received(fleet, "w1", heavy) < SIZE
        wire.thaw()
        fleet.workers["w1"].start()
        await eventually(lambda: is_answered(fleet, heavy), "an answer", seconds=120)

        assert staged(fleet, "w1", "heavy/heavy.bin").stat().st_size == SIZE
        assert SIZE <= sum(sent(fleet)) <= SIZE + IN_FLIGHT


async def test_what_a_killed_frontend_had_sent_is_not_sent_again(tmp_path: Path, heavy: str) -> None:
    async with fleet_behind_a_wire(tmp_path) as (fleet, wire):
        await until_half(fleet, wire, heavy)
        await fleet.control.kill()
        before = received(fleet, "w1", heavy)
        assert IN_FLIGHT < before < SIZE
        wire.thaw()
        fleet.control.start()
        await fleet.control.until_ready()
        await eventually(lambda: is_answered(fleet, heavy), "an answer", seconds=120)

        assert staged(fleet, "w1", "heavy/heavy.bin").stat().st_size == SIZE
        [rest] = sent(fleet)
        assert rest <= SIZE - before + IN_FLIGHT


async def test_real_workers_get_files_from_each_other(tmp_path: Path) -> None:
    models, names = tmp_path / "models", ["w1", "w2", "w3", "w4"]
    models.mkdir()
    (models / "chat.gguf").write_bytes(os.urandom(3_000_000))
    settings = {"CORRAL_STAGING_SOURCES": "peers", "CORRAL_STAGING_PEER_MIN_SIZE": "1MiB"}
    async with serving_fleet(tmp_path, own_models=True, names=names, beat_seconds=2, settings=settings) as fleet:

        async def stage(**where: object) -> dict[str, Any]:
            body = {"model": MODEL, **where}
            answer = await fleet.control.call("POST", "/api/v1/model-stagings", body)
            assert answer.status == 202, answer.body

            async def outcome() -> dict[str, Any] | None:
                id = json.loads(answer.body)["id"]
                operation = json.loads((await fleet.control.call("GET", f"/api/v1/operations/{id}")).body)
                return operation if operation["state"] != "running" else None

            return await eventually(outcome, "the end of the staging", seconds=60)

        nodes = json.loads((await fleet.control.call("GET", "/api/v1/nodes")).body)["items"]
        first = next(node["id"] for node in nodes if node["name"] == "w1")
        assert (await stage(nodes=[first]))["state"] == "done"
        assert (await stage(all=True))["state"] == "done"

        for name in names:
            assert staged(fleet, name, "chat/chat.gguf").read_bytes() == (models / "chat.gguf").read_bytes()
        assert fleet.workers["w1"].output.count("another node fetches a file") >= 1
        assert "a ticket is not good" not in "".join(worker.output for worker in fleet.workers.values())
