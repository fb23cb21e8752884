"""Backends that are no images: archives behind a URL or on this machine, and directories to copy."""

import hashlib
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from corral.oci.blobs import BlobCache, Body, WantedBlob, body_of
from corral.oci.contents import FetchedLayer, Image, LocalLayer
from corral.oci.errors import ImageNotFound, LimitExceeded, PullCancelled, UnpackRefused
from corral.oci.http import HttpFetcher
from corral.oci.limits import BYTES_KNOB, ENTRIES_KNOB, UnpackLimits
from corral.oci.network import Network, check_url
from corral.oci.tree import Tree
from corral.oci.unpack import Unpacked


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
