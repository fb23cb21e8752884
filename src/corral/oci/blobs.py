"""Fetches content into a directory, where it is known by its digest, and goes on where an earlier attempt ended.

Content is hashed while it comes. Under its final name there is only what was whole and right; what lies there from an
earlier life is hashed again before it is used, since a crash may have left anything. Several processes may share the
directory: whoever fetches holds a lock on the unfinished file.
"""

import fcntl
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from corral.base.clock import Clock
from corral.base.threads import in_thread
from corral.oci.errors import ContentMismatch, LimitExceeded, RegistryUnavailable
from corral.oci.http import RegistryResponse
from corral.oci.network import FetchRetries, Network
from corral.oci.references import Hash, feed_file, new_hash

_BATCH_BYTES: Final = 1024 * 1024
_LOOK_SECONDS: Final = 0.2
_UNFINISHED: Final = ".part"
_RANGE: Final = re.compile(r"bytes (\d{1,18})-")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedBlob:
    """A piece of content."""

    key: str
    """Under which it is kept."""
    digest: str
    """Empty: not known, and then an unfinished file cannot be gone on with."""
    size: int | None
    """None: not known."""
    most: int
    """More than this is not taken, whatever was announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Content on its way."""

    start: int
    """From where on: what was asked for, or 0."""
    length: int | None
    """How many bytes are announced."""
    pieces: AsyncIterator[bytes]


Opener = Callable[[int], AbstractAsyncContextManager[Body]]
"""Asks for content from an offset on."""


async def body_of(answer: RegistryResponse, offset: int, what: str, network: Network) -> Body:
    """What an answer to such a question holds; raises what its status means."""
    if answer.status == 416:
        raise ContentMismatch(f"{what}: the server has nothing beyond byte {offset}")
    if answer.status not in (200, 206):
        raise await answer.problem(what)
    stated = _RANGE.match(answer.header("Content-Range")) if answer.status == 206 else None
    start = int(stated[1]) if stated else 0
    if answer.status == 206 and (stated is None or start != offset):
        raise ContentMismatch(f"{what}: the server gave another part than the one from byte {offset}")
    pieces = answer.pieces(stall_seconds=network.stall_seconds, stall_bytes=network.stall_bytes)
    return Body(start=start, length=answer.length, pieces=pieces)


