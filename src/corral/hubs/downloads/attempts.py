"""One attempt to have all bytes of a file: connections that fetch ranges, and the thread that hashes behind them."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.http_facts import host_of
from corral.base.open_directories import Confined
from corral.base.retry import Backoff
from corral.base.tasks import first_failure, in_thread, task_group
from corral.hubs.downloads.orders import (
    DownloadDamaged,
    DownloadError,
    DownloadLimits,
    DownloadRefused,
    FileOrder,
    FileProgress,
    FileState,
    RemoteFileChanged,
    ServerUnavailable,
    TooLittleDisk,
    too_large,
)
from corral.hubs.downloads.partial_files import LedgerFacts, PartialFile, PartialFolder, PieceLedger, key_of
from corral.hubs.downloads.prefix_hash import PrefixHash
from corral.hubs.downloads.receipts import Receipts
from corral.hubs.downloads.transfers import ByteSpan, DownloadSource, RangeTransfers, ResponseHead
from corral.oci.limits import Network
from corral.wire.backends import size_text

_WRITTEN_AT_ONCE: Final = 256 * 1024
_WRITTEN_SECONDS: Final = 0.2
"""How long bytes may wait for others before they are written: a kill loses those that wait."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_AS_STREAM: Final = "stream "
"""Identity of a file whose server gives no ranges: nothing of it is of use until it is whole."""


class DownloadTools(msgspec.Struct, frozen=True, kw_only=True):
    """What all files of an order share."""

    models: Confined
    receipts: Receipts
    folder: PartialFolder
    transfers: RangeTransfers
    limits: DownloadLimits
    network: Network
    clock: Clock


class DownloadMark:
    """How far a file is."""

    def __init__(self, total_bytes: int | None) -> None:
        self.state = FileState.WAITING
        self.total_bytes = total_bytes or 0
        self._most_bytes = 0

    def reach(self, current_bytes: int) -> None:
        self._most_bytes = max(self._most_bytes, current_bytes)

    def reading(self) -> FileProgress:
        return FileProgress(self.state, self._most_bytes, self.total_bytes)


class StreamBroke(Exception):
    """A response broke off that cannot be resumed."""

    def __init__(self, error: ServerUnavailable) -> None:
        self.error = error
        super().__init__()


