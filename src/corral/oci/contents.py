"""What a source contains, as the unpacker sees it: an image with layers to open, an archive that is not an image, or a
directory to copy. Images in files are OCI layouts in a directory or an archive, and what `docker save` writes.
"""

import hashlib
import io
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Protocol

import msgspec

from corral.base.tasks import in_thread
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.blobs import BlobCache, Body, Opener, WantedBlob, body_of
from corral.oci.errors import ContentMismatch, ImageError, ImageNotFound, LimitExceeded, ManifestUnusable
from corral.oci.http import HttpFetcher
from corral.oci.limits import ENTRIES_KNOB, MANIFEST_BYTES, Network, UnpackLimits, check_url
from corral.oci.manifests import Descriptor, ImagePlatform, Index, choose_image, read_manifest
from corral.oci.references import check_digest, digest_of, feed_file, new_hash
from corral.oci.tar_stream import FilePieces, MemberKind, TarStream


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


class Image(msgspec.Struct, frozen=True, kw_only=True):
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
    directory: Path | None = msgspec.field(default=None)
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


class LocalLayer(msgspec.Struct, frozen=True, kw_only=True):
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


LAYOUT_FILE: Final = "oci-layout"
INDEX_FILE: Final = "index.json"
_DOCKER_FILE: Final = "manifest.json"
_MAX_NESTING: Final = 4
_MAX_ALIASES: Final = 8


class _DockerImage(msgspec.Struct, frozen=True, kw_only=True):
    layers: Sequence[str] = msgspec.field(name="Layers")


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """Content in a file, or in a part of one."""

    path: Path
    offset: int
    size: int


class Files(Protocol):
    """Named files in a directory or in an archive."""

    def find(self, name: str) -> FilePart | None: ...


class _Directory:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str) -> FilePart | None:
        path = self._folder / name
        return FilePart(path=path, offset=0, size=path.stat().st_size) if path.is_file() else None


class _Archive:
    """An indexed archive. Old versions of Docker wrote repeated layers as links."""

    def __init__(self, path: Path, limits: UnpackLimits) -> None:
        self._path = path
        self._parts: dict[str, FilePart] = {}
        self._aliases: dict[str, str] = {}
        with path.open("rb") as file:
            pieces = FilePieces(file)
            for number, member in enumerate(TarStream(pieces, limits)):
                if number > limits.entries:
                    raise LimitExceeded(f"{path}: more than {limits.entries} entries ({ENTRIES_KNOB})")
                name = os.path.normpath(member.name)
                if member.kind is MemberKind.FILE:
                    self._parts[name] = FilePart(path=path, offset=pieces.position, size=member.size)
                elif member.kind is MemberKind.SYMLINK:
                    self._aliases[name] = os.path.normpath(PurePosixPath(name).parent / member.link)
                elif member.kind is MemberKind.HARD_LINK:
                    self._aliases[name] = os.path.normpath(member.link)

    def find(self, name: str) -> FilePart | None:
        name = os.path.normpath(name)
        for _ in range(_MAX_ALIASES):
            if name not in self._aliases:
                break
            name = self._aliases[name]
        return self._parts.get(name)


def is_layout(folder: Path) -> bool:
    return (folder / LAYOUT_FILE).is_file()


def offered_digests(folder: Path) -> tuple[str, ...]:
    """Return the digests that an OCI layout offers; empty when it is unreadable or not a layout."""
    try:
        document = read_manifest((folder / INDEX_FILE).read_bytes(), name=str(folder)) if is_layout(folder) else None
    except (OSError, ImageError):
        return ()
    return tuple(manifest.digest for manifest in document.manifests) if isinstance(document, Index) else ()


def open_files(path: Path, limits: UnpackLimits) -> Files:
    """Open a directory or an archive. Raise ImageNotFound when there is neither."""
    if not path.exists():
        raise ImageNotFound(f"there is no {path}")
    return _Directory(path) if path.is_dir() else _Archive(path, limits)


def read_image(path: Path, platform: ImagePlatform, limits: UnpackLimits) -> Image:
    """Read the image in an OCI layout or in the output of `docker save`. Blocking: call it in a thread."""
    files = open_files(path, limits)
    if files.find(LAYOUT_FILE) is not None and (top := files.find(INDEX_FILE)) is not None:
        return _read_layout(files, top, path, platform)
    if (table := files.find(_DOCKER_FILE)) is not None:
        return _read_docker(files, table, path)
    raise ManifestUnusable(f"{path} is neither an OCI layout nor what `docker save` writes")


def _read_layout(files: Files, top: FilePart, path: Path, platform: ImagePlatform) -> Image:
    document = read_manifest(content_of(top), name=str(path))
    digests: list[str] = []
    while isinstance(document, Index):
        if len(digests) > _MAX_NESTING:
            raise ManifestUnusable(f"{path}: lists in lists, more than {_MAX_NESTING} deep")
        chosen = choose_image(document, platform, name=str(path))
        digests.append(chosen.digest)
        document = read_manifest(checked_content(files, chosen, path), name=str(path))
    layers = []
    for layer in document.layers:
        part = blob_part(files, layer.digest, path)
        layers.append(LocalLayer(path=part.path, offset=part.offset, size=layer.size, digest=layer.digest))
    return Image(name=str(path), layers=layers, digest=digests[0], platform_digest=digests[-1])


def blob_part(files: Files, digest: str, path: Path) -> FilePart:
    """Return where a blob is stored. Raise ImageNotFound when it is missing."""
    algorithm, _, digits = check_digest(digest).partition(":")
    part = files.find(f"blobs/{algorithm}/{digits}")
    if part is None:
        raise ImageNotFound(f"{path} has no blob {digest}")
    return part


def checked_content(files: Files, descriptor: Descriptor, path: Path) -> bytes:
    """Return the content of a manifest. Raise ContentMismatch when its digest is wrong."""
    content = content_of(blob_part(files, descriptor.digest, path))
    if digest_of(content, like=descriptor.digest) != descriptor.digest:
        raise ContentMismatch(f"{path}: its blob {descriptor.digest} has another content")
    return content


def content_of(part: FilePart) -> bytes:
    """Read a manifest, which must not exceed the size limit for manifests."""
    if part.size > MANIFEST_BYTES:
        raise ManifestUnusable(f"{part.path}: a manifest of {part.size} bytes")
    with part.path.open("rb") as file:
        file.seek(part.offset)
        return file.read(part.size)


def _read_docker(files: Files, table: FilePart, path: Path) -> Image:
    try:
        images = msgspec.json.decode(content_of(table), type=list[_DockerImage])
    except UNREADABLE_JSON as error:
        raise ManifestUnusable(f"{path}: its {_DOCKER_FILE} cannot be read: {error}") from error
    if len(images) != 1:
        raise ManifestUnusable(f"{path} holds {len(images)} images; expected is exactly one")
    layers = []
    for name in images[0].layers:
        part = files.find(name)
        if part is None:
            raise ImageNotFound(f"{path} has no layer {name!r}")
        layers.append(LocalLayer(path=part.path, offset=part.offset, size=part.size))
    return Image(name=str(path), layers=layers)
