"""Unloading and stopping a model's processes: exactly those that are meant, and what is answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import CorralError
from corral.worker.config import SupervisionConfig
from tests.kit.backend_node import SleepingNode
from tests.kit.backend_scripts import write_backend
from tests.kit.loop_time import without_waiting


class Freeing:
    """Remembers where a model was given back."""

    def __init__(self) -> None:
        self.freed: list[str] = []
        self.problem: CorralError | None = None
        self.held: asyncio.Event | None = None
        self.inside = asyncio.Event()

    def connect(self, address: str, token: str) -> "FreeingLink":
        return FreeingLink(self, address)


class FreeingLink:
    def __init__(self, freeing: Freeing, address: str) -> None:
        self._freeing = freeing
        self._address = address

    async def health(self, *, timeout: timedelta) -> None: ...

    async def free(self, *, timeout: timedelta) -> None:
        self._freeing.freed.append(self._address)
        self._freeing.inside.set()
        if self._freeing.held is not None:
            await self._freeing.held.wait()
        if self._freeing.problem is not None:
            raise self._freeing.problem

    async def close(self) -> None: ...


class Rig(SleepingNode):
    def __init__(self, folder: Path, limits: SupervisionConfig) -> None:
        self.freeing = Freeing()
        super().__init__(
            folder=folder,
            limits=limits,
            connect=self.freeing.connect,
            advertised="node.example:22301",
        )

    async def reply(self, subject: str, **request: object) -> dict[str, Any]:
        answer = await self.ask(subject, json.dumps(request).encode())
        assert answer is not None
        found: dict[str, Any] = json.loads(answer)
        return found

    async def stop(self, key: str, address: str, **more: object) -> dict[str, Any]:
        return await self.reply("model.stop", model_name="x", process_key=key, expected_address=address, **more)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """m1#0 at 22301, m1#1 at 22302, m2#0 at 22303."""
    write_backend(tmp_path / "backends", "mock", shell="exec sleep 1000")
    async with Rig(tmp_path, SupervisionConfig()) as rig:
        for model, replica in (("m1", 0), ("m1", 1), ("m2", 0)):
            await rig.install("mock", model, replica)
        yield rig


@pytest.mark.parametrize(
    ("request_", "ports"),
    [
        ({"model_name": "m1"}, [22301, 22302]),
        ({"model_name": "m2"}, [22303]),
        ({"model_name": "m1", "address": "127.0.0.1:22302"}, [22302]),
        ({"model_name": "m1", "address": "node.example:22302"}, [22302]),
        ({"model_name": "m1", "address": "127.0.0.1:22303"}, []),
        ({"model_name": "m1", "address": "127.0.0.1:1"}, []),
        ({"model_name": "m1", "address": "nonsense"}, []),
        ({"model_name": "nope"}, []),
        ({"model_name": ""}, []),
        ({"model_name": "mock"}, []),
    ],
)
async def test_only_what_is_meant_is_freed_and_goes_on(rig: Rig, request_: dict[str, str], ports: list[int]) -> None:
    assert await rig.reply("model.unload", **request_) == {"success": True}
    assert sorted(rig.freeing.freed) == [f"127.0.0.1:{port}" for port in ports]
    assert len(rig.running()) == 3


async def test_a_backend_that_cannot_free_is_no_failure(rig: Rig) -> None:
    rig.freeing.problem = CorralError("method Free not implemented")
    assert await rig.reply("model.unload", model_name="m1") == {"success": True}
    assert len(rig.running()) == 3


@pytest.mark.parametrize("address", ["127.0.0.1:22302", "node.example:22302", "[::1]:22302"])
async def test_a_process_is_stopped_exactly(rig: Rig, address: str) -> None:
    reply = await rig.stop("m1#1", address, config_revision="abc")
    told = {"process_key": "m1#1", "address": "127.0.0.1:22302"}
    assert reply == {"matched": True, "freed": True, "terminated": True, **told}
    assert sorted(rig.running()) == ["m1#0", "m2#0"]
    again = await rig.stop("m1#1", address)
    assert again == {"matched": False, "freed": False, "terminated": True, "process_key": "m1#1"}


