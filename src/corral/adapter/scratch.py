"""Temporary files that the adapter shares with backends on the same machine: the gRPC contract passes audio by path.

Every request has its own private directory, which is deleted with the request. File names in it are generated, so
nothing that a client sends becomes a path. Directories of a killed adapter are removed by the next one: a running
adapter holds a lock on its directory.
"""

import asyncio
import fcntl
import os
import shutil
import stat
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
    """The adapter's temporary directory, created on first use."""

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
    async def folder(self, shared: str = "") -> AsyncIterator[Path]:
        """Yield an empty directory for one request, inside of one that is shared with the backend, if there is one."""
        folder = await asyncio.to_thread(_make_shared, Path(shared)) if shared else await asyncio.to_thread(self._make)
        try:
            yield folder
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _make(self) -> Path:
        with disk_errors(), self._making:
            if self._home is None or not self._home.is_dir():  # some systems delete old temporary files
                self._release()
                _sweep(self._parent)
                home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
                self._lock = (home / _LOCK).open("wb")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _make_shared(parent: Path) -> Path:
    """Make a directory that the group of `parent` may use as well: a confined backend is a user of its own."""
    with disk_errors():
        folder = Path(tempfile.mkdtemp(dir=parent))
        group = parent.stat().st_gid
        if group != folder.stat().st_gid:
            os.chown(folder, -1, group)
            folder.chmod(0o770)
        return folder


@contextmanager
def disk_errors() -> Iterator[None]:
    """Translate OSError: a full disk is neither the client's fault nor a programming error."""
    try:
        yield
    except OSError as error:
        raise ScratchNotUsable(f"there is no room for the sound on the worker's machine: {error.strerror}") from error


def size_of(file: Path) -> int:
    """Return the size of a regular file, or 0 when nothing was written. Symbolic links are not followed."""
    with disk_errors():
        return file.lstat().st_size if file.is_file() and not file.is_symlink() else 0


async def read_parts(file: Path) -> AsyncGenerator[bytes, None]:
    """Yield the content of a regular file that a backend wrote. Symbolic links are not followed."""

    def opened() -> BinaryIO | None:
        with suppress(FileNotFoundError):
            content = os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
            if stat.S_ISREG(os.fstat(content.fileno()).st_mode):
                return content
            content.close()
        return None

    with disk_errors():
        content = await asyncio.to_thread(opened)
        if content is None:
            return
        try:
            while part := await asyncio.to_thread(content.read, _READ_BYTES):
                yield part
        finally:
            content.close()


def _sweep(parent: Path) -> None:
    """Remove directories of adapters that are gone. One without a lock file is being created or deleted right now."""
    for home in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if home.is_symlink() or home.stat().st_uid != os.getuid():
                continue
            with (home / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
