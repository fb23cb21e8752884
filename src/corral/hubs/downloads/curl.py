"""HTTP by libcurl on the event loop: its sockets, its timer, its callbacks. The only module that imports it.

One request at a time per call, without redirects, retries or an opinion about statuses: see `transfers.py`.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import pycurl

from corral.base.http_facts import host_of, user_agent
from corral.base.values import PartlyPrinted
from corral.hubs.downloads.orders import DownloadInvalid, DownloadLimits, DownloadRefused, ServerUnavailable
from corral.oci.limits import Network

log = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 512 * 1024
_MOST_DEBT_SECONDS: Final = 0.05
"""How far ahead of a limited bandwidth reading may be: enough that pauses are few."""
_UNWANTED_BYTES: Final = 64 * 1024
"""How much of a body that nobody wants is read, to keep its connection."""
_BROKE_OFF: Final = "the answer broke off"
_DIAGNOSES: Final[Mapping[int, str]] = {
    pycurl.E_COULDNT_RESOLVE_PROXY: "the name of the proxy cannot be found",
    pycurl.E_COULDNT_CONNECT: "no connection",
    pycurl.E_OPERATION_TIMEDOUT: "does not answer in time",
    pycurl.E_SSL_CONNECT_ERROR: "TLS cannot be agreed upon",
    pycurl.E_PARTIAL_FILE: _BROKE_OFF,
    pycurl.E_RECV_ERROR: _BROKE_OFF,
    pycurl.E_SEND_ERROR: _BROKE_OFF,
    pycurl.E_GOT_NOTHING: "the connection ended without an answer",
}
_UNTRUSTED: Final = frozenset({pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CACERT_BADFILE})


class CurlExchange(Protocol):
    """Hears of one request and its response. Whatever it raises ends the request, and is raised by `ask`."""

    def on_connection(self, address: str) -> None:
        """Called before the request is sent, with the address of the peer; of the proxy, if there is one."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> bool:
        """Called with the names of headers in small letters. Returns whether the body is wanted."""

    def on_body(self, data: bytes) -> None: ...


class HostUnknown(ServerUnavailable):
    """The name of the server has no address of the kind that may be used."""


