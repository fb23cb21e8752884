"""All that a layout holds, for whoever passes it on as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.images.errors import ContentMismatch, ManifestUnusable
from corral.images.layout import (
    INDEX_FILE,
    LAYOUT_FILE,
    Files,
    Part,
    blob_part,
    checked_content,
    content_of,
    open_files,
)
from corral.images.limits import UnpackLimits
from corral.images.manifests import Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Content of a layout, and how it is described there."""

    descriptor: Descriptor
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutContents:
    """All that belongs to the one image, or the one list of images, that a layout offers."""

    manifests: Sequence[Stored]
    """Each after those that it names; the last one is what the layout offers."""
    blobs: Sequence[Stored]
    """Layers and configurations, each once."""

    @property
    def top(self) -> Descriptor:
        return self.manifests[-1].descriptor


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    manifests: Sequence[Descriptor] = ()
    layers: Sequence[Descriptor] = ()
    config: Descriptor | None = None


def read_contents(path: Path, limits: UnpackLimits) -> LayoutContents:
    """Everything of an OCI layout, for all platforms. Looks at files: call it in a thread."""
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


def _read_document(body: bytes, path: Path) -> _Document:
    try:
        return msgspec.json.decode(body, type=_Document)
    except UNREADABLE_JSON as error:
        raise ManifestUnusable(f"{path}: a manifest of it cannot be read: {error}") from error
