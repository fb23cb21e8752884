"""A NATS server that is killed and comes back in the middle of what a worker was asked: the work is done to its end or
can be asked for again, every subject is heard again, and nothing is left half done."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from corral.base.errors import BusUnavailable
from corral.base.ids import NodeId
from corral.bus.config import BusConfig
from corral.files.s3 import S3Objects
from corral.rpc.backend import Backend
from corral.wire import subjects
from corral.worker import models
from corral.worker.config import WorkerConfig
from corral.worker.files import disk
from tests.kit.backends import BACKENDS
from tests.kit.gates import held_call
from tests.kit.plain_nats import PlainNats
from tests.kit.s3 import S3Server
from tests.kit.waiting import eventually
from tests.kit.worker_client import NODE, WorkerClient

KEY = "models/mymodel/m.bin"
LOST_AFTER = timedelta(seconds=3)
"""For questions that may be lost with the server: nobody else tells that they are."""
WEIGHTS = bytes(range(256)) * 1000
ANSWERED = {
    subjects.backend_install: b"{",
    subjects.backend_upgrade: b"{",
    subjects.backend_delete: b"{",
    subjects.backend_list: b"{}",
    subjects.models_running: b"{}",
    subjects.model_unload: b'{"model_name":"nobody"}',
    subjects.model_stop: b'{"process_key":"nobody#0"}',
    subjects.model_delete: b'{"model_name":"nobody"}',
    subjects.files_ensure: b"{",
    subjects.files_stage: b"{",
    subjects.files_temp: b"{}",
    subjects.files_list: b'{"key_prefix":""}',
}


@pytest.fixture
def on_nats(config: WorkerConfig, nats: PlainNats, s3_server: S3Server) -> WorkerConfig:
    """With backends to run, and a storage to fetch from."""
    bus = BusConfig(url=nats.worker_url)
    return replace(config, bus=bus, system_backends=(BACKENDS,), storage=s3_server.config())


class Outage:
    """The server dies and comes back, and everybody finds it."""

    def __init__(self, nats: PlainNats, joined: Any, bus_client: WorkerClient) -> None:
        self._nats = nats
        self._joined = joined
        self._asker = bus_client

    async def pass_by(self) -> None:
        await self._nats.kill()
        await self._joined.until_answers("/readyz", (503, "not ready: not connected to NATS"))
        await self._nats.start()
        await self._joined.until_answers("/readyz", (200, "ok"))
        await self._asker.bus.wait_connected()


@pytest.fixture
async def outage(nats: PlainNats, joined: Any, bus_client: WorkerClient) -> AsyncIterator[Outage]:
    """Whatever happened, the worker hears every subject afterwards."""
    yield Outage(nats, joined, bus_client)
    for subject, data in ANSWERED.items():
        assert await bus_client.ask(subject, data)
    await bus_client.stop(b'{"backend":"nobody"}')


class HeldFree:
    """Backends that are asked to give their model back, and do not answer before they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        free = Backend.free

        async def hold(backend: Backend, *, timeout: timedelta) -> None:
            self.begun.set()
            await self.go_on.wait()
            await free(backend, timeout=timeout)

        monkeypatch.setattr(Backend, "free", hold)


@pytest.fixture
async def freeing(monkeypatch: pytest.MonkeyPatch) -> HeldFree:
    return HeldFree(monkeypatch)


async def test_in_the_middle_of_an_unload(bus_client: WorkerClient, outage: Outage, freeing: HeldFree) -> None:
    """Whoever asked is answered after the reconnect; the process goes on."""
    await bus_client.install("echo", "m1")
    unload = asyncio.create_task(bus_client.ask(subjects.model_unload, b'{"model_name":"m1"}'))
    await freeing.begun.wait()

    await outage.pass_by()
    freeing.go_on.set()

    assert await unload == {"success": True}
    assert await bus_client.ask(subjects.model_unload, b'{"model_name":"m1"}') == {"success": True}
    assert await bus_client.running() == ["m1#0"]


