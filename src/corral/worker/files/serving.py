"""The worker's file server: the routes of frontends, with LocalAI's methods, statuses and texts, beside those of other
workers (`fetching.py`, `peers.py`) and the background tasks.
"""

import asyncio
import functools
import json
import logging
import os
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

import msgspec
from aiohttp import web

from corral.base.clock import Clock
from corral.base.open_directories import DIRECTORY_MODE
from corral.base.tasks import running
from corral.base.values import PartlyPrinted
from corral.oci.limits import Network
from corral.worker.config import FilesConfig
from corral.worker.files import disk
from corral.worker.files.bodies import parse_range
from corral.worker.files.fetching import FetchRoutes, FetchSettings, why_not_public
from corral.worker.files.keys import served_directories
from corral.worker.files.peers import PeerRoutes
from corral.worker.files.refusals import FileRefused, bad_request, check_method, disk_full, failed
from corral.worker.files.store import FileStore
from corral.worker.files.sweeping import Sweeper
from corral.worker.files.threads import Threads
from corral.worker.files.uploads import Uploads
from corral.worker.http import PathHandler, Routes

log = logging.getLogger(__name__)

PIECE: Final = 256 * 1024
LENGTH_STATED_BELOW: Final = 512
"""LocalAI's worker states the length of small bodies only, and sends others in chunks."""
_BYTES: Final = "application/octet-stream"


class _Source:
    """An open file, or a directory, which has no bytes."""

    def __init__(self, store: FileStore, key: str) -> None:
        self._file = store.open(key)
        self.size = 0 if self._file is None else os.fstat(self._file).st_size

    def read(self, offset: int, length: int) -> bytes:
        return b"" if self._file is None else os.pread(self._file, length, offset)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


FILES: Final = "/v1/files/"
LISTINGS: Final = "/v1/files-list/"
RANGES: Final = "/v1/corral/files/"


