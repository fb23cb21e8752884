"""OCI layouts for authors: writes one as a directory or as an archive, and lists everything in one for a push.

`oci/contents.py` reads the one image of a layout that this machine needs.
"""

import io
import os
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import PathNotUsable
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.imaging.entries import PLAIN, entries_of
from corral.imaging.layers import FIXED_TIME, add
from corral.oci.contents import (
    INDEX_FILE,
    LAYOUT_FILE,
    FilePart,
    Files,
    blob_part,
    checked_content,
    content_of,
    open_files,
)
from corral.oci.errors import ContentMismatch, ManifestUnusable
from corral.oci.limits import UnpackLimits
from corral.oci.manifests import OCI_CONFIG, OCI_INDEX, OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor, ImagePlatform
from corral.oci.references import digest_of

_VERSION: Final = b'{"imageLayoutVersion":"1.0.0"}'
_DOCKER_TABLE: Final = "manifest.json"


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A blob of a layout and its descriptor."""

    descriptor: Descriptor
    part: FilePart


class LayoutContents(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that belongs to the one image or index that a layout offers."""

    manifests: Sequence[Stored]
    """In dependency order: the last one is what the layout offers."""
    blobs: Sequence[Stored]
    """Layers and configurations, without duplicates."""

    @property
    def top(self) -> Descriptor:
        return self.manifests[-1].descriptor


class _LayoutDocument(msgspec.Struct, frozen=True, kw_only=True):
    manifests: Sequence[Descriptor] = ()
    layers: Sequence[Descriptor] = ()
    config: Descriptor | None = None


def read_contents(path: Path, limits: UnpackLimits) -> LayoutContents:
    """Read a whole OCI layout, for all platforms. Blocking: call it in a thread."""
    files = open_files(path, limits)
    top = files.find(INDEX_FILE)
    if files.find(LAYOUT_FILE) is None or top is None:
        raise ManifestUnusable(f"{path} is no OCI layout: it has no {LAYOUT_FILE} and {INDEX_FILE}")
    entries = _read_document(content_of(top), path).manifests
    if len(entries) != 1:
        raise ManifestUnusable(f"{path} offers {len(entries)} images; expected is one, or one list of them")
    manifests: dict[str, Stored] = {}
    blobs: dict[str, Stored] = {}
    _gather(files, entries[0], path, manifests, blobs)
    return LayoutContents(manifests=tuple(manifests.values()), blobs=tuple(blobs.values()))


def _gather(
    files: Files, descriptor: Descriptor, path: Path, manifests: dict[str, Stored], blobs: dict[str, Stored]
) -> None:
    document = _read_document(checked_content(files, descriptor, path), path)
    for child in document.manifests:
        if child.digest not in manifests:
            _gather(files, child, path, manifests, blobs)
    for blob in (*([document.config] if document.config else []), *document.layers):
        part = blob_part(files, blob.digest, path)
        if part.size != blob.size:
            raise ContentMismatch(f"{path}: its blob {blob.digest} has {part.size} bytes where {blob.size} belong")
        blobs[blob.digest] = Stored(descriptor=blob, part=part)
    manifests[descriptor.digest] = Stored(descriptor=descriptor, part=blob_part(files, descriptor.digest, path))


def _read_document(body: bytes, path: Path) -> _LayoutDocument:
    try:
        return msgspec.json.decode(body, type=_LayoutDocument)
    except UNREADABLE_JSON as error:
        raise ManifestUnusable(f"{path}: a manifest of it cannot be read: {error}") from error


class LayoutWriter:
    """Writes an OCI layout, reproducibly. Call `finish` at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True, exist_ok=True)

    def add_blob(self, content: bytes, media_type: str = OCI_LAYER_GZIP) -> Descriptor:
        digest = digest_of(content)
        (self._blobs / digest.removeprefix("sha256:")).write_bytes(content)
        return Descriptor(media_type=media_type, digest=digest, size=len(content))

    def adopt_blob(self, file: Path, descriptor: Descriptor) -> Descriptor:
        """Move a file with a known digest, on the same file system, into the layout."""
        file.replace(self._blobs / descriptor.digest.removeprefix("sha256:"))
        return descriptor

    def add_image(
        self,
        layers: Sequence[Descriptor],
        *,
        platform: ImagePlatform,
        diff_ids: Sequence[str],
        annotations: Mapping[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> Descriptor:
        """Add an image. `diff_ids` are the digests of the uncompressed layers; `details` go into the configuration."""
        rootfs = {"type": "layers", "diff_ids": list(diff_ids)}
        base = {"architecture": platform.architecture, "os": platform.os, "rootfs": rootfs}
        config = self.add_blob(_json({**base, **(details or {})}), OCI_CONFIG)
        document: dict[str, object] = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config,
            "layers": list(layers),
        }
        if annotations:
            document["annotations"] = dict(annotations)
        written = self.add_blob(_json(document), OCI_MANIFEST)
        return msgspec.structs.replace(written, platform=platform)

    def add_index(self, images: Sequence[Descriptor], *, annotations: Mapping[str, str] | None = None) -> Descriptor:
        return self.add_blob(_index(images, annotations), OCI_INDEX)

    def finish(self, entries: Sequence[Descriptor]) -> None:
        """Write the entry point of the layout: one image, one index, or several images."""
        (self._folder / INDEX_FILE).write_bytes(_index(entries))
        (self._folder / LAYOUT_FILE).write_bytes(_VERSION)


def _index(entries: Sequence[Descriptor], annotations: Mapping[str, str] | None = None) -> bytes:
    document: dict[str, object] = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)}
    if annotations:
        document["annotations"] = dict(annotations)
    return _json(document)


def _json(document: object) -> bytes:
    return msgspec.json.encode(document)


class _ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    config: Descriptor
    layers: list[Descriptor]


def write_archive(layout: Path, file: Path) -> None:
    """Write a layout as one archive, atomically and reproducibly. Raise PathNotUsable when it cannot be written.

    A layout with one image also gets Docker's table of contents, which `docker load` and LocalAI's `ocifile://` need.
    Blocking: call it in a thread.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    except OSError as error:
        raise PathNotUsable(f"{file} cannot be written: {error.strerror}; --archive names another place") from error
    try:
        with os.fdopen(descriptor, "wb") as opened:
            _write(layout, opened)
            os.fchmod(descriptor, PLAIN)
        os.replace(draft, file)
    except OSError as error:
        raise PathNotUsable(f"{file} cannot be written: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _write(layout: Path, opened: io.BufferedWriter) -> None:
    with tarfile.TarFile(fileobj=opened, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries_of(layout):
            add(archive, entry)
        table = _docker_table(layout)
        if table:
            info = tarfile.TarInfo(_DOCKER_TABLE)
            info.mtime, info.mode, info.size = FIXED_TIME, PLAIN, len(table)
            archive.addfile(info, io.BytesIO(table))


def _docker_table(layout: Path) -> bytes:
    contents = read_contents(layout, UnpackLimits())
    if contents.top.media_type == OCI_INDEX:
        return b""
    manifest = msgspec.json.decode(contents.manifests[-1].part.path.read_bytes(), type=_ArchiveManifest)
    image = {"Config": _blob(manifest.config), "RepoTags": [], "Layers": [_blob(layer) for layer in manifest.layers]}
    return msgspec.json.encode([image])


def _blob(descriptor: Descriptor) -> str:
    return "blobs/" + descriptor.digest.replace(":", "/")
