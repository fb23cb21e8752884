"""Downloads blobs into a cache directory, resumes interrupted downloads, and verifies digests.

Content is hashed while it arrives. A final name exists only for a complete, verified blob; a blob of an earlier run
is hashed again before it is used, since a crash may have damaged it. Several processes may share the directory: the
one that downloads holds a lock on the partial file.
"""

import fcntl
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from corral.base.clock import Clock
from corral.base.tasks import in_thread
from corral.oci.errors import ContentMismatch, LimitExceeded, RegistryUnavailable
from corral.oci.http import RegistryResponse
from corral.oci.limits import FetchRetries, Network
from corral.oci.references import Hash, feed_file, new_hash

_BATCH_BYTES: Final = 1024 * 1024
_LOOK_SECONDS: Final = 0.2
UNFINISHED: Final = ".part"
_RANGE: Final = re.compile(r"bytes (\d{1,18})-")


class WantedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob to download, and what its content must be."""

    key: str
    """File name in the cache."""
    digest: str
    """Expected digest. Empty: unknown, and then a partial download cannot be resumed."""
    size: int | None
    """Size in bytes; None: unknown."""
    most: int
    """Maximum size; a larger blob is refused whatever size was announced."""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a response that is being received."""

    start: int
    """Offset of the first byte: the requested one, or 0."""
    length: int | None
    """Announced length in bytes."""
    pieces: AsyncIterator[bytes]


Opener = Callable[[int], AbstractAsyncContextManager[Body]]
"""Requests the content from an offset on."""


async def body_of(answer: RegistryResponse, offset: int, name: str, network: Network) -> Body:
    """Return the body of a response to a ranged request. Raise the error that its status stands for."""
    if answer.status == 416:
        raise ContentMismatch(f"{name}: the server has nothing beyond byte {offset}")
    if answer.status not in (200, 206):
        raise await answer.problem(name)
    stated = _RANGE.match(answer.header("Content-Range")) if answer.status == 206 else None
    start = int(stated[1]) if stated else 0
    if answer.status == 206 and (stated is None or start != offset):
        raise ContentMismatch(f"{name}: the server gave another part than the one from byte {offset}")
    pieces = answer.pieces(stall_seconds=network.stall_seconds, stall_bytes=network.stall_bytes)
    return Body(start=start, length=answer.length, pieces=pieces)


class BlobCache:
    """A cache directory of blobs."""

    def __init__(self, folder: Path, *, network: Network, clock: Clock) -> None:
        self._folder = folder
        self._network = network
        self._clock = clock

    async def get(self, blob: WantedBlob, opener: Opener, on_position: Callable[[int], None]) -> BinaryIO:
        """Return the complete, verified content as an open file. It stays readable when the name is removed."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            if (file := await in_thread(lambda: self._finished(blob))) is not None:
                on_position(os.fstat(file.fileno()).st_size)
                return file
            async with self._unfinished(blob) as draft:
                if draft is None or (blob.digest and self._final(blob).exists()):
                    continue  # somebody else finished it: while this waited for the lock, or right after the look
                download = _Download(blob, draft, on_position)
                await download.run(opener, FetchRetries(self._network, self._clock), self._network.restarts)
                os.rename(self._part(blob), self._final(blob))
                fcntl.flock(draft, fcntl.LOCK_UN)  # the duplicate would hold the lock until it is closed
                return os.fdopen(os.dup(draft.fileno()), "rb")

    def forget(self, blob: WantedBlob) -> None:
        """Remove the blob and its partial download."""
        for path in (self._final(blob), self._part(blob)):
            path.unlink(missing_ok=True)

    def missing_bytes(self, blob: WantedBlob) -> int:
        """Return how many bytes still have to be downloaded."""
        for path in (self._final(blob), self._part(blob)):
            if path.exists():
                return max((blob.size or 0) - path.stat().st_size, 0)
        return blob.size or 0

    def _finished(self, blob: WantedBlob) -> BinaryIO | None:
        """Open the cached blob if its content still has the right digest; remove it otherwise."""
        if not blob.digest:
            return None
        try:
            file = self._final(blob).open("rb")
        except FileNotFoundError:
            return None
        hashed = new_hash(blob.digest)
        feed_file(hashed, file)
        if blob.digest.endswith(f":{hashed.hexdigest()}"):
            return file
        file.close()
        self._final(blob).unlink(missing_ok=True)
        return None

    @asynccontextmanager
    async def _unfinished(self, blob: WantedBlob) -> AsyncIterator[BinaryIO | None]:
        """Open the partial file and hold its lock. Yield None when the file was finished or removed meanwhile."""
        path = self._part(blob)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as draft:
            while True:
                try:
                    fcntl.flock(draft, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # another process downloads this blob, and its lock has no event
                    await self._clock.sleep(_LOOK_SECONDS)
            try:
                yield draft if _is_still(path, draft) else None
            finally:
                if _is_still(path, draft) and not os.fstat(draft.fileno()).st_size:
                    path.unlink()

    def _final(self, blob: WantedBlob) -> Path:
        return self._folder / blob.key

    def _part(self, blob: WantedBlob) -> Path:
        return self._folder / f"{blob.key}{UNFINISHED}"


def prune(folder: Path, *, before: float, ending: str = "") -> None:
    """Remove blobs last written before this time (seconds since the epoch); with `UNFINISHED` as their ending, only
    partial downloads."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.endswith(ending) and path.is_file() and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)