class BlobCache:
    """A directory of content."""

    def __init__(self, folder: Path, *, network: Network, clock: Clock) -> None:
        self._folder = folder
        self._network = network
        self._clock = clock

    async def get(self, wanted: WantedBlob, opener: Opener, on_position: Callable[[int], None]) -> BinaryIO:
        """The whole content as an open file; what happens to its name afterwards does not matter."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            if (file := await in_thread(lambda: self._finished(wanted))) is not None:
                on_position(os.fstat(file.fileno()).st_size)
                return file
            async with self._unfinished(wanted) as draft:
                if draft is None:
                    continue  # somebody finished it meanwhile
                download = _Download(wanted, draft, on_position)
                await download.run(opener, FetchRetries(self._network, self._clock), self._network.restarts)
                os.rename(self._part(wanted), self._final(wanted))
                return os.fdopen(os.dup(draft.fileno()), "rb")

    def forget(self, wanted: WantedBlob) -> None:
        """Remove what there is of it."""
        for path in (self._final(wanted), self._part(wanted)):
            path.unlink(missing_ok=True)

    def missing_bytes(self, wanted: WantedBlob) -> int:
        """How much room fetching it will take."""
        for path in (self._final(wanted), self._part(wanted)):
            if path.exists():
                return max((wanted.size or 0) - path.stat().st_size, 0)
        return wanted.size or 0

    def _finished(self, wanted: WantedBlob) -> BinaryIO | None:
        """What is there under its final name, if it still is what it should be."""
        if not wanted.digest:
            return None
        try:
            file = self._final(wanted).open("rb")
        except FileNotFoundError:
            return None
        hashed = new_hash(wanted.digest)
        feed_file(hashed, file)
        if wanted.digest.endswith(f":{hashed.hexdigest()}"):
            return file
        file.close()
        self._final(wanted).unlink(missing_ok=True)
        return None

    @asynccontextmanager
    async def _unfinished(self, wanted: WantedBlob) -> AsyncIterator[BinaryIO | None]:
        """The unfinished file, ours alone; None when it is not there any more once we have it."""
        path = self._part(wanted)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as draft:
            while not _lock(draft):
                await self._clock.sleep(_LOOK_SECONDS)  # another process fetches the same: there is nothing to wait on
            try:
                yield draft if _is_still(path, draft) else None
            finally:
                if _is_still(path, draft) and not os.fstat(draft.fileno()).st_size:
                    path.unlink()

    def _final(self, wanted: WantedBlob) -> Path:
        return self._folder / wanted.key

    def _part(self, wanted: WantedBlob) -> Path:
        return self._folder / f"{wanted.key}{_UNFINISHED}"


def prune(folder: Path, *, before: float) -> None:
    """Remove what was last written before that time, in seconds: nobody came back for it."""
    _prune(folder, before, ending="")


def prune_unfinished(folder: Path, *, before: float) -> None:
    """The same for what is not whole."""
    _prune(folder, before, ending=_UNFINISHED)


def _prune(folder: Path, before: float, *, ending: str) -> None:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name.endswith(ending) and path.is_file() and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


class _Download:
    """One piece of content on its way into a file."""

    def __init__(self, wanted: WantedBlob, draft: BinaryIO, on_position: Callable[[int], None]) -> None:
        self._wanted = wanted
        self._draft = draft
        self._on_position = on_position
        self._size = 0
        self._hash = self._new_hash()

    def _new_hash(self) -> Hash:
        return new_hash(self._wanted.digest or "sha256:")

    async def run(self, opener: Opener, patience: FetchRetries, restarts: int) -> None:
        """Until all is there and right. Retries what is worth it; a file that is not right is emptied."""
        await in_thread(self._take_up)
        while not self._is_complete():
            before = self._size
            try:
                async with opener(self._size) as body:
                    await self._receive(body)
                self._check()
                return
            except RegistryUnavailable as error:
                if self._size > before:
                    patience.forget()
                await patience.after(error)
            except ContentMismatch:
                self._start_over()
                restarts -= 1
                if restarts <= 0:
                    raise
        self._check_or_empty()

    def _take_up(self) -> None:
        """Go on after what an earlier attempt left, if that can be checked in the end."""
        there = os.fstat(self._draft.fileno()).st_size
        if not self._wanted.digest or (self._wanted.size is not None and there > self._wanted.size):
            self._start_over()
            return
        self._draft.seek(0)
        self._size = feed_file(self._hash, self._draft)
        self._on_position(self._size)
        if self._is_complete() and not self._is_right():
            self._start_over()

    def _start_over(self) -> None:
        self._draft.seek(0)
        self._draft.truncate(0)
        self._size, self._hash = 0, self._new_hash()

    async def _receive(self, body: Body) -> None:
        if body.start != self._size:
            self._start_over()
        self._check_announced(body)
        batch: list[bytes] = []
        gathered = 0
        try:
            async for piece in body.pieces:
                batch.append(piece)
                gathered += len(piece)
                self._check_not_beyond(self._size + gathered)
                self._on_position(self._size + gathered)
                if gathered >= _BATCH_BYTES:
                    await self._store(batch)
                    gathered = 0
        finally:
            await self._store(batch)  # also of an attempt that broke off: the next one goes on from here
        if body.length is not None and self._wanted.size is None and self._size < body.start + body.length:
            raise RegistryUnavailable(f"{self._wanted.key}: the answer broke off")

    async def _store(self, batch: list[bytes]) -> None:
        if not batch:
            return
        data = b"".join(batch)
        batch.clear()
        await in_thread(lambda: self._write(data))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = self._draft.write(rest)
            self._hash.update(rest[:written])
            self._size += written
            rest = rest[written:]

    def _is_complete(self) -> bool:
        return self._wanted.size is not None and self._size == self._wanted.size

    def _is_right(self) -> bool:
        return not self._wanted.digest or self._wanted.digest.endswith(f":{self._hash.hexdigest()}")

    def _check_announced(self, body: Body) -> None:
        if body.length is None:
            return
        end = body.start + body.length
        if self._wanted.size is not None and end != self._wanted.size:
            raise ContentMismatch(f"{self._wanted.key}: {end} bytes are announced where {self._wanted.size} belong")
        self._check_not_beyond(end)

    def _check_not_beyond(self, size: int) -> None:
        if self._wanted.size is not None and size > self._wanted.size:
            raise ContentMismatch(f"{self._wanted.key}: more than {self._wanted.size} bytes came")
        if size > self._wanted.most:
            raise LimitExceeded(f"{self._wanted.key}: more than {self._wanted.most} bytes came")

    def _check(self) -> None:
        if self._wanted.size is not None and not self._is_complete():
            raise RegistryUnavailable(f"{self._wanted.key}: only {self._size} of {self._wanted.size} bytes came")
        if not self._is_right():
            found = self._hash.hexdigest()
            raise ContentMismatch(f"what came for {self._wanted.digest} has the digest {found}")

    def _check_or_empty(self) -> None:
        """For what was complete from the start."""
        try:
            self._check()
        except ContentMismatch:
            self._start_over()
            raise
