"""Reads images from files: OCI layouts in a directory or an archive, and the output of `docker save`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.contents import Image, LocalLayer
from corral.oci.errors import ContentMismatch, ImageError, ImageNotFound, LimitExceeded, ManifestUnusable
from corral.oci.limits import ENTRIES_KNOB, MANIFEST_BYTES, UnpackLimits
from corral.oci.manifests import Descriptor, ImagePlatform, Index, choose_image, read_manifest
from corral.oci.references import check_digest, digest_of
from corral.oci.tar_stream import FilePieces, MemberKind, TarStream

LAYOUT_FILE: Final = "oci-layout"
INDEX_FILE: Final = "index.json"
_DOCKER_FILE: Final = "manifest.json"
_MAX_NESTING: Final = 4
_MAX_ALIASES: Final = 8


class _DockerImage(msgspec.Struct, frozen=True, kw_only=True):
    layers: Sequence[str] = msgspec.field(name="Layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
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
    layers = [_layer(files, layer, path) for layer in document.layers]
    return Image(name=str(path), layers=layers, digest=digests[0], platform_digest=digests[-1])


def _layer(files: Files, layer: Descriptor, path: Path) -> LocalLayer:
    part = blob_part(files, layer.digest, path)
    return LocalLayer(path=part.path, offset=part.offset, size=layer.size, digest=layer.digest)


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
    parts = {name: files.find(name) for name in images[0].layers}
    if missing := [name for name, part in parts.items() if part is None]:
        raise ImageNotFound(f"{path} has no layer {missing[0]!r}")
    layer_parts = [parts[name] for name in images[0].layers]
    layers = [
        LocalLayer(path=layer.path, offset=layer.offset, size=layer.size) for layer in layer_parts if layer is not None
    ]
    return Image(name=str(path), layers=layers)