class Patience:
    """Counts failures in a row for all connections of a file. Those that fail together count once."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self.round = 0
        self._network = network
        self._clock = clock
        self._backoff = Backoff(
            first=timedelta(seconds=network.first_pause_seconds), cap=timedelta(seconds=network.longest_pause_seconds)
        )
        self._failures = 0
        self._until = clock.monotonic()

    def forget(self) -> None:
        """Reset the count after progress."""
        self._failures = 0

    async def after(self, error: ServerUnavailable, began_in: int) -> None:
        """Wait before the next attempt, at least as long as the server asks for. Raise the error when none is left."""
        if began_in == self.round:
            self.round += 1
            self._failures += 1
            retry_after_seconds = error.retry_after or 0.0
            if (
                self._failures >= self._network.attempts
                or retry_after_seconds > self._network.longest_retry_after_seconds
            ):
                raise error
            pause = max(self._backoff.delay(self._failures).total_seconds(), retry_after_seconds)
            self._until = self._clock.monotonic() + pause
        await self._clock.sleep(max(0.0, self._until - self._clock.monotonic()))


class DownloadAttempt:
    """The file from the bytes that are there to the last one."""

    def __init__(
        self,
        order: FileOrder,
        part: PartialFile,
        remote: DownloadSource,
        mark: DownloadMark,
        tools: DownloadTools,
        patience: Patience,
    ) -> None:
        self.fetched_bytes = 0
        self._order = order
        self._part = part
        self._remote = remote
        self._mark = mark
        self._tools = tools
        self._patience = patience
        self._ledger: PieceLedger | None = None
        self._is_stream = self._is_spread = self._is_rangeless = False
        self._validator = ""
        self._workers = 0
        self._size: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._wake_hashing: Callable[[], None] = lambda: None
        self._group: asyncio.TaskGroup

    async def run(self) -> PrefixHash:
        self._mark.state = FileState.FETCHING
        self._take_up()
        try:
            with first_failure(DownloadError, StreamBroke, OSError):
                async with task_group() as group:
                    hashing = group.create_task(self._hash(), name="hash")
                    await self._fetch()
                    self._mark.state = FileState.CHECKING
            return hashing.result()
        finally:
            if self._ledger is not None:
                if not self._ledger.done_bytes:
                    self._part.empty()  # there is nothing to go on with
                self._ledger.close()

    def _take_up(self) -> None:
        """Go on with what an earlier attempt left, if it is of use; begin a ledger if all is known that it needs."""
        ledger = self._part.read_ledger()
        if ledger is not None and not self._is_useful(ledger):
            ledger.close()
            ledger = None
        if ledger is None and self._order.size and self._order.digest:
            ledger = self._begin_ledger(self._order.size, "")
        if ledger is None:
            self._part.empty()
            return
        self._use(ledger)

    def _is_useful(self, ledger: PieceLedger) -> bool:
        facts = ledger.facts
        if self._order.size not in (None, facts.size) or facts.size > self._tools.limits.largest_bytes:
            return False
        if facts.identity == _AS_STREAM + self._identity():
            return ledger.is_whole and facts.boot == _boot_id()
        if facts.identity != self._identity():
            return False
        has_proof = bool(self._order.digest) or (facts.boot == _boot_id() != "")
        return has_proof and bool(self._order.digest or facts.validator or ledger.is_whole)

    def _identity(self) -> str:
        return self._order.digest or f"url:{key_of(self._order.url)}"

    def _begin_ledger(self, size: int, validator: str) -> PieceLedger:
        self._check_room(size)
        facts = LedgerFacts(
            size=size,
            piece_bytes=self._tools.limits.piece_bytes,
            boot=_boot_id(),
            identity=self._identity(),
            validator=validator,
        )
        return self._part.new_ledger(facts)

    def _use(self, ledger: PieceLedger) -> PieceLedger:
        self._ledger = ledger
        self._validator = "" if self._order.digest else ledger.facts.validator
        self._mark.total_bytes = ledger.size
        self._mark.reach(ledger.done_bytes)
        self._size.set_result(ledger.size)
        return ledger

    def _check_room(self, size: int) -> None:
        status = os.fstatvfs(self._part.descriptor)
        free, allocated_bytes = status.f_bavail * status.f_frsize, os.fstat(self._part.descriptor).st_blocks * 512
        needed, reserve = max(0, size - allocated_bytes), self._tools.limits.free_bytes
        if needed + reserve > free:
            text = f"{size_text(needed)} are needed, {size_text(reserve)} shall stay free"
            raise TooLittleDisk(f"{self._order.destination}: {text}, and there are {size_text(free)}")

    async def _hash(self) -> PrefixHash:
        size = await self._size
        ledger = self._ledger
        prefix = ledger.prefix if ledger is not None else lambda: size
        hashing = PrefixHash(self._part.descriptor, size, self._order.digest, prefix=prefix)
        self._wake_hashing = hashing.wake
        await in_thread(hashing.run, stop=hashing.stop)
        return hashing

    async def _fetch(self) -> None:
        if self._ledger is not None and self._ledger.is_whole:
            return
        with first_failure(DownloadError, StreamBroke, OSError):
            async with task_group() as self._group:
                self._group.create_task(self._work(), name="range")

    def _spread(self) -> None:
        """Begin more connections, now that the server has shown that it gives ranges."""
        if self._is_spread or self._ledger is None:
            return
        self._is_spread = True
        more = min(self._tools.limits.connections, self._ledger.open_pieces) - 1
        for _ in range(more):
            self._group.create_task(self._work(), name="range")

    async def _work(self) -> None:
        self._workers += 1
        while (span := self._claim()) is not None:
            began_in = self._patience.round
            try:
                await self._transfer(span)
            except ServerUnavailable as error:
                if self._is_stream:
                    raise StreamBroke(error) from error
                if error.is_crowded and self._workers > 1:
                    break  # one connection fewer may be what the server asks for
                await self._patience.after(error, began_in)
            finally:
                if self._ledger is not None and span.end is not None:
                    self._ledger.release((span.start, span.end))
            if self._is_stream:
                break
        self._workers -= 1

    def _claim(self) -> ByteSpan | None:
        if self._ledger is not None:
            claimed = self._ledger.claim(self._tools.limits.connections)
            return None if claimed is None else ByteSpan(start=claimed[0], end=claimed[1])
        if self._size.done():
            return None
        is_whole_wanted = self._is_rangeless or self._order.size == 0
        return ByteSpan(start=0, end=None if is_whole_wanted else self._tools.limits.piece_bytes)

    async def _transfer(self, span: ByteSpan) -> None:
        reception = _Reception(self, self._part, span, self._tools.limits)
        try:
            await self._tools.transfers.fetch(self._remote, span, self._validator, reception)
        except RemoteFileChanged:
            if span.start or self._is_rangeless or self._size.done():
                raise
            self._is_rangeless = True  # an empty file has no ranges
            return
        finally:
            reception.flush()
        reception.check_end(host_of(self._order.url))
        if not self._size.done():
            self._mark.total_bytes = reception.position
            self._size.set_result(reception.position)

    def began(self, head: ResponseHead, span: ByteSpan) -> int | None:
        """Decide what a response means. Return where its body ends; None: nobody knows."""
        if head.status == 206:
            return self._began_range(head, span)
        if self._is_spread and not self._validator:
            raise ServerUnavailable(f"{host_of(self._order.url)} gave a whole file where a part was asked for")
        if self._validator or (self._ledger is not None and self._ledger.done_bytes):
            raise RemoteFileChanged(f"{self._order.destination} is another file than at the beginning of its download")
        self._is_stream = True
        size = self._announced(head.length)
        if size is None:
            return None
        ledger = self._ledger or self._use(self._begin_ledger(size, head.validator))
        ledger.relabel(_AS_STREAM + self._identity())
        ledger.hold((0, size))
        return size

    def _began_range(self, head: ResponseHead, span: ByteSpan) -> int:
        stated, host = head.content_range, host_of(self._order.url)
        if stated is None or stated[0] != span.start or stated[1] > (span.end or stated[1]):
            raise ServerUnavailable(f"{host} gave another part than the one from byte {span.start} on")
        size = self._announced(stated[2])
        if size is None or size < stated[1]:
            raise DownloadRefused(f"{host} does not say how large {self._order.destination} is")
        if self._validator and head.validator != self._validator:
            raise RemoteFileChanged(f"{self._order.destination} changed on {host} while it was downloaded")
        if self._ledger is None:
            ledger = self._use(self._begin_ledger(size, head.validator))
            ledger.hold((0, min(size, self._tools.limits.piece_bytes)))
        self._spread()
        return stated[1]

    def _announced(self, size: int | None) -> int | None:
        """The size of the file, from what the server states and what was promised, which must be the same."""
        expected = self._ledger.size if self._ledger is not None else self._order.size
        if size is None:
            return expected
        if size > self._tools.limits.largest_bytes:
            raise too_large(self._order.destination, self._tools.limits)
        if expected is not None and size != expected:
            text = (
                f"{self._order.destination}: {host_of(self._order.url)} announces {size} bytes where {expected} belong"
            )
            raise RemoteFileChanged(text) if self._order.size is None else DownloadDamaged(text)
        return size

    def wrote(self, position: int, count: int) -> None:
        self.fetched_bytes += count
        if self._ledger is None:
            self._mark.reach(position + count)
            return
        if self._ledger.advance(position, count):
            self._wake_hashing()
            self._check_room(0)
        self._mark.reach(self._ledger.done_bytes)
        if not self._is_stream:
            self._patience.forget()


class _Reception:
    """One response on its way to the disk."""

    def __init__(self, attempt: DownloadAttempt, part: PartialFile, span: ByteSpan, limits: DownloadLimits) -> None:
        self.position = span.start
        """Up to where bytes are written."""
        self._attempt = attempt
        self._part = part
        self._span = span
        self._limits = limits
        self._end: int | None = None
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._clock = asyncio.get_running_loop().time
        self._flushed_at = self._clock()

    def begin(self, head: ResponseHead) -> None:
        self._end = self._attempt.began(head, self._span)
        if head.status == 200:
            self.position = 0

    def write(self, data: bytes) -> None:
        end = self.position + self._held_bytes + len(data)
        if end > (self._limits.largest_bytes if self._end is None else self._end):
            raise DownloadDamaged(f"the body goes on after byte {self._end or self._limits.largest_bytes}")
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= _WRITTEN_AT_ONCE or self._clock() - self._flushed_at > _WRITTEN_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is held. Bytes of a failed response too: the next one goes on after them."""
        chunks, count = self._chunks, self._held_bytes
        self._chunks, self._held_bytes, self._flushed_at = [], 0, self._clock()
        if chunks:
            self._part.write(chunks, self.position)
            self._attempt.wrote(self.position, count)
            self.position += count

    def check_end(self, host: str) -> None:
        if self._end is not None and self.position < self._end:
            raise ServerUnavailable(f"{host}: the answer broke off")


def _boot_id() -> str:
    """Which life of this machine it is; empty: nobody knows."""
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()[:64]
    return ""
