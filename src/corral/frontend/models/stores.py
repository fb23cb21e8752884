"""Stores: directories with files of models. Frontends that share a directory share its id, which is kept in it."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.base.errors import CorralError
from corral.base.ids import NodeId, new_store_id
from corral.base.open_directories import Confined, PathRefused

FOLDER: Final = ".corral"
_FILE: Final = "store"
_LONGEST: Final = 100
_PREFIX: Final = "store:"


class StoreUnusable(CorralError):
    """The models directory cannot hold files of models."""

    code = "store_unusable"
    retryable = True


def place_of(store_id: str) -> NodeId:
    """What stands for a store where targets of operations are named."""
    return NodeId(f"{_PREFIX}{store_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRoom:
    """A store of this machine, and how much room there is."""

    id: str
    total_bytes: int
    free_bytes: int


def measure(directory: Path) -> StoreRoom:
    """The store in a directory, which becomes one if it is none yet. StoreUnusable says why it cannot be. Blocks."""
    try:
        directory.mkdir(exist_ok=True)  # not its parents: a disk that is not mounted is no store
        id = _identity(Confined(directory))
        status = os.statvfs(directory)
    except (OSError, PathRefused) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreUnusable(f"the models directory {directory} cannot be used: {reason}") from error
    size = status.f_frsize
    return StoreRoom(id=id, total_bytes=status.f_blocks * size, free_bytes=status.f_bavail * size)


def _identity(models: Confined) -> str:
    """Read the id, or make one. Of several who make one at the same moment, the first one counts for all."""
    with models.reach((FOLDER, _FILE), models.base / FOLDER / _FILE, create=True) as place:
        if (known := _read(place.directory)) is not None:
            return known
        fresh = f"{_FILE}.{new_store_id()}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=place.directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(new_store_id().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, _FILE, src_dir_fd=place.directory, dst_dir_fd=place.directory)
        finally:
            os.unlink(fresh, dir_fd=place.directory)
        made = _read(place.directory)
        if made is None:
            raise StoreUnusable(f"{place.path} is not readable as the id of a store; remove it to have a new one")
        return made


def _read(folder: int) -> str | None:
    """The id; None: there is none. StoreUnusable for a file with something else in it."""
    try:
        descriptor = os.open(_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(_LONGEST + 1).decode("ascii", "replace").strip()
    if not text or len(text) > _LONGEST or not all(character.isalnum() or character in "-_" for character in text):
        raise StoreUnusable(
            f"the file {FOLDER}/{_FILE} of the models directory holds no id; remove it to have a new one"
        )
    return text
