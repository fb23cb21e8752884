"""Receives files over HTTP: threads write and hash the body while the next bytes arrive. Uses a few megabytes of
memory, however large the file is."""

import asyncio
import contextlib
import functools
import threading
from pathlib import Path
from typing import Final

from aiohttp import web

from corral.wire.files import ContentRange, is_pending
from corral.worker.files import refusals
from corral.worker.files.bodies import SHORTEST, BodyTransfer, arrived_body, invite, mark_taken, take_over
from corral.worker.files.receiving import RangedUpload, Upload, WholeUpload
from corral.worker.files.store import FileStore
from corral.worker.files.threads import Threads, finished

BATCH: Final = 2 * 1024 * 1024
"""Bytes per batch for threads: enough to make the overhead small."""
_MOST: Final = 2**63 - 1


class Uploads:
    def __init__(self, store: FileStore, threads: Threads, *, stall_seconds: float) -> None:
        self._store = store
        self._threads = threads
        self._stall_seconds = stall_seconds
        self._ending = threading.Event()

    def end(self) -> None:
        """Abort large transfers; ranged uploads can be resumed."""
        self._ending.set()

    async def receive(self, request: web.BaseRequest, key: str) -> Path | int:
        """Return the path of the finished file, or how many bytes of it have been received so far."""
        # A header's bytes may be no valid text, and this one is stored and reported.
        stated_hash = request.headers.get("X-Content-SHA256", "").encode(errors="replace").decode()
        digest = stated_hash.strip().lower()
        content_range = request.headers.get("Content-Range", "")
        span = parse_content_range(content_range) if content_range else None
        if is_pending(digest) and (span is None or span.is_last):
            raise refusals.bad_request("the last range of a file must state its hash")
        if span is not None:
            return await self._receive_range(request, key, span, digest)
        length = request.content_length
        async with self._threads.opened(lambda: WholeUpload.open(self._store, key, length=length)) as upload:
            await self._take(request, upload, limit=None)
            return await self._threads.run(lambda: upload.finish(digest))

    async def _receive_range(self, request: web.BaseRequest, key: str, span: ContentRange, digest: str) -> Path | int:
        if (body := arrived_body(request, span.length)) is not None:
            return await self._threads.run(lambda: receive_at_once(self._store, key, span, digest, body))
        async with self._threads.opened(lambda: _Opened(self._store, key, span, digest)) as opened:
            upload = opened.upload
            if isinstance(upload, Path):
                return upload
            taken = await self._take(request, upload, limit=span.length)
            if taken < span.length:
                raise refusals.bad_request(f"short body: got {taken} expected {span.length}")
            if upload.size < span.total:
                return upload.size
            return await self._threads.run(lambda: upload.finish(upload.expected(digest)))

    async def _take(self, request: web.BaseRequest, upload: Upload, *, limit: int | None) -> int:
        """Append the body, at most `limit` bytes. What arrived before a failure is appended too."""
        invite(request)
        length = request.content_length or 0
        if length >= SHORTEST and limit in (None, length) and self._threads.has_lane:
            taken = await self._take_directly(request, upload, length)
            if taken is not None:
                return taken
        writer = UploadWriter(upload, self._threads)
        taken = 0
        try:
            while limit is None or taken < limit:
                piece = await self._piece(request)
                if not piece:
                    break
                if limit is not None:
                    piece = piece[: limit - taken]
                taken += len(piece)
                await writer.add(piece)
        finally:
            await writer.flush()
        return taken

    async def _take_directly(self, request: web.BaseRequest, upload: Upload, length: int) -> int | None:
        """Receive over the direct path; None when it is not available."""
        connection = take_over(request)
        if connection is None:
            return None
        source, begun = connection
        mark_taken(request, is_whole=False)

        with source:
            transfer = BodyTransfer(
                source,
                upload,
                begun=begun,
                length=length,
                stall_seconds=self._stall_seconds,
                is_ending=self._ending.is_set,
            )

            def run() -> int:
                upload.reserve(length)
                return transfer.run()

            taken = await self._threads.run_lane(run)
        mark_taken(request, is_whole=True)
        return taken

    async def _piece(self, request: web.BaseRequest) -> bytes:
        """Return the next piece; empty at the end of the body."""
        try:
            async with asyncio.timeout(self._stall_seconds):
                return await request.content.readany()
        except (web.RequestPayloadError, ConnectionError, TimeoutError) as error:
            raise refusals.FileRefused(500, f"reading body: {str(error) or type(error).__name__}") from error


def receive_at_once(store: FileStore, key: str, span: ContentRange, digest: str, body: bytes) -> Path | int:
    """Receive a range of which all bytes are here. Return the path of the finished file, or how many bytes of it have
    been received so far. Blocks."""
    with contextlib.closing(_Opened(store, key, span, digest)) as opened:
        upload = opened.upload
        if isinstance(upload, Path):
            return upload
        upload.write([body])
        upload.hash([body])
        return upload.size if upload.size < span.total else upload.finish(upload.expected(digest))


class UploadWriter:
    """Writes and hashes one batch in threads while the next one is collected."""

    def __init__(self, upload: Upload, threads: Threads) -> None:
        self._upload = upload
        self._threads = threads
        self._batch: list[bytes] = []
        self._size = 0
        self._pending: list[asyncio.Future[None]] = []

    async def add(self, piece: bytes) -> None:
        self._batch.append(piece)
        self._size += len(piece)
        if self._size >= BATCH:
            await self._hand_over()

    async def flush(self) -> None:
        """Write the rest. After a failure there is nothing left to write."""
        if self._batch:
            await self._hand_over()
        await self._settle()

    async def _hand_over(self) -> None:
        batch, self._batch, self._size = self._batch, [], 0
        await self._settle()
        works = (functools.partial(self._upload.write, batch), functools.partial(self._upload.hash, batch))
        self._pending = [self._threads.begin(work) for work in works]

    async def _settle(self) -> None:
        pending, self._pending = self._pending, []
        await finished(*pending)
        for future in pending:
            future.result()


class _Opened:
    """A ranged upload, or the path of a file that is complete already."""

    def __init__(self, store: FileStore, key: str, span: ContentRange, digest: str) -> None:
        self.upload = RangedUpload.open(store, key, span, digest)

    def close(self) -> None:
        if isinstance(self.upload, RangedUpload):
            self.upload.close()


def parse_content_range(text: str) -> ContentRange:
    """Parse a Content-Range. All three numbers must be there and consistent; else it is refused in LocalAI's words."""
    unit, _, rest = text.strip().partition(" ")
    if unit != "bytes":
        raise refusals.bad_request('invalid Content-Range: missing "bytes" prefix')
    span, slash, total = rest.strip().partition("/")
    if not slash:
        raise refusals.bad_request("invalid Content-Range: missing /total")
    start, dash, end = span.partition("-")
    if not dash:
        raise refusals.bad_request("invalid Content-Range: missing - separator")
    content_range = ContentRange(_number("start", start), _number("end", end), _number("total", total))
    if content_range.end < content_range.start or content_range.total <= content_range.end:
        raise refusals.bad_request(
            f"invalid Content-Range range: {content_range.start}-{content_range.end}/{content_range.total}"
        )
    return content_range


def _number(which: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _unusable(which, text, "invalid syntax")
    if len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise _unusable(which, text, "value out of range")
    return int(text)


def _unusable(which: str, text: str, problem: str) -> refusals.FileRefused:
    return refusals.bad_request(f'invalid Content-Range {which}: strconv.ParseInt: parsing "{text}": {problem}')
