"""Writes an OCI layout as one archive, reproducibly.

A layout with one image also gets Docker's table of contents, which `docker load` and LocalAI's `ocifile://` need.
Blocking: call it in a thread.
"""

import io
import os
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import PathNotUsable
from corral.imaging.entries import PLAIN, entries_of
from corral.imaging.layers import FIXED_TIME, add
from corral.imaging.layout_contents import read_contents
from corral.oci.limits import UnpackLimits
from corral.oci.manifests import OCI_INDEX, Descriptor

_DOCKER_TABLE: Final = "manifest.json"


class _ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    config: Descriptor
    layers: list[Descriptor]


def write_archive(layout: Path, file: Path) -> None:
    """Write the archive atomically. Raise PathNotUsable when it cannot be written."""
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