class CurlRequest(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("headers", "proxy")

    url: str
    headers: Sequence[str]
    proxy: str = ""
    is_ipv4_only: bool = False
    """Whether IPv6 addresses of the host are left out."""


class CurlClient:
    """All requests of one process. Holds the connections until it is closed."""

    def __init__(self, network: Network, limits: DownloadLimits) -> None:
        self._network = network
        self._limits = limits
        self._loop = _CurlLoop(limits.bytes_per_second)
        self._authorities = ssl.get_default_verify_paths()

    def close(self) -> None:
        self._loop.close()

    async def ask(self, request: CurlRequest, exchange: CurlExchange) -> None:
        """Send a request and hear its whole response. Raise a DownloadError when there is none, or too slowly."""
        handle, hearing = pycurl.Curl(), _Hearing(exchange, self._loop.spend)
        try:
            self._prepare(handle, request, hearing)
            ended = self._loop.add(handle)
            try:
                await self._attend(ended, hearing, host_of(request.url))
            finally:
                self._loop.remove(handle)
        finally:
            handle.close()
        hearing.settle(ended.result(), request)

    async def _attend(self, ended: "asyncio.Future[int]", hearing: "_Hearing", host: str) -> None:
        network = self._network
        while not ended.done():
            seen, had_head = hearing.received, hearing.has_head
            patience = network.stall_seconds if had_head else network.connect_seconds + network.answer_seconds
            await asyncio.wait({ended}, timeout=patience)
            if not ended.done() and had_head == hearing.has_head and hearing.received - seen < self._least():
                raise ServerUnavailable(f"{host} does not answer in time, or too slowly")

    def _least(self) -> int:
        """Bytes that must arrive in a window: fewer when our own limit shares little among many connections."""
        limit, least = self._limits.bytes_per_second, self._network.stall_bytes
        share = int(limit * self._network.stall_seconds / (4 * self._limits.connections_in_all))
        return max(1, min(least, share) if limit else least)

    def _prepare(self, handle: Any, request: CurlRequest, hearing: "_Hearing") -> None:
        options = {
            pycurl.URL: request.url,
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,  # streams of one connection would share its one window
            pycurl.HTTPHEADER: list(request.headers),
            pycurl.USERAGENT: user_agent(),
            pycurl.PROXY: request.proxy,  # empty: none, whatever the environment says
            pycurl.NOPROXY: "",
            pycurl.CONNECTTIMEOUT_MS: max(1, round(1000 * self._network.connect_seconds)),
            pycurl.IPRESOLVE: pycurl.IPRESOLVE_V4 if request.is_ipv4_only else pycurl.IPRESOLVE_WHATEVER,
            pycurl.NOSIGNAL: 1,
            pycurl.BUFFERSIZE: _BUFFER_BYTES,
            pycurl.PREREQFUNCTION: hearing.on_connection,
            pycurl.HEADERFUNCTION: hearing.on_header,
            pycurl.WRITEFUNCTION: hearing.on_body,
        }
        # libcurl comes with authorities of its own, which no setting of the machine reaches.
        if self._authorities.cafile is not None:
            options[pycurl.CAINFO] = self._authorities.cafile
        if self._authorities.capath is not None:
            options[pycurl.CAPATH] = self._authorities.capath
        for option, value in options.items():
            handle.setopt(option, value)


class _Hearing:
    """The callbacks of one request. No exception may reach libcurl, which would print it and go on."""

    def __init__(self, exchange: CurlExchange, spend: Callable[[int], bool]) -> None:
        self.received = 0
        self.has_head = False
        self._exchange = exchange
        self._receive = exchange.on_body
        self._spend = spend
        self._is_asked = self._is_wanted = False
        self._status = 0
        self._headers: dict[str, str] = {}
        self._error: BaseException | None = None

    def settle(self, code: int, request: CurlRequest) -> None:
        """Raise what ended the request, if something did."""
        if self._error is not None:
            raise self._error
        host = host_of(request.url)
        if code in _UNTRUSTED:
            raise DownloadRefused(f"{host}: its certificate is not trusted; SSL_CERT_FILE names further authorities")
        if code == pycurl.E_URL_MALFORMAT:
            raise DownloadInvalid(f"url: {host!r} is not a host")
        if code == pycurl.E_OK or (self.has_head and not self._is_wanted):
            return
        if code == pycurl.E_COULDNT_RESOLVE_HOST:
            raise HostUnknown(f"{host}: its name cannot be found")
        reason = _DIAGNOSES.get(code, f"it does not speak HTTP as expected (libcurl's error {code})")
        way = " through the proxy" if request.proxy and not self._is_asked else ""
        raise ServerUnavailable(f"{host}{way}: {reason}")

    def on_connection(self, address: str, *_: object) -> int:
        self._is_asked = True
        is_good = self._tell(lambda: self._exchange.on_connection(address))
        return int(pycurl.PREREQFUNC_OK if is_good else pycurl.PREREQFUNC_ABORT)

    def on_header(self, line: bytes) -> int | None:
        if not self._is_asked or self.has_head:
            return None  # of a proxy, or a trailer
        text = line.decode("latin-1").strip()
        if text.startswith("HTTP/"):
            self._headers.clear()
            status = text.split()[1:2]
            self._status = int(status[0]) if status and status[0].isdigit() else 0
        elif text:
            name, _, value = text.partition(":")
            self._headers[name.lower()] = value.strip()
        elif self._status >= 200:
            self.has_head = True
            return None if self._tell(self._on_head) else 0
        return None

    def _on_head(self) -> None:
        self._is_wanted = self._exchange.on_head(self._status, self._headers)

    def on_body(self, data: bytes) -> int | None:
        """Called for every 16 kB, so it is written for speed."""
        if not self._spend(len(data)):
            return int(pycurl.WRITEFUNC_PAUSE)
        self.received += len(data)
        try:
            if self._is_wanted:
                self._receive(data)
            elif self.received > _UNWANTED_BYTES:
                return 0
        except BaseException as error:
            log.debug("response refused", exc_info=error, extra={"event": "download.refused"})
            self._error = error
            return 0
        return None

    def _tell(self, call: Callable[[], None]) -> bool:
        """Keep an error for `settle`. Return whether the request may go on."""
        try:
            call()
        except BaseException as error:
            log.debug("response refused", exc_info=error, extra={"event": "download.refused"})
            self._error = error
            return False
        return True


class _CurlLoop:
    """libcurl's transfers on the event loop, and one bandwidth for all of them."""

    def __init__(self, bytes_per_second: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._timer: asyncio.Handle | None = None
        self._resuming: asyncio.Handle | None = None
        self._ended: dict[Any, asyncio.Future[int]] = {}
        self._sockets: set[int] = set()
        self._rate = bytes_per_second
        self._paid_until = self._loop.time()
        self._turn = 0

    def add(self, handle: Any) -> "asyncio.Future[int]":
        """Start a transfer. The future has libcurl's code when it ends."""
        ended = self._ended[handle] = self._loop.create_future()
        self._multi.add_handle(handle)
        return ended

    def remove(self, handle: Any) -> None:
        del self._ended[handle]
        self._multi.remove_handle(handle)

    def spend(self, count: int) -> bool:
        """Count bytes against the bandwidth. False: there is none left, and the transfer has to pause; it goes on by
        itself."""
        if not self._rate:
            return True
        now = self._loop.time()
        debt = self._paid_until - now
        if debt > _MOST_DEBT_SECONDS:
            if self._resuming is None:
                self._resuming = self._loop.call_later(debt, self._resume)
            return False
        self._paid_until = max(self._paid_until, now) + count / self._rate
        return True

    def close(self) -> None:
        for waiting in (self._timer, self._resuming):
            if waiting is not None:
                waiting.cancel()
        self._multi.close()
        for descriptor in tuple(self._sockets):
            self._forget(descriptor)

    def _on_socket(self, events: int, descriptor: int, *_: object) -> None:
        self._forget(descriptor)
        if events == pycurl.POLL_REMOVE:
            return
        self._sockets.add(descriptor)
        if events in (pycurl.POLL_IN, pycurl.POLL_INOUT):
            self._loop.add_reader(descriptor, self._act, descriptor, pycurl.CSELECT_IN)
        if events in (pycurl.POLL_OUT, pycurl.POLL_INOUT):
            self._loop.add_writer(descriptor, self._act, descriptor, pycurl.CSELECT_OUT)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._sockets:
            self._sockets.discard(descriptor)
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def _on_timer(self, milliseconds: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if milliseconds >= 0:
            self._timer = self._loop.call_later(milliseconds / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0)

    def _act(self, descriptor: int, events: int) -> None:
        self._multi.socket_action(descriptor, events)
        queued = 1
        while queued:
            queued, whole, failed = self._multi.info_read()
            for handle in whole:
                self._end(handle, pycurl.E_OK)
            for handle, code, _ in failed:
                self._end(handle, code)

    def _end(self, handle: Any, code: int) -> None:
        ended = self._ended.get(handle)
        if ended is not None and not ended.done():
            ended.set_result(code)

    def _resume(self) -> None:
        """Let all transfers go on; each time another one is the first, so that none starves."""
        self._resuming = None
        handles = self._under_way()
        self._turn += 1
        first = self._turn % max(len(handles), 1)
        for handle in handles[first:] + handles[:first]:
            handle.pause(pycurl.PAUSE_CONT)
        self._act(pycurl.SOCKET_TIMEOUT, 0)

    def _under_way(self) -> list[Any]:
        return [handle for handle, ended in self._ended.items() if not ended.done()]
