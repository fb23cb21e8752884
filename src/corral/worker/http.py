"""The worker's own HTTP server: health and readiness for everyone, everything under /v1/ only with a bearer token."""

import asyncio
import errno
import hmac
import html
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, Self

from aiohttp import web

from corral.base.errors import AddressInUse, SettingInvalid
from corral.wire.nodes import WORKER_HEADER
from corral.worker.callers import CallerLimits, UnknownCallers
from corral.worker.files.bodies import drain, is_left, is_spoilt
from corral.worker.files.keys import cleaned, decoded
from corral.worker.files.refusals import FileRefused, check_method
from corral.worker.membership.addresses import HostPort
from corral.worker.membership.registration import Presence

log = logging.getLogger(__name__)


class GuardedServer(web.Server):
    """Closes a connection whose first head does not come in time, and the oldest strangers where there are too many.

    A caller is a stranger until `identify` is called for one of its requests.
    """

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: CallerLimits,
        **options: Any,
    ) -> None:
        super().__init__(answer, **options)
        self._limits = limits
        self._unknown: UnknownCallers[asyncio.Transport] = UnknownCallers(limits)
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self._deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def note_head(self, request: web.BaseRequest) -> None:
        """The head of a request is complete, whoever sent it."""
        if (deadline := self._deadlines.pop(request.protocol, None)) is not None:
            deadline.cancel()
        if (transport := self._transports.get(request.protocol)) is not None:
            self._unknown.note_words(transport)

    def identify(self, request: web.BaseRequest) -> None:
        """The request shows that its sender may be here: leave its connection alone from now on."""
        if (transport := self._transports.get(request.protocol)) is not None:
            self._unknown.forget(transport)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        peer = transport.get_extra_info("peername")
        superfluous = self._unknown.admit(transport, str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if superfluous is not None:
            superfluous.abort()
        self._transports[handler] = transport
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(self._limits.opening_seconds, transport.abort)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if (deadline := self._deadlines.pop(handler, None)) is not None:
            deadline.cancel()
        if (transport := self._transports.pop(handler, None)) is not None:
            self._unknown.forget(transport)


class BusLink(Protocol):
    @property
    def connected(self) -> bool: ...

    @property
    def refused(self) -> frozenset[str]: ...


def readiness_problems(presence: Presence, bus: BusLink) -> list[str]:
    """Reasons why this worker is not ready; empty when it is.

    Ready means registered with a frontend, connected to NATS, and allowed to listen there. A node pending approval is
    ready: what it waits for is a person.
    """
    reasons = {
        "shutting down": presence.is_leaving,
        "not registered with a frontend": presence.member is None,
        "not connected to NATS": not bus.connected and not _waits_for_nats_user(presence),
    }
    refused = [f"not allowed to listen to {subject}" for subject in sorted(bus.refused)]
    return [reason for reason, holds in reasons.items() if holds] + refused


def _waits_for_nats_user(presence: Presence) -> bool:
    return presence.member is not None and presence.member.waits_for_nats_user


IDLE_SECONDS: Final = 30
"""How long a connection may stay idle, or without a complete head, after its first request: LocalAI's bound."""
CLOSE_SECONDS: Final = 5
"""How long requests that are being answered may delay the end."""
MAX_HEAD_FIELD: Final = 8190
LINGER_SECONDS: Final = 10.0
"""How long the rest of a body is read after its request was answered. If the connection were closed at once, a sender
in the middle of gigabytes would see that, and not the answer."""
STRANGER_LINGER_SECONDS: Final = 2.0
STRANGER_BYTES: Final = 64 * 1024
"""How much of a body is read, and for how long, when the request showed no valid token: enough that the sender of a
small body sees the answer, and too little to be worth an attack."""
READ_BUFFER: Final = 512 * 1024
"""Bytes that may wait for their reader on one connection. Files come fastest in pieces of about this size."""

_SILENT: Final = logging.Logger("corral.worker.http.protocol", level=logging.CRITICAL)
"""The server logs a traceback for each malformed request, so any port scan would fill the logs. What our own handlers
raise is logged here."""

PathHandler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]
"""Receives the request and the decoded rest of its path."""


class Routes(Protocol):
    """A part of the server with routes of its own, all below /v1/."""

    def table(self) -> Mapping[str, PathHandler]:
        """Return handlers by path. A path that ends with a slash matches everything below it."""

    def end(self) -> None:
        """The server is about to close: end streams that have no end of their own."""


