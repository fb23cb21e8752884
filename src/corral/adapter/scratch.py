"""Files between the adapter and backends on the same machine: sounds go to and fro by path, as the contract wants it.

Every request has a directory of its own, which only this user can enter and which ends with the request. The names in
it are ours, so nothing that a client says becomes a path. What a killed adapter leaves is removed by the next one: a
living one holds a lock on its directory.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Self

from corral.base.errors import CorralError

_PREFIX: Final = "corral-adapter-"
_LOCK: Final = ".lock"
_READ_BYTES: Final = 256 * 1024


class ScratchNotUsable(CorralError):
    """There is no room for the sound on the worker's machine."""

    code = "scratch_not_usable"


class Scratch:
    """Made when it is first needed."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        self._home: Path | None = None
        self._lock: BinaryIO | None = None
        self._making = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._remove)

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """An empty directory for one request."""
        made = await asyncio.to_thread(self._make)
        try:
            yield made
        finally:
            await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)

    def _make(self) -> Path:
        with told_as_ours(), self._making:
            if self._home is None or not self._home.is_dir():  # some systems clean up, too
                self._release()
                _sweep(self._parent)
                home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
                self._lock = _held(home)
                self._home = home
            return Path(tempfile.mkdtemp(dir=self._home))

    def _remove(self) -> None:
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@contextmanager
def told_as_ours() -> Iterator[None]:
    """A full disk is not the client's fault, and no programming error."""
    try:
        yield
    except OSError as error:
        raise ScratchNotUsable(f"there is no room for the sound on the worker's machine: {error.strerror}") from error


def size_of(file: Path) -> int:
    """0 where nothing was written. A link is not what was asked for."""
    with told_as_ours():
        return file.lstat().st_size if file.is_file() and not file.is_symlink() else 0


async def read_parts(file: Path) -> AsyncGenerator[bytes, None]:
    """What a backend wrote, if it did. A link in its place is not followed."""

    def opened() -> BinaryIO | None:
        with suppress(FileNotFoundError):
            return os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb")
        return None

    with told_as_ours():
        content = await asyncio.to_thread(opened)
        if content is None:
            return
        try:
            while part := await asyncio.to_thread(content.read, _READ_BYTES):
                yield part
        finally:
            content.close()


def _held(home: Path) -> BinaryIO:
    lock = (home / _LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _sweep(parent: Path) -> None:
    """Directories of ours that nobody holds any more. One without its lock is being made at this moment, or gone."""
    for home in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if home.is_symlink() or home.stat().st_uid != os.getuid():
                continue
            with (home / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
