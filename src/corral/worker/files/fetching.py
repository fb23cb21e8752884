"""Fetches files: from another worker that has them, with a ticket, or from the public server that they came from.

A fetch from a worker goes into the same unfinished upload that a frontend would continue, and gets its name by the same
check of its digest. So it does not matter who lied or was killed in the middle: the next source goes on behind what is
there. Threads move the bytes, and a child process does for public servers; the event loop only tells how far they are.
"""

import asyncio
import http.client
import io
import logging
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec
from aiohttp import web

from corral.base.errors import CorralError
from corral.base.own_network import is_own_network
from corral.base.tasks import end_tasks, running, start_task
from corral.base.tls import TlsPeer
from corral.base.tls_tunnel import open_tunnel
from corral.hubs.downloads.downloader import Downloader
from corral.hubs.downloads.orders import DownloadError, DownloadOrder, FileOrder, TooLittleDisk
from corral.hubs.downloads.partial_files import PartialFolder
from corral.oci.limits import Network
from corral.wire.files import FETCHES, PEER_FILES, ContentRange, FetchAsk, FetchNews
from corral.wire.fleet_tls import FILE_SERVER, target_of
from corral.wire.tickets import NODE_HEADER, SCHEME
from corral.worker.files import disk
from corral.worker.files.bodies import BodyTransfer, Piece
from corral.worker.files.keys import Area
from corral.worker.files.receiving import RangedUpload
from corral.worker.files.refusals import FileRefused, bad_request, check_method
from corral.worker.files.store import FileKind, FileStore
from corral.worker.files.threads import Threads
from corral.worker.http import PathHandler
from corral.worker.membership.addresses import HostPort, parse_host_port

log = logging.getLogger(__name__)

_MOST_ASKED: Final = 64 * 1024
_TELL_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 5.0
_LARGEST_HEAD: Final = 64 * 1024
_MOST_BYTES: Final = 2**62
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_WORD: Final = re.compile(r"[!-~]{0,8192}")
"""What may stand in a line of a request: neither blanks nor ends of lines."""


class FetchFailed(CorralError):
    """The source does not give the file."""

    code = "fetch_failed"
    retryable = True


async def why_not_public(url: str) -> str:
    """Why a file is not fetched from this URL; empty: it may be. Nodes ask public servers only, by HTTPS."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or parts.scheme != "https" or "@" in parts.netloc:
        return "it is no https:// URL without a login"
    return f"{host} is no public host" if await is_own_network(host) else ""


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What fetches need of their worker."""

    node_id: Callable[[], str]
    """The id that tickets for this worker name."""
    stall_seconds: float
    network: Network
    environment: Mapping[str, str]
    """What the child process is started with."""
    why_not: Callable[[str], Awaitable[str]]
    """Why a file is not fetched from a URL; empty: it may be."""
    may_ask: Callable[[], bool]
    """Whether the present frontend is one that has workers fetch files."""
    tls: Callable[[], ssl.SSLContext | None]
    """What workers with TLS are dialled with; None: this one has no certificate."""