def try_to_listen(address: HostPort) -> None:
    """Bind and release the address, so that a conflict is reported before anything is written."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        raise _cannot_listen(address, error) from error


def _cannot_listen(address: HostPort, error: OSError) -> AddressInUse | SettingInvalid:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"the worker's HTTP address {address} is taken by another program; set http_address "
            "(LOCALAI_HTTP_ADDR), or another base port with address (LOCALAI_ADDR)"
        )
    return SettingInvalid("http_address", f"cannot listen on {address}: {error.strerror or error}")


class HttpServer:
    """Listens from the beginning to the end of the `async with` block."""

    def __init__(  # noqa: PLR0913 - what the server needs to know
        self,
        *,
        address: HostPort,
        readiness: Callable[[], list[str]],
        bearers: Callable[[], Sequence[str]],
        routes: Sequence[Routes] = (),
        is_open: Callable[[], bool] = lambda: False,
        admits: Callable[[web.BaseRequest, str], bool] = lambda request, path: False,
        me: str = "",
        limits: CallerLimits | None = None,
    ) -> None:
        """`readiness` returns why the worker is not ready, `bearers` the accepted tokens, `is_open` whether none is
        needed, `admits` whether a request for a path shows something else that opens it. They are asked for every
        request. `me` is the worker's own name, which answers of the liveness probe carry; `limits` are for callers
        that have shown nothing that opens it."""
        self._identity_headers = {WORKER_HEADER: me} if me else {}
        self._address = address
        self._readiness = readiness
        self._bearers = bearers
        self._is_open = is_open
        self._admits = admits
        self._routes = routes
        self._table: Mapping[str, PathHandler] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            **{path: handler for part in routes for path, handler in part.table().items()},
        }
        self._server = GuardedServer(
            self._answer,
            limits or CallerLimits(),
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=IDLE_SECONDS,
            max_line_size=MAX_HEAD_FIELD,
            max_field_size=MAX_HEAD_FIELD,
            read_bufsize=READ_BUFFER,
            lingering_time=0,  # see LINGER_SECONDS
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=CLOSE_SECONDS)

    @property
    def port(self) -> int:
        """The port that is really bound, also when 0 was asked for."""
        return int(self._runner.addresses[0][1])

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            # `::` means all addresses, as in Go's servers; asyncio would take it for IPv6 only.
            host = None if self._address.host in ("", "::") else self._address.host
            await web.TCPSite(self._runner, host, self._address.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise _cannot_listen(self._address, error) from error
        log.info("HTTP server listens on %s", self._address, extra={"event": "http.listening"})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening, let running answers end, close. May be called twice."""
        for part in self._routes:
            part.end()
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer; where the body was not read to its end, send the answer first and read on for a while."""
        self._server.note_head(request)
        response = await self._response(request)
        if is_spoilt(request):
            response.force_close()
        if not is_left(request):
            return response
        is_authorised = self._is_authorised(request)
        if not is_authorised:
            response.force_close()
        await response.prepare(request)
        await response.write_eof()
        if is_authorised:
            await drain(request, seconds=LINGER_SECONDS)
        else:
            await drain(request, seconds=STRANGER_LINGER_SECONDS, at_most=STRANGER_BYTES)
        return response

    async def _response(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._handle(request)
        except FileRefused as refusal:
            body = f"{refusal.text}\n".encode(errors="replace")  # names of files in it need not be valid text
            return web.Response(
                status=refusal.status, body=body, content_type="text/plain", charset="utf-8", headers=refusal.headers
            )
        except (ConnectionError, web.HTTPException):
            raise  # a client that is gone has the right to be
        except Exception:
            log.exception("request failed", extra={"event": "http.failed", "path": request.path})
            return web.Response(status=500, text="internal error\n")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = request.rel_url.raw_path
        path = decoded(raw)
        # Below /v1/, however that is spelled, not even the routes are revealed without a token.
        is_private = any(f"{spelling}/".startswith("/v1/") for spelling in (raw, path, cleaned(path)))
        if self._is_authorised(request) or self._admits(request, path):
            self._server.identify(request)
        elif is_private:
            raise FileRefused(401, "unauthorized")
        if (clean := cleaned(raw)) != raw:
            return _redirect(request, clean)
        beginning = self._beginning(raw)
        if beginning is None:
            raise FileRefused(404, "404 page not found")
        if beginning not in self._table:
            return _redirect(request, f"{clean}/")
        return await self._table[beginning](request, path.removeprefix(beginning))

    def _beginning(self, raw: str) -> str | None:
        """The entry of the table that a path belongs to, compared part by part: an encoded slash separates none."""
        parts = [decoded(part) for part in raw.split("/")]
        best = None
        for entry in self._table:
            names = entry.split("/")
            is_below = entry.endswith("/") and len(parts) >= len(names) and parts[: len(names) - 1] == names[:-1]
            if (is_below or parts == names) and (best is None or len(entry) > len(best)):
                best = entry
        if best is None and f"{'/'.join(parts)}/" in self._table:
            return "/".join(parts)
        return best

    def _is_authorised(self, request: web.BaseRequest) -> bool:
        """Compare all tokens, even after a match, so that the duration reveals nothing."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        presented = token.strip().encode("utf-8", errors="surrogateescape")
        matches = [hmac.compare_digest(presented, bearer.encode()) for bearer in self._bearers() if bearer]
        return self._is_open() or (scheme.lower() == "bearer" and any(matches))

    async def _healthz(self, request: web.BaseRequest, subpath: str) -> web.StreamResponse:
        check_method(request.method, "GET", "HEAD")
        return web.Response(text="ok", headers=self._identity_headers)

    async def _readyz(self, request: web.BaseRequest, subpath: str) -> web.StreamResponse:
        check_method(request.method, "GET", "HEAD")
        if problems := self._readiness():
            return web.Response(status=503, text="not ready: " + ", ".join(problems))
        return web.Response(text="ok")


def _redirect(request: web.BaseRequest, path: str) -> web.Response:
    """Redirect as Go's router does; LocalAI's clients refuse to follow it."""
    query = request.rel_url.raw_query_string
    location = f"{path}?{query}" if query else path
    headers = {"Location": location}
    if request.method not in ("GET", "HEAD"):
        return web.Response(status=307, headers=headers)
    text = f'<a href="{html.escape(location)}">Temporary Redirect</a>.\n\n'
    return web.Response(status=307, headers=headers, text=text, content_type="text/html")
