"""Serves files to other workers: exactly the one that a ticket of control names, while it has the digest of the ticket.

No other worker's secret is needed for it, and none is told. Large files go from the disk's cache to the socket inside
the kernel, by a thread.
"""

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from corral.base.clock import Clock
from corral.wire.files import PEER_FILES
from corral.wire.tickets import NODE_HEADER, SCHEME, FileTicket, check
from corral.worker.files import disk
from corral.worker.files.bodies import FileSender, mark_taken, parse_range, take_over
from corral.worker.files.refusals import FileRefused, check_method
from corral.worker.files.store import FileKind, FileStore
from corral.worker.files.threads import Threads
from corral.worker.http import PathHandler

log = logging.getLogger(__name__)

_FIRST: Final = 256 * 1024
"""Bytes that are sent together with the head."""


@dataclass(slots=True)
class _Served:
    """An open file that is as the ticket says."""

    file: int

    def close(self) -> None:
        os.close(self.file)


class PeerRoutes:
    """Answers workers that have a ticket."""

    def __init__(
        self, store: FileStore, threads: Threads, clock: Clock, *, secret: Callable[[], str], stall_seconds: float
    ) -> None:
        """`secret` is this node's own, of which control derives the keys of tickets."""
        self._store = store
        self._threads = threads
        self._clock = clock
        self._secret = secret
        self._stall_seconds = stall_seconds
        self._ending = threading.Event()

    def table(self) -> Mapping[str, PathHandler]:
        return {PEER_FILES: self._serve}

    def end(self) -> None:
        self._ending.set()

    def admits(self, request: web.BaseRequest, path: str) -> bool:
        """Whether a request without the token of a frontend may be answered: it has a ticket for this very file."""
        return path.startswith(PEER_FILES) and self._ticket(request, path.removeprefix(PEER_FILES)) is not None

    def _ticket(self, request: web.BaseRequest, key: str) -> FileTicket | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme != SCHEME:
            return None
        fetcher = request.headers.get(NODE_HEADER, "")
        ticket, problem = check(
            text.strip(), self._secret(), key=key, fetcher=fetcher, now=self._clock.now().timestamp()
        )
        if problem:
            log.warning(
                "a ticket is not good: %s", problem, extra={"event": "files.ticket_refused", "peer": request.remote}
            )
        return ticket

    async def _serve(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        check_method(request.method, "GET")
        ticket = self._ticket(request, key)
        if ticket is None:
            raise FileRefused(401, "unauthorized")
        async with self._threads.opened(lambda: self._opened(ticket)) as served:
            span = parse_range(request.headers.get("Range") or f"bytes=0-{ticket.size}", ticket.size)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Range": f"bytes {span.start}-{span.stop - 1}/{ticket.size}",
            }
            response = web.StreamResponse(status=206, headers=headers)
            response.content_length = len(span)
            response.force_close()
            await response.prepare(request)
            details = {"event": "files.served", "key": key, "fetcher": ticket.fetcher}
            log.info("another node fetches a file", extra=details)
            await self._send(request, response, served.file, span)
            return response

    def _opened(self, ticket: FileTicket) -> _Served:
        """The file, if it is whole and known to have the digest; else 404."""
        try:
            with self._store.place(ticket.key) as place:
                lookup = self._store.find(place)
                digest = self._store.hashes.known(place.directory, place.name)
                if lookup.kind is not FileKind.FINISHED or digest != ticket.digest or lookup.size != ticket.size:
                    raise FileRefused(404, "the file is not here, or is another one")
                return _Served(disk.open_existing(place.directory, place.name))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileRefused(404, "the file is not here") from error

    async def _send(self, request: web.BaseRequest, response: web.StreamResponse, file: int, span: range) -> None:
        """The first bytes over the event loop, with the head; all others by a thread past it, if possible."""
        transport = request.transport
        if isinstance(transport, asyncio.WriteTransport):
            transport.set_write_buffer_limits(high=0)  # so that a write returns when the kernel has all of it
        offset = await self._write(response, file, span)
        is_flushed = isinstance(transport, asyncio.WriteTransport) and not transport.get_write_buffer_size()
        connection = take_over(request) if offset < span.stop and is_flushed and self._threads.has_lane else None
        if connection is not None:
            target, _ = connection
            mark_taken(request, is_whole=True)
            rest = range(offset, span.stop)
            with target:
                sender = FileSender(
                    target, file, rest, stall_seconds=self._stall_seconds, is_ending=self._ending.is_set
                )
                await self._threads.run_lane(sender.run)
            return
        while offset < span.stop:
            offset = await self._write(response, file, range(offset, span.stop))
        await response.write_eof()

    async def _write(self, response: web.StreamResponse, file: int, span: range) -> int:
        """Write some bytes over the event loop; returns where to go on."""
        piece = await self._threads.run(functools.partial(os.pread, file, min(_FIRST, len(span)), span.start))
        if not piece:
            raise ConnectionResetError("the file became shorter while it was sent")
        async with asyncio.timeout(self._stall_seconds):
            await response.write(piece)
        return span.start + len(piece)