class PeerFetch:
    """A file of another worker, on its way here."""

    def __init__(self, store: FileStore, threads: Threads, ask: FetchAsk, settings: FetchSettings) -> None:
        self._store = store
        self._threads = threads
        self._ask = ask
        self._settings = settings
        self._ending = threading.Event()
        self.present = 0
        """Bytes that are there."""

    async def run(self) -> Path:
        """Where the file is. FetchFailed, FileRefused or OSError says why it is not; what came stays in any case."""
        return await self._threads.run_lane(self._fetch)

    def end(self) -> None:
        """Have it end soon."""
        self._ending.set()

    def write(self, upload: RangedUpload, pieces: Sequence[Piece]) -> None:
        upload.write(pieces)
        self.present = upload.size

    def _fetch(self) -> Path:
        ask = self._ask
        present = _present(self._store, ask)
        upload = RangedUpload.open(self._store, ask.key, ContentRange(present, ask.size - 1, ask.size), ask.digest)
        if isinstance(upload, Path):
            return upload
        try:
            self.present = present
            with self._connected() as source:
                begun = self._asked(source, present)
                upload.reserve(ask.size - present)
                self._take(source, upload, begun)
            return upload.finish(ask.digest)
        finally:
            upload.close()

    def _take(self, source: socket.socket, upload: RangedUpload, begun: bytes) -> None:
        BodyTransfer(
            source,
            _Counted(upload, self),
            begun=begun,
            length=self._ask.size - upload.size,
            stall_seconds=self._settings.stall_seconds,
            is_ending=self._ending.is_set,
        ).run()

    def _connected(self) -> socket.socket:
        place = parse_host_port(self._ask.peer)
        if place is None or not place.host:
            raise FetchFailed(f"{self._ask.peer[:200]!r} is no address of a worker")
        try:
            connection = self._dialled(place)
        except OSError as error:
            raise FetchFailed(f"{self._ask.peer} cannot be reached: {error.strerror or error}") from error
        connection.settimeout(self._settings.stall_seconds)
        return connection

    def _dialled(self, place: HostPort) -> socket.socket:
        if not self._ask.peer_name:
            return socket.create_connection((place.host, place.port), timeout=_CONNECT_SECONDS)
        context = self._settings.tls()
        if context is None:
            raise FetchFailed(
                f"{self._ask.peer} speaks TLS, and this worker has no certificate: set fleet_tls here too"
            )
        peer = TlsPeer(address=str(place), context=context, name=self._ask.peer_name)
        return open_tunnel(peer, connect_seconds=_CONNECT_SECONDS)

    def _asked(self, source: socket.socket, offset: int) -> bytes:
        """Ask for the file from an offset on; returns what came of it together with the head of the answer."""
        ask = self._ask
        lines = (
            f"GET {PEER_FILES}{quote(ask.peer_key)} HTTP/1.1",
            f"Host: {ask.peer}",
            f"Authorization: {SCHEME} {ask.ticket}",
            f"{NODE_HEADER}: {self._settings.node_id()}",
            f"Range: bytes={offset}-{ask.size - 1}",
            "Connection: close",
        )
        try:
            source.sendall("\r\n".join((*lines, "", "")).encode())
            head, begun = _head_of(source)
            status, headers = _read_head(head)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise FetchFailed(f"{ask.peer} does not answer as a worker does: {error}") from error
        expected = f"bytes {offset}-{ask.size - 1}/{ask.size}"
        if status != HTTPStatus.PARTIAL_CONTENT or headers.get("Content-Range", "") != expected:
            raise FetchFailed(f"{ask.peer} answers {status}, and not with the bytes from {offset} on")
        return begun[: ask.size - offset]


class _Counted:
    """What is fetched, on its way into the upload."""

    def __init__(self, upload: RangedUpload, fetch: PeerFetch) -> None:
        self._upload = upload
        self._fetch = fetch

    def write(self, pieces: Sequence[Piece]) -> None:
        self._fetch.write(self._upload, pieces)

    def hash(self, pieces: Sequence[Piece]) -> None:
        self._upload.hash(pieces)


def _head_of(source: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) > _LARGEST_HEAD:
            raise ValueError("its head is too long")
        if not (piece := source.recv(_LARGEST_HEAD)):
            raise ValueError("it closed the connection")
        received += piece
    return received[: end + 4], received[end + 4 :]


