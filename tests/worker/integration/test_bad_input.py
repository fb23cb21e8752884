"""What a worker answers to what it cannot read or do: every row of the protocol's table, exactly."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.base.errors import MessageTooLarge
from corral.bus.port import Message
from corral.oci.config import ImagesConfig
from corral.worker.handlers import replying
from corral.worker.installing.image_source import Pulls, UriSource
from tests.kit.backend_node import SleepingNode
from tests.kit.backend_scripts import write_backend

UNREADABLE = [b"", b"{", b"[]", b"5", b'"text"', b"\xff", b"{}x", b"true"]
REPORTS = {"reports_stopped_processes": True}
FAILED = {"success": False}
NOT_STOPPED = {"matched": False, "freed": False, "terminated": False, "process_key": ""}
TERMINATED = {"matched": False, "freed": False, "terminated": True}
INVALID = "invalid request: "
FROM_GALLERY = "installing backend from gallery: "
UPGRADING = "upgrading backend from gallery: "
GALLERIES = "decoding backend galleries: "


class Mute:
    freed = 0

    async def health(self, *, timeout: timedelta) -> None: ...

    async def free(self, *, timeout: timedelta) -> None:
        Mute.freed += 1

    async def close(self) -> None: ...


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SleepingNode]:
    """A worker with one backend of its own and one of the system, and one process."""

    Mute.freed = 0
    write_backend(tmp_path / "backends", "mock", shell="exec sleep 1000")
    write_backend(tmp_path / "system", "sysmock", shell="exec sleep 1000")
    (tmp_path / "models" / "m").mkdir(parents=True)
    async with SleepingNode(
        folder=tmp_path,
        connect=lambda *_: Mute(),
        system=tmp_path / "system",
        sources=[UriSource(Pulls(ImagesConfig(), cache=tmp_path / "layers"))],
    ) as node:
        await node.install("mock", "m1")
        yield node


def unreadable(subject: str, rest: dict[str, Any], error: str) -> list[Any]:
    return [pytest.param(subject, data, rest, error, id=f"{subject} {data!r}") for data in UNREADABLE]


def row(subject: str, data: bytes, rest: dict[str, Any], error: str = "") -> Any:
    return pytest.param(subject, data, rest, error, id=f"{subject} {data!r}")


ROWS = [
    *unreadable("backend.install", FAILED, INVALID),
    row("backend.install", b'{"backend":5}', FAILED, f"{INVALID}backend: "),
    row("backend.install", b'{"backend":"mock","replica_index":"0"}', FAILED, f"{INVALID}replica_index: "),
    row("backend.install", b'{"backend":"mock","replica_index":2147483648}', FAILED, f"{INVALID}replica_index: "),
    row("backend.install", b'{"backend":"mock","force":1}', FAILED, f"{INVALID}force: "),
    row("backend.install", b"null", FAILED, f"{FROM_GALLERY}backend name is empty"),
    row("backend.install", b"{}", FAILED, f"{FROM_GALLERY}backend name is empty"),
    row("backend.install", b'{"backend":"nope"}', FAILED, f'{FROM_GALLERY}no backend found with name "nope"'),
    row("backend.install", b'{"backend":"../evil"}', FAILED, f'{FROM_GALLERY}no backend found with name "../evil"'),
    row("backend.install", b'{"backend":"mock","backend_galleries":"{"}', FAILED, GALLERIES),
    row("backend.install", b'{"backend":"mock","backend_galleries":"{}"}', FAILED, GALLERIES),
    row("backend.install", b'{"backend":"mock","backend_galleries":"[5]"}', FAILED, GALLERIES),
    row("backend.install", b'{"uri":"oci://h/x:1"}', FAILED, f"{FROM_GALLERY}specifying a name is required for OCI"),
    *unreadable("backend.upgrade", FAILED, INVALID),
    row("backend.upgrade", b"null", FAILED | REPORTS, f"{UPGRADING}backend name is empty"),
    row("backend.upgrade", b'{"backend":"nope"}', FAILED | REPORTS, f'{UPGRADING}no backend found with name "nope"'),
    row("backend.upgrade", b'{"backend":"sysmock"}', FAILED | REPORTS, f'{UPGRADING}no backend found with name "sys'),
    row(
        "backend.upgrade",
        b'{"backend":"mock","backend_galleries":"{"}',
        FAILED | REPORTS | {"stopped_process_keys": ["m1#0"]},
        GALLERIES,
    ),
    *unreadable("backend.delete", FAILED, INVALID),
    row("backend.delete", b"null", FAILED | REPORTS, 'backend "": backend not found'),
    row("backend.delete", b'{"backend":".."}', FAILED | REPORTS, 'backend "..": backend not found'),
    row("backend.delete", b'{"backend":"../models"}', FAILED | REPORTS, 'backend "../models": backend not found'),
    row("backend.delete", b'{"backend":"sysmock"}', FAILED | REPORTS, 'system backend "sysmock" cannot be deleted'),
    *unreadable("model.unload", FAILED, INVALID),
    row("model.unload", b'{"address":5}', FAILED, f"{INVALID}address: "),
    row("model.unload", b"null", {"success": True}),
    row("model.unload", b"{}", {"success": True}),
    *unreadable("model.stop", NOT_STOPPED, INVALID),
    row("model.stop", b"null", TERMINATED | {"process_key": ""}),
    row("model.stop", b"{}", TERMINATED | {"process_key": ""}),
    row("model.stop", b'{"process_key":"m1#00"}', TERMINATED | {"process_key": "m1#00"}),
    *[
        pytest.param("model.delete", data, FAILED, "invalid request", id=f"model.delete {data!r}")
        for data in UNREADABLE
    ],
    row("model.delete", b"null", FAILED, "empty model name"),
    row("model.delete", b"{}", FAILED, "empty model name"),
    row("model.delete", b'{"model_name":"../data"}', FAILED, 'model name "../data" escapes models directory'),
]


@pytest.mark.parametrize(("subject", "data", "rest", "error"), ROWS)
async def test_every_row(node: SleepingNode, subject: str, data: bytes, rest: dict[str, Any], error: str) -> None:
    answer = await node.ask(subject, data)
    assert answer is not None
    reply = json.loads(answer)
    said = reply.pop("error", "")
    assert reply == rest
    assert said.startswith(error)
    assert bool(said) == bool(error)
    if error == "invalid request":
        assert said == error
    assert Mute.freed == 0, "no process was touched that nobody named"
    assert node.running() == ([] if "stopped_process_keys" in rest else ["m1#0"])


@pytest.mark.parametrize("data", [b"%%%", b"", b"null", b"[]"])
async def test_some_subjects_never_look_at_what_is_sent(node: SleepingNode, data: bytes) -> None:
    for subject, name in (("backend.list", "backends"), ("models.running", "models")):
        answer = await node.ask(subject, data)
        assert answer is not None
        assert set(json.loads(answer)) == {name}


@pytest.mark.parametrize(("data", "left"), [(b"", []), (b"null", []), (b"{}", []), (b"{bad", 1), (b"[]", 1), (b"5", 1)])
async def test_a_stop_is_never_answered(node: SleepingNode, data: bytes, left: object) -> None:
    assert await node.ask("backend.stop", data) is None
    assert node.running() == (["m1#0"] if left else [])


# The answer itself.


class Odd(msgspec.Struct):
    error: str


class Wire:
    """What a handler's answers become."""

    def __init__(self, most: int = 1000) -> None:
        self.sent: list[bytes] = []
        self._most = most

    async def reply(self, _: str, data: bytes) -> None:
        if len(data) > self._most:
            raise MessageTooLarge(subject="x", bytes=len(data), most=self._most)
        self.sent.append(data)

    def message(self) -> Message:
        return Message(subject="nodes.n.x", data=b"", reply_to="inbox", reply=self.reply)


async def test_an_answer_that_cannot_be_written_is_said_in_localai_s_words() -> None:
    async def answer(_: Message) -> Odd:
        return Odd("\ud800")

    wire = Wire()
    await replying(answer, Odd)(wire.message())
    assert wire.sent == [b'{"error":"internal marshal error"}']


async def test_an_unexpected_failure_is_answered_too() -> None:
    async def answer(_: Message) -> Odd:
        raise ZeroDivisionError

    wire = Wire()
    await replying(answer, Odd)(wire.message())
    assert json.loads(wire.sent[0]) == {"error": "internal error; see the worker's log"}


async def test_a_disk_that_fails_is_named() -> None:
    async def answer(_: Message) -> Odd:
        raise PermissionError(13, "Permission denied", "/x/y")

    wire = Wire()
    await replying(answer, Odd)(wire.message())
    assert json.loads(wire.sent[0]) == {"error": "/x/y: Permission denied"}


async def test_an_answer_that_is_too_large_becomes_an_error() -> None:
    async def answer(_: Message) -> Odd:
        return Odd("x" * 2000)

    wire = Wire()
    await replying(answer, Odd)(wire.message())
    assert json.loads(wire.sent[0]) == {"error": "the answer is too large for NATS"}
