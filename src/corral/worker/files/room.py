"""Room on the disks: uploads that were let in count as if they were written already, so that two cannot be promised
the same room. Called from several threads."""

import threading
from collections import Counter
from collections.abc import Callable

from corral.worker.files import disk


class Room:
    def __init__(self, free_bytes: Callable[[int], int] = disk.free_bytes) -> None:
        self._free_bytes = free_bytes
        self._promised: Counter[int] = Counter()
        self._lock = threading.Lock()

    def free(self, directory: int, device: int) -> int:
        """Bytes that nobody was promised, on the disk of a directory."""
        with self._lock:
            return self._free_bytes(directory) - self._promised[device]

    def promise(self, device: int, count: int) -> "Promise":
        self.add(device, count)
        return Promise(self, device, count)

    def add(self, device: int, count: int) -> None:
        with self._lock:
            self._promised[device] += count


class Promise:
    """Bytes that one upload may still write. Written ones are on the disk and no longer promised."""

    def __init__(self, room: Room, device: int, count: int) -> None:
        self._room = room
        self._device = device
        self._left = count

    def use(self, count: int) -> None:
        used = min(count, self._left)
        self._left -= used
        self._room.add(self._device, -used)

    def close(self) -> None:
        self.use(self._left)