async def test_in_the_middle_of_a_model_stop(bus_client: WorkerClient, outage: Outage, freeing: HeldFree) -> None:
    address = (await bus_client.install("echo", "m1")).address
    request = json.dumps({"process_key": "m1#0", "expected_address": address}).encode()
    stop = asyncio.create_task(bus_client.ask(subjects.model_stop, request))
    await freeing.begun.wait()

    await outage.pass_by()
    freeing.go_on.set()

    told = await stop
    assert (told["matched"], told["terminated"]) == (True, True)
    again = await bus_client.ask(subjects.model_stop, request)
    assert (again["matched"], again["terminated"]) == (False, True)
    assert await bus_client.running() == []


@pytest.mark.parametrize("payload", [b'{"backend":"m1"}', b"null"])
async def test_in_the_middle_of_a_backend_stop(
    bus_client: WorkerClient, outage: Outage, freeing: HeldFree, payload: bytes
) -> None:
    """Nobody is answered: the process goes all the same, and asking again does no harm."""
    await bus_client.install("echo", "m1")
    await bus_client.bus.publish(subjects.backend_stop(NODE), payload)
    await freeing.begun.wait()

    await outage.pass_by()
    await bus_client.bus.publish(subjects.backend_stop(NODE), payload)
    freeing.go_on.set()

    async def is_gone() -> bool:
        return await bus_client.running() == []

    await eventually(is_gone, "the end of the process")
    assert (await bus_client.install("echo", "m1")).success


async def test_in_the_middle_of_deleting_a_model(
    bus_client: WorkerClient, outage: Outage, on_nats: WorkerConfig
) -> None:
    folder = on_nats.models_path / "mymodel"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "m.bin").write_bytes(WEIGHTS)
    with held_call(models, "_remove_files") as holding:
        delete = asyncio.create_task(bus_client.ask(subjects.model_delete, b'{"model_name":"mymodel"}'))
        await holding.begun.wait()
        await outage.pass_by()
        again = asyncio.create_task(bus_client.ask(subjects.model_delete, b'{"model_name":"mymodel"}'))
        holding.go_on.set()
        assert await delete == {"success": True}
        assert await again == {"success": True}

    assert not folder.exists()


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


async def test_in_the_middle_of_fetching_an_object(
    bus_client: WorkerClient, outage: Outage, on_nats: WorkerConfig, s3_server: S3Server
) -> None:
    """Nothing of it is at its place before it is whole; whoever asks meanwhile waits for the same fetch."""
    await S3Objects(s3_server.config()).upload(io.BytesIO(WEIGHTS), KEY, created_at="2026-01-02T03:04:05Z")
    cache, request = on_nats.models_path.parent / "cache", json.dumps({"key": KEY}).encode()
    with held_call(disk, "rename") as holding:
        first = asyncio.create_task(bus_client.ask(subjects.files_ensure, request))
        await holding.begun.wait()
        await outage.pass_by()
        second = asyncio.create_task(bus_client.ask(subjects.files_ensure, request))
        assert "m.bin" not in files_below(cache)
        holding.go_on.set()
        path = Path((await first)["local_path"])
        assert await second == {"local_path": str(path)}

    assert path == cache / KEY
    assert content_of(path) == WEIGHTS
    assert files_below(path.parent) == ["m.bin"]


BURST: Final = {
    subjects.backend_list: b"{}",
    subjects.models_running: b"{}",
    subjects.model_stop: b'{"process_key":"nobody#0"}',
    subjects.backend_install: b'{"backend":"echo","model_id":"m1"}',
}


async def test_in_the_middle_of_a_burst(bus_client: WorkerClient, outage: Outage) -> None:
    """What was under way is answered or given up, by either side; the next burst is answered to its last message."""

    async def ask(subject: Callable[[NodeId], str], data: bytes) -> bytes | None:
        try:
            return await bus_client.bus.request(subject(NODE), data, timeout=LOST_AFTER)
        except BusUnavailable:
            return None

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(*one)) for one in BURST.items() for _ in range(250)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        await outage.pass_by()
        asked_later = [group.create_task(bus_client.ask(*one)) for one in BURST.items() for _ in range(50)]

    assert all(task.result() for task in asked_later)
    assert await bus_client.running() == ["m1#0"]
