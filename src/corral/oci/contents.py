"""What an image is to whoever unpacks it: layers that can be opened, wherever they come from."""

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from corral.oci.blobs import BlobCache, Opener, WantedBlob
from corral.oci.digests import feed_file, new_hash
from corral.oci.errors import ContentMismatch
from corral.oci.patience import in_thread


class Layer(Protocol):
    """One archive of an image."""

    @property
    def size(self) -> int | None:
        """In compressed bytes; None: not known before it is there."""

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine already, so that nothing is downloaded."""

    async def open(self, on_position: Callable[[int], None]) -> BinaryIO:
        """Fetch it if need be; returns when it is whole and right."""

    def missing_bytes(self) -> int:
        """How much room fetching it will take."""

    def forget(self) -> None:
        """Remove what was fetched of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a source turned out to be."""

    name: str
    """For people."""
    layers: Sequence[Layer]
    digest: str = ""
    """Of what the name stood for: of the index, where there is one. Empty: nobody knows."""
    platform_digest: str = ""
    """Of the image for this machine; the same where there is no index."""
    has_whiteouts: bool = True
    """False for archives that are no layers."""
    directory: Path | None = field(default=None)
    """Set for a directory that is copied; there are no layers then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLayer:
    """Content that comes over the network."""

    wanted: WantedBlob
    cache: BlobCache
    opener: Opener = field(compare=False)
    is_local: bool = False

    @property
    def size(self) -> int | None:
        return self.wanted.size

    async def open(self, on_position: Callable[[int], None]) -> BinaryIO:
        return await self.cache.get(self.wanted, self.opener, on_position)

    def missing_bytes(self) -> int:
        return self.cache.missing_bytes(self.wanted)

    def forget(self) -> None:
        self.cache.forget(self.wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLayer:
    """A file of this machine, or a part of one. Never removed: it is not ours."""

    path: Path
    size: int
    offset: int = 0
    digest: str = ""
    """Checked when it is known."""
    is_local: bool = True

    async def open(self, on_position: Callable[[int], None]) -> BinaryIO:
        opened = io.BufferedReader(Slice(self.path.open("rb"), self.offset, self.size))
        try:
            if self.digest:
                await in_thread(lambda: self._check(opened))
        except BaseException:
            opened.close()
            raise
        on_position(self.size)
        return opened

    def _check(self, opened: BinaryIO) -> None:
        hashed = new_hash(self.digest)
        found = feed_file(hashed, opened)
        opened.seek(0)
        if found != self.size or not self.digest.endswith(f":{hashed.hexdigest()}"):
            raise ContentMismatch(f"{self.path}: its content is not {self.digest}")

    def missing_bytes(self) -> int:
        return 0

    def forget(self) -> None:
        pass


class Slice(io.RawIOBase):
    """A part of a file as if it was one of its own. Closes the file with itself."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        room = memoryview(buffer)[: max(0, min(len(buffer), self._size - self._at))]
        self._file.seek(self._offset + self._at)
        count = self._file.readinto(room)  # type: ignore[attr-defined]
        self._at += count
        return int(count)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
