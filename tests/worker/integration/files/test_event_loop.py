"""The file server never blocks the event loop: whatever may wait for a disk is done by other threads."""

import fcntl
import os
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from corral.worker.files.bodies import SHORTEST
from tests.kit.file_worker import FileWorker, open_file_worker

BLOCKING = [
    "chmod",
    "close",
    "fdatasync",
    "fstat",
    "fstatvfs",
    "fsync",
    "ftruncate",
    "link",
    "listdir",
    "lseek",
    "lstat",
    "mkdir",
    "open",
    "pread",
    "pwrite",
    "read",
    "remove",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "stat",
    "statvfs",
    "symlink",
    "sync",
    "truncate",
    "unlink",
    "utime",
    "write",
]
LARGE = os.urandom(SHORTEST + 1000)
SMALL = b"0123456789"


def is_the_workers(frame: FrameType | None) -> bool:
    """Does a part of the worker call, by itself or through a library?"""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("corral.worker."):
            return True
        frame = frame.f_back
    return False


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to the disk that the worker made in this thread, on which the event loop runs."""
    calls: list[str] = []
    own = threading.get_ident()

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == own and is_the_workers(sys._getframe(1)):
                calls.append(f"{name}{arguments}")
            return call(*arguments, **named)

        return watching

    for name in BLOCKING:
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    monkeypatch.setattr(fcntl, "flock", watched("flock", fcntl.flock))
    return calls


def ranged(data: bytes, start: int, end: int) -> dict[str, str]:
    return {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}", "X-Content-SHA256": sha256(data).hexdigest()}


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_files_are_received_and_served_by_other_threads(
    worker: FileWorker, on_the_loop: list[str], data: bytes
) -> None:
    half = len(data) // 2
    path = "/v1/files/models/a/b"
    statuses = [
        (await worker.ask("PUT", path, body=data)).status,
        (await worker.ask("PUT", path, body=data[:half][::-1], headers=ranged(data[::-1], 0, half))).status,
        (await worker.ask("HEAD", path)).status,
        (await worker.ask("PUT", path, body=data[half:], headers=ranged(data, half, len(data)))).status,
        (await worker.ask("PUT", path, body=data, headers=ranged(data, 0, len(data)))).status,
        (await worker.ask("PUT", path, body=data[:half], headers=ranged(data, 5, half + 5))).status,
        (await worker.ask("HEAD", path)).status,
        (await worker.ask("GET", path)).status,
        (await worker.ask("GET", "/v1/corral/files/models/a/b", headers={"Range": "bytes=2-4"})).status,
        (await worker.ask("GET", "/v1/files-list/models/a")).status,
        (await worker.ask("POST", "/v1/files/temp")).status,
    ]

    assert statuses == [200, 308, 200, 409, 200, 416, 200, 200, 206, 200, 200]
    assert on_the_loop == []


async def test_a_file_server_begins_and_ends_in_other_threads(tmp_path: Path, on_the_loop: list[str]) -> None:
    """With what an earlier life left to be removed, and a file that has to reach the disk."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / ".corral-new-1").write_bytes(b"")
    async with open_file_worker(tmp_path) as worker:
        await worker.ask("PUT", "/v1/files/models/f", body=SMALL)

    assert on_the_loop == []