class FileRoutes:
    """Files are sent whole, as LocalAI's frontends ask for them, or as one range."""

    def __init__(self, store: FileStore, threads: Threads, *, stall_seconds: float) -> None:
        self._store = store
        self._threads = threads
        self._stall_seconds = stall_seconds
        self._uploads = Uploads(store, threads, stall_seconds=stall_seconds)
        self._files = {"HEAD": self._head, "GET": self._get, "PUT": self._put, "POST": self._post}

    def table(self) -> Mapping[str, PathHandler]:
        """Map path prefixes to handlers; the rest of the path is the key, decoded."""
        return {FILES: self._file, LISTINGS: self._listing, RANGES: self._range}

    def end(self) -> None:
        """Abort large transfers, so that the shutdown does not wait for them."""
        self._uploads.end()

    async def _file(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        return await _dispatched(self._files, request, key)

    async def _range(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        return await _dispatched({"GET": self._get_range}, request, key)

    async def _head(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        head = await self._threads.run(lambda: self._store.head(key))
        if head is None:
            raise FileRefused(404, "not found")
        headers = {
            "Accept-Ranges": "bytes",
            "X-File-Size": str(head.size),
            "X-Local-Path": str(head.path).replace("\r", " ").replace("\n", " "),
        }
        if head.target:
            headers["X-Target-SHA256"] = head.target
        elif digest := head.hash or await self._threads.run_long(lambda: self._store.digest(key)):
            headers["X-Content-SHA256"] = digest
        response = web.StreamResponse(headers=headers)
        response.content_length = head.size
        return response

    async def _get(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        """Send the whole file; an empty response for a directory, as LocalAI's worker does."""
        async with self._threads.opened(lambda: _Source(self._store, key)) as source:
            response = web.StreamResponse(headers={"Content-Type": _BYTES})
            if source.size < LENGTH_STATED_BELOW:
                response.content_length = source.size
            else:
                response.enable_chunked_encoding()
            return await self._send(request, response, source, range(source.size))

    async def _get_range(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        """Send the requested range, or the whole file. An extension: LocalAI's worker does not support ranges."""
        async with self._threads.opened(lambda: _Source(self._store, key)) as source:
            requested = request.headers.get("Range", "")
            span = parse_range(requested, source.size) if requested else range(source.size)
            headers = {"Content-Type": _BYTES, "Accept-Ranges": "bytes"}
            if requested:
                headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{source.size}"
            response = web.StreamResponse(status=206 if requested else 200, headers=headers)
            response.content_length = len(span)
            return await self._send(request, response, source, span)

    async def _send(
        self, request: web.BaseRequest, response: web.StreamResponse, source: "_Source", span: range
    ) -> web.StreamResponse:
        await response.prepare(request)
        offset = span.start
        while offset < span.stop:
            piece = await self._threads.run(functools.partial(source.read, offset, min(PIECE, span.stop - offset)))
            if not piece:  # the file became shorter than announced: abort, so that the peer notices
                raise ConnectionResetError("the file became shorter while it was sent")
            async with asyncio.timeout(self._stall_seconds):
                await response.write(piece)
            offset += len(piece)
        await response.write_eof()
        return response

    async def _put(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        received = await self._uploads.receive(request, key)
        if isinstance(received, Path):
            return _local_path(received)
        return web.Response(status=308, headers={"X-File-Size": str(received), "Range": f"bytes=0-{received - 1}"})

    async def _post(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        if key != "temp":
            raise FileRefused(404, "not found")
        name = f"localai-output-{secrets.randbelow(2**63)}.tmp"
        return _local_path(await self._threads.run(lambda: self._store.make_temporary(name)))

    async def _listing(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        check_method(request.method, "GET")
        try:
            files = await self._threads.run(lambda: self._store.listing(key))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileRefused(404, "directory not found") from error
        except OSError as error:
            raise failed("listing directory", error) from error
        return _json({"files": files or None})


async def _dispatched(handlers: Mapping[str, PathHandler], request: web.BaseRequest, key: str) -> web.StreamResponse:
    """Run the handler of the request's method, and convert disk errors to the protocol's responses."""
    method = request.method
    check_method(method, *handlers)
    if not key:
        raise bad_request("key is required")
    try:
        return await handlers[method](request, key)
    except ConnectionError:
        raise
    except OSError as error:
        if method == "GET" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileRefused(404, "file not found") from error
        if error.errno in disk.FULL:
            raise disk_full(error) from error
        raise failed("creating file" if method == "PUT" else "opening file", error) from error


def _local_path(path: Path) -> web.Response:
    return _json({"local_path": str(path)})


def _json(document: object) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return web.Response(body=text.encode(errors="replace"), content_type="application/json")


def _nobody() -> str:
    return ""


def _never() -> bool:
    return False


def _nothing() -> None:
    return None


class FileMember(PartlyPrinted, frozen=True, kw_only=True):
    """Who this worker is among others. By default it is nobody: it serves no other worker."""

    unprinted = ("environment",)

    node_id: Callable[[], str] = _nobody
    secret: Callable[[], str] = _nobody
    """The node's secret, from which control derives the keys of tickets."""
    network: Network = msgspec.field(default_factory=Network)
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    why_not: Callable[[str], Awaitable[str]] = why_not_public
    """Why a file is not fetched from a URL; empty: it may be."""
    may_ask: Callable[[], bool] = _never
    """Whether the present frontend is one that has workers fetch files."""
    tls: Callable[[], ssl.SSLContext | None] = _nothing
    """What workers with TLS are dialled with; None: this one has no certificate."""


class FileServing:
    """Serves routes and sweeps old files during the `async with` block."""

    def __init__(self, config: FilesConfig, *, models: Path, clock: Clock, member: FileMember | None = None) -> None:
        member = member or FileMember()
        stall_seconds = config.stall_timeout.total_seconds()
        self._directories = served_directories(models=models, staging=config.staging_path)
        self.store = FileStore(self._directories)
        self.threads = Threads()
        self._sweeper = Sweeper(self.store, self.threads, clock=clock, retention=config.retention)
        self._stack = AsyncExitStack()
        settings = FetchSettings(
            node_id=member.node_id,
            stall_seconds=stall_seconds,
            network=member.network,
            environment=member.environment,
            why_not=member.why_not,
            may_ask=member.may_ask,
            tls=member.tls,
        )
        self._peers = PeerRoutes(self.store, self.threads, clock, secret=member.secret, stall_seconds=stall_seconds)
        self.routes: Sequence[Routes] = (
            FileRoutes(self.store, self.threads, stall_seconds=stall_seconds),
            FetchRoutes(self.store, self.threads, settings),
            self._peers,
        )

    def admits(self, request: web.BaseRequest, path: str) -> bool:
        """Whether a request without the token of a frontend has a ticket."""
        return self._peers.admits(request, path)

    async def __aenter__(self) -> Self:
        await self.threads.run(self._make_directories)
        self._stack.push_async_callback(self.threads.close)
        self._stack.push_async_callback(asyncio.to_thread, self.store.close)
        await self._stack.enter_async_context(running(self._sweeper.run(), name="file sweeper"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _make_directories(self) -> None:
        """Log a directory that cannot be created, and refuse its files: the worker may be useful without them."""
        for area, path in self._directories.items():
            try:
                path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            except OSError as error:
                text = "no files can be kept under %s/: cannot create %s: %s"
                log.warning(text, area.value, path, error.strerror, extra={"event": "files.unusable"})
