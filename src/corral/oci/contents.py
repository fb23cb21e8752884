"""What a source is to whoever unpacks it: an image of layers that can be opened wherever they come from, an archive
that is no image, or a directory to copy."""

import hashlib
import io
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from corral.base.threads import in_thread
from corral.oci.blobs import BlobCache, Body, Opener, WantedBlob, body_of
from corral.oci.errors import ContentMismatch, ImageNotFound, LimitExceeded, PullCancelled, UnpackRefused
from corral.oci.http import HttpFetcher
from corral.oci.limits import BYTES_KNOB, ENTRIES_KNOB, UnpackLimits
from corral.oci.network import Network, check_url
from corral.oci.references import feed_file, new_hash
from corral.oci.tree import Tree
from corral.oci.unpack import Unpacked


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


def archive_behind(
    url: str, *, sha256: str, fetcher: HttpFetcher, cache: BlobCache, network: Network, limits: UnpackLimits
) -> Image:
    """Without a hash nothing can be gone on with after a break, and nothing is known of what comes."""
    check_url(url, network)
    digest = f"sha256:{sha256}" if sha256 else ""
    key = sha256 or "url-" + hashlib.sha256(url.encode()).hexdigest()
    shown = url.partition("?")[0]

    @asynccontextmanager
    async def opener(offset: int) -> AsyncIterator[Body]:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        async with fetcher.ask(url, headers) as answer:
            yield await body_of(answer, offset, shown, network)

    wanted = WantedBlob(key=key, digest=digest, size=None, most=limits.total_bytes)
    layer = FetchedLayer(wanted=wanted, cache=cache, opener=opener)
    return Image(name=shown, layers=[layer], digest=digest, platform_digest=digest, has_whiteouts=False)


def local_archive(path: Path, *, sha256: str) -> Image:
    if not path.is_file():
        raise ImageNotFound(f"there is no {path}")
    digest = f"sha256:{sha256}" if sha256 else ""
    layer = LocalLayer(path=path, size=path.stat().st_size, digest=digest)
    return Image(name=str(path), layers=[layer], digest=digest, platform_digest=digest, has_whiteouts=False)


def directory_size(folder: Path | None) -> int:
    """Of all files in it; nothing without a directory."""
    if folder is None:
        return 0
    return sum(one.status.st_size for one in _found_in(folder) if stat.S_ISREG(one.status.st_mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FolderEntry:
    path: Path
    parts: tuple[str, ...]
    status: os.stat_result


def _found_in(folder: Path) -> Iterator[_FolderEntry]:
    for here, names, files in os.walk(folder):
        for name in sorted((*names, *files)):
            path = Path(here, name)
            yield _FolderEntry(path=path, parts=path.relative_to(folder).parts, status=path.lstat())


def copy_directory(
    folder: Path,
    tree: Tree,
    limits: UnpackLimits,
    *,
    is_cancelled: Callable[[], bool],
    on_position: Callable[[int], None],
) -> Unpacked:
    """By the rules for archives, except that absolute links mean this machine, and must lead into the folder."""
    unpacked = Unpacked()
    for one in _found_in(folder):
        if is_cancelled():
            raise PullCancelled
        unpacked.entries += 1
        if unpacked.entries > limits.entries:
            raise LimitExceeded(f"{folder}: more than {limits.entries} entries ({ENTRIES_KNOB})")
        _copy_one(one, folder, tree)
        if stat.S_ISREG(one.status.st_mode):
            unpacked.bytes += one.status.st_size
            on_position(unpacked.bytes)
        if unpacked.bytes > limits.total_bytes:
            raise LimitExceeded(f"{folder}: more than {limits.total_bytes} bytes ({BYTES_KNOB})")
    tree.prove_links()
    return unpacked


def _copy_one(one: _FolderEntry, folder: Path, tree: Tree) -> None:
    place, name, mode = tree.locate(one.parts), one.parts[-1], one.status.st_mode
    if stat.S_ISDIR(mode):
        tree.make_directory(place, name, mode & 0o755 | 0o700)
    elif stat.S_ISLNK(mode):
        tree.make_symlink(place, name, _inside(os.readlink(one.path), folder))
    elif stat.S_ISREG(mode):
        with one.path.open("rb") as source, open(tree.make_file(place, name), "wb") as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)
            os.fchmod(copy.fileno(), mode & 0o755 | 0o600)
        os.utime(name, ns=(one.status.st_atime_ns, one.status.st_mtime_ns), dir_fd=place.descriptor)
    else:
        raise UnpackRefused(f"{one.path} is neither a file nor a directory nor a link")


def _inside(target: str, folder: Path) -> str:
    if not target.startswith("/"):
        return target
    if not Path(target).is_relative_to(folder):
        raise UnpackRefused(f"a link to {target!r}, which is outside of {folder}")
    return "/" + str(Path(target).relative_to(folder))
