"""Brings received files safely to disk, one after another, after their senders were answered.

One thread of its own that nobody waits for: writing gigabytes back may take minutes, and must delay neither an answer
nor the end of the worker. What it does not get to only has to be hashed once more, see `hashes.py`.
"""

import logging
import os
import queue
import threading
from dataclasses import dataclass
from typing import Final

from corral.base.open_directories import look
from corral.worker.files import disk, hashes
from corral.worker.files.names import hash_name

log = logging.getLogger(__name__)

_END_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Received:
    """Descriptors of its own, closed when it is done."""

    directory: int
    name: str
    file: int

    def close(self) -> None:
        os.close(self.directory)
        os.close(self.file)


class Settling:
    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Received | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, directory: int, name: str, file: int) -> None:
        """Take care of a file from now on; the caller's descriptors stay the caller's."""
        with self._lock:
            if self._is_closed:
                return
            self._waiting.put(_Received(os.dup(directory), name, os.dup(file)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="corral-files-settling", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait for everything that was added so far."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def close(self) -> None:
        """Begin nothing more. Waits a moment for what is being written, and no longer."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._drop_waiting()
        if thread is not None:
            self._waiting.put(None)
            thread.join(_END_SECONDS)

    def _drop_waiting(self) -> None:
        while True:
            try:
                received = self._waiting.get_nowait()
            except queue.Empty:
                return
            if received is not None:
                received.close()

    def _run(self) -> None:
        while (received := self._waiting.get()) is not None:
            try:
                _settle(received)
            except OSError as error:
                log.warning(
                    "cannot bring %s to disk: %s", received.name, error.strerror, extra={"event": "files.not_settled"}
                )
            finally:
                received.close()


def _settle(received: _Received) -> None:
    os.fsync(received.file)
    os.fsync(received.directory)
    if disk.is_still(received.directory, received.name, received.file) and look(
        received.directory, hash_name(received.name)
    ):
        hashes.confirm(received.directory, received.name)
