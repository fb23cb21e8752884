"""A gate in front of the hash of files of the models directory: threads wait there until the test lets them go on."""

import asyncio
import threading

import pytest

from corral.files.sending import FileMark
from corral.frontend.models import local_files
from tests.kit.waiting import within_timeout


class HeldHash:
    """Files are hashed only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        """How many hashes were begun."""
        self._begun = threading.Semaphore(0)
        self._hash = local_files._hash
        self._may_end = threading.Event()
        monkeypatch.setattr(local_files, "_hash", self._hash_later)

    def _hash_later(self, path: str, descriptor: int, mark: FileMark, stop: threading.Event) -> str:
        self.count += 1
        self._begun.release()
        self._may_end.wait()
        return self._hash(path, descriptor, mark, stop)

    async def until_begun(self) -> None:
        """Wait until one more hash was begun."""
        await within_timeout(asyncio.to_thread(self._begun.acquire), lambda: "a hash to be begun")

    def end(self) -> None:
        """Let all hashes be computed, also those that are asked for later."""
        self._may_end.set()