def _is_still(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


class _Download:
    """One download into a partial file."""

    def __init__(self, blob: WantedBlob, draft: BinaryIO, on_position: Callable[[int], None]) -> None:
        self._blob = blob
        self._draft = draft
        self._on_position = on_position
        self._size = 0
        self._hash = self._new_hash()

    def _new_hash(self) -> Hash:
        return new_hash(self._blob.digest or "sha256:")

    async def run(self, opener: Opener, patience: FetchRetries, restarts: int) -> None:
        """Download until the content is complete and verified. Retry what is retryable; empty the file on a wrong
        digest."""
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
        try:
            self._check()  # the file was complete from the start
        except ContentMismatch:
            self._start_over()
            raise

    def _take_up(self) -> None:
        """Resume a partial download if the digest is known, so that the result can be verified."""
        draft_bytes = os.fstat(self._draft.fileno()).st_size
        if not self._blob.digest or (self._blob.size is not None and draft_bytes > self._blob.size):
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
        if body.length is not None:
            end = body.start + body.length
            if self._blob.size is not None and end != self._blob.size:
                raise ContentMismatch(f"{self._blob.key}: {end} bytes are announced where {self._blob.size} belong")
            self._check_not_beyond(end)
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
            await self._store(batch)  # store the bytes of a failed attempt too: the next one resumes here
        if body.length is not None and self._blob.size is None and self._size < body.start + body.length:
            raise RegistryUnavailable(f"{self._blob.key}: the answer broke off")

    async def _store(self, batch: list[bytes]) -> None:
        if not batch:
            return
        data = b"".join(batch)
        batch.clear()
        await in_thread(lambda: self._write(data))

    def _write(self, data: bytes) -> None:
        unwritten = memoryview(data)
        while unwritten:
            written = self._draft.write(unwritten)
            self._hash.update(unwritten[:written])
            self._size += written
            unwritten = unwritten[written:]

    def _is_complete(self) -> bool:
        return self._blob.size is not None and self._size == self._blob.size

    def _is_right(self) -> bool:
        return not self._blob.digest or self._blob.digest.endswith(f":{self._hash.hexdigest()}")

    def _check_not_beyond(self, size: int) -> None:
        if self._blob.size is not None and size > self._blob.size:
            raise ContentMismatch(f"{self._blob.key}: more than {self._blob.size} bytes came")
        if size > self._blob.most:
            raise LimitExceeded(f"{self._blob.key}: more than {self._blob.most} bytes came")

    def _check(self) -> None:
        if self._blob.size is not None and not self._is_complete():
            raise RegistryUnavailable(f"{self._blob.key}: only {self._size} of {self._blob.size} bytes came")
        if not self._is_right():
            actual = self._hash.hexdigest()
            raise ContentMismatch(f"what came for {self._blob.digest} has the digest {actual}")
