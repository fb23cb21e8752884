"""Stores: directories with files of models. Frontends that share a directory share its id, which is kept in it."""

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import FrontendId, NodeId, new_store_id
from corral.base.open_directories import Confined, PathRefused
from corral.base.tasks import Poke, in_thread
from corral.frontend.models.decide.stored import KnownStore
from corral.frontend.models.store.stores import ModelStores

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=10)
AWAY_AFTER: Final = timedelta(seconds=45)
"""After so long without a word of a frontend that has it, a store counts as absent."""

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


class StoreRoom(msgspec.Struct, frozen=True, kw_only=True):
    """A store of this machine, and how much room there is."""

    id: str
    total_bytes: int
    free_bytes: int


def measure(directory: Path, *, make: bool = True) -> StoreRoom:
    """The store in a directory. StoreUnusable says why the directory is not a store. Blocks.

    With `make`, the directory is created and becomes a store. Directories above it are not created, because a disk may
    not be mounted.
    """
    try:
        if make:
            directory.mkdir(exist_ok=True)
        id = _identity(Confined(directory), make=make)
        status = os.statvfs(directory)
    except (OSError, PathRefused) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreUnusable(f"the models directory {directory} cannot be used: {reason}") from error
    size = status.f_frsize
    return StoreRoom(id=id, total_bytes=status.f_blocks * size, free_bytes=status.f_bavail * size)


def _identity(models: Confined, *, make: bool) -> str:
    """Read the id, or make one. Of several who make one at the same moment, the first one counts for all."""
    with models.reach((FOLDER, _FILE), models.base / FOLDER / _FILE, create=make) as place:
        if (identity := _read(place.directory)) is not None:
            return identity
        if not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        fresh = f"{_FILE}.{new_store_id()}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=place.directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(new_store_id().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # somebody else was first
            os.link(fresh, _FILE, src_dir_fd=place.directory, dst_dir_fd=place.directory)
        for name in os.listdir(place.directory):
            if name.startswith(f"{_FILE}."):  # also of those who were killed right here
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place.directory)
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


class StoreKeeper:
    """Knows which store this frontend has, and which others there are. Implements the port of the dispatcher."""

    def __init__(self, rows: ModelStores, directory: Path, clock: Clock, *, frontend_id: FrontendId) -> None:
        self.directory = directory
        self.own: KnownStore | None = None
        """As last measured; None: there is none that could be used."""
        self.problem = ""
        """Why there is none."""
        self.announced_id = ""
        """The id of the own store that was last announced to others."""
        self.poke = Poke()
        self._rows = rows
        self._clock = clock
        self._frontend_id = frontend_id
        self._name = f"{socket.gethostname()}:{directory.absolute()}"
        self._elsewhere: frozenset[NodeId] = frozenset()

    @property
    def elsewhere(self) -> Collection[NodeId]:
        return self._elsewhere

    def is_here(self, store: NodeId) -> bool:
        return self.own is not None and store == place_of(self.own.id)

    def usable(self) -> KnownStore:
        """The own store. StoreUnusable says why there is none."""
        if self.own is None:
            raise StoreUnusable(self.problem or "the models directory was not looked at yet")
        return self.own

    async def measure(self, *, make: bool = False) -> None:
        """Look at the own store; with `make`, the directory becomes one."""
        try:
            room = await in_thread(lambda: measure(self.directory, make=make))
        except StoreUnusable as error:
            if make and error.message != self.problem:
                log.warning("no files of models can be kept: %s", error, extra={"event": "store.unusable"})
            self.own, self.problem = None, error.message
        else:
            self.own, self.problem = self._seen(room), ""

    async def look(self) -> None:
        """Measure the own store, tell others of it, and see which they have."""
        await self.measure()
        if self.own is not None:
            await self._rows.see(self.own)
        self.announced_id = "" if self.own is None else self.own.id
        fresh = [store for store in await self._rows.all() if not self.is_away(store)]
        self._elsewhere = frozenset(place_of(store.id) for store in fresh if not self.is_here(place_of(store.id)))

    async def all(self) -> list[KnownStore]:
        """All stores that any frontend ever had."""
        return await self._rows.all()

    def is_away(self, store: KnownStore) -> bool:
        """Whether no running frontend has it."""
        return self._clock.now() - store.seen_at > AWAY_AFTER

    def _seen(self, room: StoreRoom) -> KnownStore:
        return KnownStore(
            id=room.id,
            name=self._name,
            frontend_id=self._frontend_id,
            total_bytes=room.total_bytes,
            free_bytes=room.free_bytes,
            seen_at=self._clock.now(),
        )
