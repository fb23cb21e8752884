"""What a source contains, as the unpacker sees it: an image with layers to open, an archive that is not an image, or a
directory to copy."""

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
    """One layer archive of an image."""

    @property
    def size(self) -> int | None:
        """Compressed size in bytes; None: unknown until it is downloaded."""

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine, so that nothing is downloaded."""

    async def open(self, on_position: Callable[[int], None]) -> BinaryIO:
        """Download it if necessary; return when it is complete and verified."""

    def missing_bytes(self) -> int:
        """Return how many bytes still have to be downloaded."""

    def forget(self) -> None:
        """Remove what was downloaded of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An opened source: its layers, or a directory to copy."""

    name: str
    """Shown to users."""
    layers: Sequence[Layer]
    digest: str = ""
    """Digest that the name resolved to: the index's if there is one. Empty: unknown."""
    platform_digest: str = ""
    """Digest of the image for this machine; equals `digest` if there is no index."""
    has_whiteouts: bool = True
    """False for an archive that is not an image layer."""
    directory: Path | None = field(default=None)
    """Set for a directory that is copied; there are no layers then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLayer:
    """A layer that is downloaded through the blob cache."""

    blob: WantedBlob
    cache: BlobCache
    opener: Opener = field(compare=False)
    is_local: bool = False

    @property
    def size(self) -> int | None:
        return self.blob.size

    async def open(self, on_position: Callable[[int], None]) -> BinaryIO:
        return await self.cache.get(self.blob, self.opener, on_position)

    def missing_bytes(self) -> int:
        return self.cache.missing_bytes(self.blob)

    def forget(self) -> None:
        self.cache.forget(self.blob)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLayer:
    """A layer in a file of this machine, or in a part of one. Its file is never removed."""

    path: Path
    size: int
    offset: int = 0
    digest: str = ""
    """Verified unless empty."""
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
        length = feed_file(hashed, opened)
        opened.seek(0)
        if length != self.size or not self.digest.endswith(f":{hashed.hexdigest()}"):
            raise ContentMismatch(f"{self.path}: its content is not {self.digest}")

    def missing_bytes(self) -> int:
        return 0

    def forget(self) -> None:
        pass


class Slice(io.RawIOBase):
    """A read-only file over a part of another file. Closing it closes that file."""

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
    """Return an archive behind a URL as an image. Without a hash its download can neither be resumed nor verified."""
    check_url(url, network)
    digest = f"sha256:{sha256}" if sha256 else ""
    key = sha256 or "url-" + hashlib.sha256(url.encode()).hexdigest()
    public_url = url.partition("?")[0]

    @asynccontextmanager
    async def opener(offset: int) -> AsyncIterator[Body]:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        async with fetcher.ask(url, headers) as answer:
            yield await body_of(answer, offset, public_url, network)

    blob = WantedBlob(key=key, digest=digest, size=None, most=limits.total_bytes)
    layer = FetchedLayer(blob=blob, cache=cache, opener=opener)
    return Image(name=public_url, layers=[layer], digest=digest, platform_digest=digest, has_whiteouts=False)


def local_archive(path: Path, *, sha256: str) -> Image:
    if not path.is_file():
        raise ImageNotFound(f"there is no {path}")
    digest = f"sha256:{sha256}" if sha256 else ""
    layer = LocalLayer(path=path, size=path.stat().st_size, digest=digest)
    return Image(name=str(path), layers=[layer], digest=digest, platform_digest=digest, has_whiteouts=False)


def directory_size(folder: Path | None) -> int:
    """Return the total size of the files below a directory; 0 if it does not exist."""
    if folder is None:
        return 0
    return sum(entry.status.st_size for entry in _entries_below(folder) if stat.S_ISREG(entry.status.st_mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FolderEntry:
    path: Path
    parts: tuple[str, ...]
    status: os.stat_result


def _entries_below(folder: Path) -> Iterator[_FolderEntry]:
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
    """Copy a directory into the tree by the rules for archives, except that absolute links refer to this machine and
    must lead into the folder."""
    unpacked = Unpacked()
    for entry in _entries_below(folder):
        if is_cancelled():
            raise PullCancelled
        unpacked.entries += 1
        if unpacked.entries > limits.entries:
            raise LimitExceeded(f"{folder}: more than {limits.entries} entries ({ENTRIES_KNOB})")
        _copy_entry(entry, folder, tree)
        if stat.S_ISREG(entry.status.st_mode):
            unpacked.bytes += entry.status.st_size
            on_position(unpacked.bytes)
        if unpacked.bytes > limits.total_bytes:
            raise LimitExceeded(f"{folder}: more than {limits.total_bytes} bytes ({BYTES_KNOB})")
    tree.prove_links()
    return unpacked


def _copy_entry(entry: _FolderEntry, folder: Path, tree: Tree) -> None:
    place, name, mode = tree.locate(entry.parts), entry.parts[-1], entry.status.st_mode
    if stat.S_ISDIR(mode):
        tree.make_directory(place, name, mode & 0o755 | 0o700)
    elif stat.S_ISLNK(mode):
        tree.make_symlink(place, name, _inside(os.readlink(entry.path), folder))
    elif stat.S_ISREG(mode):
        with entry.path.open("rb") as source, open(tree.make_file(place, name), "wb") as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)
            os.fchmod(copy.fileno(), mode & 0o755 | 0o600)
        os.utime(name, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns), dir_fd=place.descriptor)
    else:
        raise UnpackRefused(f"{entry.path} is neither a file nor a directory nor a link")


def _inside(target: str, folder: Path) -> str:
    if not target.startswith("/"):
        return target
    if not Path(target).is_relative_to(folder):
        raise UnpackRefused(f"a link to {target!r}, which is outside of {folder}")
    return "/" + str(Path(target).relative_to(folder))