async def test_a_backend_that_cannot_free_is_stopped_all_the_same(rig: Rig) -> None:
    rig.freeing.problem = CorralError("method Free not implemented")
    reply = await rig.stop("m1#1", "127.0.0.1:22302")
    assert reply.pop("error") == "freeing process m1#1: method Free not implemented"
    assert (reply["freed"], reply["terminated"]) == (False, True)


async def test_force_does_not_free(rig: Rig) -> None:
    reply = await rig.stop("m1#1", "127.0.0.1:22302", force=True)
    assert (reply["freed"], reply["terminated"], "error" in reply, rig.freeing.freed) == (False, True, False, [])


@pytest.mark.parametrize("address", ["", "127.0.0.1:22301", "node.example", "22302"])
async def test_another_address_means_another_process(rig: Rig, address: str) -> None:
    reply = await rig.stop("m1#1", address)
    error = f'address mismatch for process m1#1: recorded "127.0.0.1:22302", expected "{address}"'
    told = {"process_key": "m1#1", "address": "127.0.0.1:22302", "error": error}
    assert reply == {"matched": True, "freed": False, "terminated": False, **told}
    assert len(rig.running()) == 3


@pytest.mark.parametrize("key", ["m1", "m1#7", "", "#0", "m1#x", "m1#01", "M1#1"])
async def test_an_unknown_key_is_gone_already(rig: Rig, key: str) -> None:
    reply = await rig.stop(key, "127.0.0.1:22302")
    assert reply == {"matched": False, "freed": False, "terminated": True, "process_key": key}
    assert len(rig.running()) == 3


async def test_two_stops_at_once_are_both_told_of_the_end(rig: Rig) -> None:
    """Frontends ask again after ten seconds, when the first stop may still be going on."""
    rig.freeing.held = asyncio.Event()
    first = asyncio.create_task(rig.stop("m1#1", "127.0.0.1:22302"))
    await rig.freeing.inside.wait()
    second = asyncio.create_task(rig.stop("m1#1", "127.0.0.1:22302"))
    assert "m1#1" not in rig.running(), "what is being stopped serves nobody"
    rig.freeing.held.set()
    assert [(await one)["terminated"] for one in (first, second)] == [True, True]


async def test_one_that_does_not_end_is_said(tmp_path: Path) -> None:
    write_backend(tmp_path / "backends", "mock", shell="exec sleep 1000")
    async with Rig(tmp_path, SupervisionConfig()) as rig:
        await rig.install("mock", "m1")
        rig.freeing.held = asyncio.Event()
        reply = await without_waiting(asyncio.create_task(rig.stop("m1#0", "127.0.0.1:22301")))
        assert (reply["terminated"], reply["error"]) == (False, "process m1#0 did not end")
        again = asyncio.create_task(rig.reply("backend.install", backend="mock", model_id="m1"))
        assert "is stopping" in (await without_waiting(again))["error"]
        rig.freeing.held.set()
        assert (await rig.reply("backend.install", backend="mock", model_id="m1"))["success"]


@pytest.mark.parametrize("key", ["a#b", "ü/ñ 模型", "x" * 300, "-1", "a#1", " "])
async def test_any_name_may_be_a_model_s(rig: Rig, key: str) -> None:
    reply = await rig.reply("backend.install", backend="mock", model_id=key, replica_index=2)
    assert reply["success"], reply
    listed = (await rig.reply("models.running"))["models"]
    assert (key, 2) in [(one["model_id"], one["replica_index"]) for one in listed]
    port = next(one["address"] for one in listed if one["model_id"] == key)
    assert (await rig.stop(f"{key}#2", port))["terminated"]
    await rig.reply("backend.install", backend="mock", model_id=key)
    await rig.ask("backend.stop", json.dumps({"backend": key}).encode())
    assert len(rig.running()) == 3


async def test_a_key_is_not_taken_for_the_name_of_a_model(rig: Rig) -> None:
    """`m1#1` is a process of m1, and there is a model of that name as well."""
    await rig.install("mock", "m1#1")
    await rig.ask("backend.stop", b'{"backend":"m1#1"}')
    assert sorted(rig.running()) == ["m1#0", "m1#1#0", "m2#0"]
    await rig.ask("backend.stop", b'{"backend":"m1#1"}')
    assert sorted(rig.running()) == ["m1#0", "m2#0"]
