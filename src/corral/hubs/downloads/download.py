"""Downloads all files of an order, several at once. Runs in a process of its own: see `downloader.py`.

A file is found where it is already, or fetched by one of all who want it. It gets its name only when it is whole and
has the digest that was promised.
"""

import asyncio
import functools
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.http_facts import host_of
from corral.base.open_directories import Confined, look
from corral.base.tasks import first_failure, in_thread, task_group
from corral.hubs.archives import extract, split_member
from corral.hubs.downloads.attempts import DownloadAttempt, DownloadMark, DownloadTools, Patience, StreamBroke
from corral.hubs.downloads.local_copies import copy_into, local_source, opened_source
from corral.hubs.downloads.orders import (
    DestinationUnusable,
    DownloadCancelled,
    DownloadDamaged,
    DownloadError,
    DownloadOrder,
    DownloadProgress,
    DownloadResult,
    FetchedFile,
    FileOrder,
    FileProgress,
    FileState,
    RemoteFileChanged,
    TooLittleDisk,
    check_order,
)
from corral.hubs.downloads.partial_files import FOLDER, MEMBER, PartialFile, PartialFolder, disk_errors
from corral.hubs.downloads.prefix_hash import PrefixHash
from corral.hubs.downloads.receipts import FileReceipt, Receipts
from corral.hubs.downloads.transfers import DownloadSource, RangeTransfers
from corral.oci.errors import ImageError
from corral.wire.backends import size_text

DEBOUNCE: Final = timedelta(milliseconds=250)
_LOOK_SECONDS: Final = 0.2


class Download:
    """Executes one download order: all of its files."""

    def __init__(self, order: DownloadOrder, *, clock: Clock) -> None:
        check_order(order)
        self._order = order
        self._clock = clock
        self._marks = [DownloadMark(file.size) for file in order.files]
        self._sequence = 0

    def reading(self) -> DownloadProgress:
        self._sequence += 1
        return DownloadProgress(sequence=self._sequence, files=tuple(mark.reading() for mark in self._marks))

    async def run(self, transfers: RangeTransfers) -> DownloadResult:
        """Have all files at their destinations; what is there already is left alone. The first failure ends all."""
        directory = Path(self._order.directory)
        with disk_errors(self._order.directory):
            await in_thread(lambda: directory.mkdir(parents=True, exist_ok=True))
        places = asyncio.Semaphore(self._order.limits.files_at_once)
        with PartialFolder(directory) as folder:
            tools = DownloadTools(
                models=Confined(directory),
                receipts=Receipts(directory),
                folder=folder,
                transfers=transfers,
                limits=self._order.limits,
                network=self._order.network,
                clock=self._clock,
            )
            pairs = zip(self._order.files, self._marks, strict=True)
            downloads = [FileDownload(file, mark, tools) for file, mark in pairs]
            self._check_room(downloads, folder)
            with first_failure(DownloadError):
                async with task_group() as group:
                    tasks = [group.create_task(_in_turn(download, places), name="file") for download in downloads]
            return DownloadResult(files=tuple(task.result() for task in tasks))

    def _check_room(self, downloads: "list[FileDownload]", folder: PartialFolder) -> None:
        """Check the free disk space for all files together, before the first byte. Sizes that nobody states count when
        the server states them."""
        needed = sum(download.missing_bytes() for download in downloads)
        status, reserve = os.fstatvfs(folder.descriptor), self._order.limits.free_bytes
        free = status.f_bavail * status.f_frsize
        if needed and needed + reserve > free:
            text = f"{size_text(needed)} are needed, {size_text(reserve)} shall stay free"
            raise TooLittleDisk(f"{self._order.directory}: {text}, and there are {size_text(free)}")


async def _in_turn(download: "FileDownload", places: asyncio.Semaphore) -> FetchedFile:
    async with places:
        return await download.run()


class _WrongDigest(DownloadDamaged):
    """The file has another digest than was promised."""


