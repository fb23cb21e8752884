"""Installs a backend by copying a directory of this machine. Directories with an image are left to `uris.py`."""

import asyncio
import os
import shutil
import urllib.parse
from pathlib import Path
from typing import Final

from corral.base.tasks import CancelSignal, in_own_thread
from corral.oci.contents import is_layout
from corral.wire.backends import size_text
from corral.worker.installing.backend_metadata import Metadata
from corral.worker.installing.orders import CannotInstall, Delivered, Fetching, InstallableBackend, InstallOrder, NoRoom
from corral.worker.installing.progress import InstallStep, Report
from corral.worker.installing.tree_copy import SourceTree, copy, look

_SCHEME: Final = "file://"
_ROOM_TO_SPARE: Final = 16 * 1024 * 1024
"""Free space in addition to the files: for directories, and for other writers on that disk."""


class DirectorySource:
    """Takes `file://` and plain paths."""

    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        path = await asyncio.to_thread(directory_of, order.uri) if order.uri else None
        if path is None:
            return None

        async def fetch(fetching: Fetching) -> Delivered:
            into, report = fetching.into, fetching.report
            await in_own_thread(lambda cancelled: _fetch(path, into, report, cancelled), name=f"copying {path}")
            return Delivered()

        metadata = Metadata(name=order.name or path.name, alias=order.alias, uri=order.uri)
        return InstallableBackend(metadata=metadata, fetch=fetch)


def directory_of(uri: str) -> Path | None:
    """Return the directory of a URI; None for other kinds of URIs, including archives and images. Raise CannotInstall
    when nothing is there."""
    is_path = uri.startswith("/")
    if uri.startswith(_SCHEME):
        host, _, path = uri.removeprefix(_SCHEME).partition("/")
        if host not in {"", "localhost"}:
            raise CannotInstall(f"{uri} is on another machine; give a path of this one")
        uri, is_path = f"/{urllib.parse.unquote(path)}", True
    if not uri or "\0" in uri or ("://" in uri and not is_path):
        return None
    path_of = Path(os.path.normpath(uri))
    if path_of.is_dir():
        return None if is_layout(path_of) else path_of
    if is_path and not path_of.exists():
        raise CannotInstall(f"there is no {path_of} on this machine")
    return None


def _fetch(source: Path, into: Path, report: Report, cancelled: CancelSignal) -> None:
    if into.resolve().is_relative_to(source.resolve()):
        raise CannotInstall(f"{source} contains the directory that backends are installed into")
    tree = look(source, cancelled.check)
    _need_room(tree, into)
    done = 0

    def copied(count: int) -> None:
        nonlocal done
        done += count
        report(InstallStep(what=f"Copying {source}", done=done, total=tree.size))

    copy(tree, into, check=cancelled.check, copied=copied)


def _need_room(tree: SourceTree, into: Path) -> None:
    free = shutil.disk_usage(into).free
    if tree.size + _ROOM_TO_SPARE > free:
        raise NoRoom(
            f"{tree.root} needs {size_text(tree.size)}, and {size_text(free)} are free in {into.parent}; make room, or "
            "set another backends directory (LOCALAI_BACKENDS_PATH)"
        )