def _read_head(head: bytes) -> tuple[int, http.client.HTTPMessage]:
    first, _, rest = head.partition(b"\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("that is not HTTP")
    return int(words[1]), http.client.parse_headers(io.BytesIO(rest))


def _present(store: FileStore, ask: FetchAsk) -> int:
    """How much of the file is there from earlier attempts, whoever made them."""
    try:
        with store.place(ask.key) as place:
            lookup = store.find(place)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    is_begun = lookup.kind is FileKind.PARTIAL and lookup.target == ask.digest
    return lookup.size if is_begun and lookup.size < ask.size else 0


class OriginFetch:
    """A file of a public server, by a child process, as frontends download it. No credentials go along."""

    def __init__(self, store: FileStore, threads: Threads, ask: FetchAsk, settings: FetchSettings) -> None:
        self._store = store
        self._threads = threads
        self._ask = ask
        self._settings = settings
        self.present = 0
        """Bytes that are there."""

    async def run(self) -> Path:
        """Where the file is. FetchFailed, FileRefused, OSError or DownloadError says why it is not. What came stays for
        the next attempt when this is cancelled, and not when it failed."""
        ask, settings = self._ask, self._settings
        if why := await settings.why_not(ask.url):
            raise FetchFailed(f"the origin of the file is not asked: {why}")
        destination = self._store.path_below(ask.key, Area.MODELS)
        directory = self._store.areas[Area.MODELS].base
        file = FileOrder(url=ask.url, destination=destination, size=ask.size, digest=f"sha256:{ask.digest}")
        order = DownloadOrder(files=(file,), directory=str(directory), network=settings.network)
        try:
            async with (
                Downloader(order, environment=settings.environment) as child,
                running(self._follow(child), name="progress of a fetch"),
            ):
                await child.result()
        except DownloadError:
            await self._threads.run(lambda: _forget(directory, destination))  # another source sends all of it
            raise
        return await self._threads.run(lambda: self._store.adopt(ask.key, ask.digest, ask.size))

    def end(self) -> None:
        """The child ends with the request."""

    async def _follow(self, child: Downloader) -> None:
        async for news in child.progress():
            self.present = sum(file.current_bytes for file in news.files)


def _forget(directory: Path, destination: str) -> None:
    with PartialFolder(directory) as folder:
        folder.forget(destination)


class FetchRoutes:
    """Fetches a file for a frontend that asks for it, as long as the frontend stays connected."""

    def __init__(self, store: FileStore, threads: Threads, settings: FetchSettings) -> None:
        self._store = store
        self._threads = threads
        self._settings = settings
        self._under_way: set[PeerFetch | OriginFetch] = set()

    def table(self) -> Mapping[str, PathHandler]:
        return {FETCHES: self._fetch}

    def end(self) -> None:
        """Abort all fetches, so that the shutdown does not wait for them."""
        for fetch in self._under_way:
            fetch.end()

    async def _fetch(self, request: web.BaseRequest, _: str) -> web.StreamResponse:
        if not self._settings.may_ask():  # a worker of LocalAI's may be open to everybody
            raise FileRefused(404, "not found")
        check_method(request.method, "POST")
        ask = await _read_ask(request)
        kind = PeerFetch if ask.peer else OriginFetch
        fetch = kind(self._store, self._threads, ask, self._settings)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        self._under_way.add(fetch)
        work = start_task(_outcome(fetch), name="fetch")
        try:
            while not work.done():
                await response.write(_line(FetchNews(present=fetch.present)))
                await asyncio.wait([work], timeout=_TELL_SECONDS)
            await response.write(_line(work.result()))
            await response.write_eof()
        finally:
            self._under_way.discard(fetch)
            fetch.end()
            await end_tasks(work)
        return response


async def _read_ask(request: web.BaseRequest) -> FetchAsk:
    if (request.content_length or 0) > _MOST_ASKED:
        raise bad_request("the body is too long")
    try:
        ask = msgspec.json.decode(await request.read(), type=FetchAsk)
    except (msgspec.MsgspecError, ValueError) as error:
        raise bad_request(f"the body is not what a frontend asks for: {error}") from error
    if not _DIGEST.fullmatch(ask.digest):
        raise bad_request("digest: it takes a SHA-256 in small hexadecimal digits")
    if not 0 < ask.size <= _MOST_BYTES:
        raise bad_request(f"size: {ask.size} is not the size of a file that is fetched")
    if bool(ask.peer) == bool(ask.url):
        raise bad_request("peer, url: exactly one of them says where the file comes from")
    if ask.peer_name and target_of(ask.peer_name) != FILE_SERVER:
        raise bad_request("peer_name: it takes the name of a worker's file server")
    if not all(_WORD.fullmatch(text) for text in (ask.peer, ask.ticket, ask.url)):
        raise bad_request("peer, ticket, url: they take printable characters without blanks")
    return ask


async def _outcome(fetch: PeerFetch | OriginFetch) -> FetchNews:
    """How a fetch ended."""
    try:
        path = await fetch.run()
    except FileRefused as refusal:
        return FetchNews(present=fetch.present, error=refusal.text, is_full=refusal.status == 507)
    except OSError as error:
        return FetchNews(present=fetch.present, error=error.strerror or str(error), is_full=error.errno in disk.FULL)
    except CorralError as error:
        return FetchNews(present=fetch.present, error=error.message, is_full=isinstance(error, TooLittleDisk))
    return FetchNews(path=str(path).encode(errors="replace").decode())


def _line(news: FetchNews) -> bytes:
    return msgspec.json.encode(news) + b"\n"