class FileDownload:
    """Has one file at its destination."""

    def __init__(self, order: FileOrder, mark: DownloadMark, tools: DownloadTools) -> None:
        self._order = order
        self._mark = mark
        self._tools = tools
        self._source = local_source(order.url)
        self._member_url = split_member(order.url)
        self._is_inside = bool(self._member_url.member)
        # The size of an archive is what its server says; the order states that of the file inside.
        is_other = {"url": self._member_url.url, "size": None} if self._is_inside else {}
        self._fetched_order = msgspec.structs.replace(order, **is_other)
        with disk_errors(order.destination):
            self._path = tools.models.path(order.destination)
        self._parts = self._path.parts[len(tools.models.base.parts) :]
        if not self._parts or self._parts[0] == FOLDER[0]:
            raise DestinationUnusable(f"destination: {order.destination!r} names no file for a model")

    def missing_bytes(self) -> int:
        """Disk space that the file still needs, as far as that is known. One of its size counts as the file itself."""
        size = self._order.size
        with disk_errors(self._order.destination):
            status = self._destination_status()
        if size is None or (self._order.digest and status is not None and status.st_size == size):
            return 0
        copies = 2 if self._is_inside else 1  # the archive, and what comes out of it
        return max(0, copies * size - self._tools.folder.present_bytes(self._order.destination))

    async def run(self) -> FetchedFile:
        """Return when the file is there. What came stays for the next attempt, unless it is damaged."""
        with disk_errors(self._order.destination):
            self._check_destination()
            while True:
                before = self._destination_status()
                if before is not None and (present_file := await self._checked_destination(before)) is not None:
                    self._tools.folder.forget(self._order.destination)
                    return present_file
                if before is not None and self._order.is_shared:
                    problem = "another file is there, which another model needs"
                    raise DestinationUnusable(f"destination: {self._order.destination!r}: {problem}")
                self._mark.state = FileState.WAITING
                with PartialFile(self._tools.folder, self._order.destination) as part:
                    while not part.try_lock():  # another process fetches this file, and its lock has no event
                        await self._tools.clock.sleep(_LOOK_SECONDS)
                    after = self._destination_status()
                    if after is not None and os.path.samestat(after, os.fstat(part.descriptor)):
                        return await self._finished_by_other(part)
                    if part.is_current() and _is_same(before, after):
                        return await (self._copied(part, self._source) if self._source else self._persistently(part))

    def _check_destination(self) -> None:
        """Make the directories, and find out before the download what would prevent its end."""
        with self._tools.models.reach(self._parts, self._path, create=True) as place:
            status = look(place.directory, place.name)
            if status is not None and not stat.S_ISREG(status.st_mode):
                raise DestinationUnusable(f"destination: {self._order.destination!r} is there and is not a file")
            if os.fstat(place.directory).st_dev != os.fstat(self._tools.folder.descriptor).st_dev:
                place_of_parts = "/".join(FOLDER)
                reason = f"it is on another disk than {place_of_parts}, from where files are moved"
                raise DestinationUnusable(f"destination: {self._order.destination!r}: {reason}")

    def _destination_status(self) -> os.stat_result | None:
        with suppress(FileNotFoundError), self._tools.models.reach(self._parts, self._path) as place:
            return look(place.directory, place.name)
        return None

    async def _checked_destination(self, before: os.stat_result) -> FetchedFile | None:
        """The file at the destination, if it is the one that was promised."""
        order = self._order
        receipt = await in_thread(lambda: self._tools.receipts.find(order.destination))
        if receipt is not None and receipt.proves(order.digest, order.size, order.purpose):
            return self._there(receipt.size, receipt.sha256, 0)
        if self._is_inside or (not order.digest and not self._is_source(before)):
            return None
        with self._tools.models.reach(self._parts, self._path) as place:
            descriptor = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory)
        try:
            status = os.fstat(descriptor)
            if order.size not in (None, status.st_size):
                return None
            hashes = await self._hash_whole(descriptor, status.st_size)
        finally:
            os.close(descriptor)
        if not hashes.is_as_promised:
            return None
        self._tools.receipts.write(self._receipt(status, hashes))
        return self._fetched(hashes, 0)

    def _is_source(self, status: os.stat_result) -> bool:
        """Whether the file at the destination is the one that shall be copied there."""
        with suppress(OSError):
            return self._source is not None and os.path.samestat(status, self._source.stat())
        return False

    async def _finished_by_other(self, part: PartialFile) -> FetchedFile:
        """The file that another process has just finished, seen through the partial file that it was."""
        hashes = await self._hash_whole(part.descriptor, os.fstat(part.descriptor).st_size)
        self._check_digest(hashes)
        return self._fetched(hashes, 0)

    async def _hash_whole(self, descriptor: int, size: int) -> PrefixHash:
        self._mark.state = FileState.CHECKING
        hashes = PrefixHash(descriptor, size, self._order.digest, prefix=lambda: size)
        await in_thread(hashes.run, stop=hashes.stop)
        return hashes

    async def _copied(self, part: PartialFile, path: Path) -> FetchedFile:
        stopped = threading.Event()
        self._mark.state = FileState.FETCHING
        try:
            with opened_source(path, self._order) as source:
                copying = functools.partial(copy_into, part, source, wrote=self._mark.reach, is_stopped=stopped.is_set)
                size = await in_thread(copying, stop=stopped.set)
            hashes = await self._hash_whole(part.descriptor, size)
            self._check_digest(hashes)
            await in_thread(functools.partial(self._finish, part, hashes))
        except BaseException:
            if part.is_current():
                part.remove()  # what is on this machine is copied from its beginning
            raise
        return self._fetched(hashes, 0)

    async def _persistently(self, part: PartialFile) -> FetchedFile:
        restarts = self._tools.limits.restarts
        patience = Patience(self._tools.network, self._tools.clock)
        order = self._fetched_order
        remote = DownloadSource(url=order.url, authorization=order.authorization, advice=order.advice)
        fetched = 0
        try:
            while True:
                attempt = DownloadAttempt(order, part, remote, self._mark, self._tools, patience)
                round_before = patience.round
                try:
                    hashes = await attempt.run()
                    self._check_digest(hashes)
                    if self._is_inside:
                        return await self._taken_out(part, fetched + attempt.fetched_bytes)
                    await in_thread(functools.partial(self._finish, part, hashes))
                    return self._fetched(hashes, fetched + attempt.fetched_bytes)
                except (_WrongDigest, RemoteFileChanged):
                    part.empty()
                    if restarts <= 0:
                        raise
                    restarts -= 1
                except StreamBroke as broke:
                    part.empty()
                    await patience.after(broke.error, round_before)
                fetched += attempt.fetched_bytes
        finally:
            if not os.fstat(part.descriptor).st_size and part.is_current():
                part.remove()

    async def _taken_out(self, part: PartialFile, fetched_bytes: int) -> FetchedFile:
        """Take the file out of its archive, which is whole, and forget the archive."""
        stopped = threading.Event()
        self._mark.state = FileState.CHECKING
        with PartialFile(self._tools.folder, f"{self._order.destination}{MEMBER}") as file:
            try:
                taking = functools.partial(self._take_out, part, file, stopped)
                size, sha256 = await in_thread(taking, stop=stopped.set)
            except BaseException:
                file.remove()
                raise
        part.remove()
        return self._there(size, sha256, fetched_bytes)

    def _take_out(self, part: PartialFile, file: PartialFile, stopped: threading.Event) -> tuple[int, str]:
        file.empty()
        with (
            open(part.descriptor, "rb", closefd=False) as archive,
            open(file.descriptor, "wb", closefd=False) as out,
        ):

            def write(piece: memoryview) -> None:
                if stopped.is_set():
                    raise DownloadCancelled("the download was cancelled while its archive was unpacked")
                out.write(piece)

            try:
                size, sha256 = extract(archive, self._member_url, write, self._order.size)
            except ImageError as error:
                raise DownloadDamaged(f"{self._order.destination}: {error.message}") from error
        with self._tools.models.reach(self._parts, self._path, create=True) as place:
            status = os.fstat(file.descriptor)
            receipt = FileReceipt(
                destination=self._order.destination,
                size=size,
                modified=status.st_mtime_ns,
                inode=status.st_ino,
                sha256=sha256,
                digest=self._order.digest or f"sha256:{sha256}",
                purpose=self._order.purpose,
            )
            self._tools.receipts.write(receipt)
            file.finish(place)
        return size, sha256

    def _check_digest(self, hashes: PrefixHash) -> None:
        if not hashes.is_as_promised:
            promised = f"{self._order.digest} was promised, and {hashes.comparable} came"
            raise _WrongDigest(f"{self._order.destination} from {host_of(self._order.url)}: {promised}")

    def _finish(self, part: PartialFile, hashes: PrefixHash) -> None:
        with self._tools.models.reach(self._parts, self._path, create=True) as place:
            self._tools.receipts.write(self._receipt(os.fstat(part.descriptor), hashes))
            part.finish(place)

    def _receipt(self, status: os.stat_result, hashes: PrefixHash) -> FileReceipt:
        return FileReceipt(
            destination=self._order.destination,
            size=status.st_size,
            modified=status.st_mtime_ns,
            inode=status.st_ino,
            sha256=hashes.sha256,
            digest=hashes.comparable,
            purpose=self._order.purpose,
        )

    def _fetched(self, hashes: PrefixHash, fetched_bytes: int) -> FetchedFile:
        return self._there(hashes.size, hashes.sha256, fetched_bytes)

    def _there(self, size: int, sha256: str, fetched_bytes: int) -> FetchedFile:
        self._mark.total_bytes = size
        self._mark.reach(size)
        self._mark.state = FileState.DONE
        return FetchedFile(destination=self._order.destination, size=size, sha256=sha256, fetched_bytes=fetched_bytes)


def _is_same(before: os.stat_result | None, after: os.stat_result | None) -> bool:
    if before is None or after is None:
        return before is after
    return os.path.samestat(before, after) and (before.st_size, before.st_mtime_ns) == (
        after.st_size,
        after.st_mtime_ns,
    )


class DownloadReporter:
    """Sends changed progress four times a second, and the last state at the end."""

    def __init__(self, download: Download, tell: Callable[[DownloadProgress], None], clock: Clock) -> None:
        self._download = download
        self._tell = tell
        self._clock = clock
        self._last_sent: tuple[FileProgress, ...] = ()

    async def run(self) -> None:
        while True:
            self.flush()
            await self._clock.sleep(DEBOUNCE.total_seconds())

    def flush(self) -> None:
        reading = self._download.reading()
        if reading.files != self._last_sent:
            self._last_sent = reading.files
            self._tell(reading)
