"""The worker's own HTTP server: health and readiness for everyone, everything under /v1/ only with a bearer token.

Answers in plain text, as LocalAI's worker does. Files and logs will be added under /v1/; until then there are none.
"""

import errno
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from aiohttp import web

from corral.agent.addresses import HostPort
from corral.agent.readiness import Readiness
from corral.base.errors import AddressInUse, SettingInvalid

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 30
"""How long a connection may stay without a complete request head: LocalAI's bound."""
CLOSE_SECONDS: Final = 5
"""How long requests that are being answered may delay the end."""
MAX_HEAD_FIELD: Final = 8190
MAX_BODY: Final = 64 * 1024
"""Of requests that carry no file."""

_SILENT: Final = logging.Logger("corral.agent.http.protocol", level=logging.CRITICAL)
"""The server logs a traceback for each malformed request, so any port scan would fill the logs. What our own handlers
raise is logged here."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _log_failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("request failed", extra={"event": "http.failed", "path": request.path})
        return web.Response(status=500, text="internal error")


class HttpServer:
    """Listens from the beginning to the end of the `async with` block."""

    def __init__(self, *, address: HostPort, readiness: Readiness, bearers: Sequence[str]) -> None:
        self._address = address
        self._readiness = readiness
        self._bearers = tuple(bearer.encode() for bearer in bearers if bearer)
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=IDLE_SECONDS,
            shutdown_timeout=CLOSE_SECONDS,
            max_line_size=MAX_HEAD_FIELD,
            max_field_size=MAX_HEAD_FIELD,
        )

    @property
    def port(self) -> int:
        """The port that is really bound, also when 0 was asked for."""
        return int(self._runner.addresses[0][1])

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host or None, self._address.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise self._cannot_listen(error) from error
        log.info("HTTP server listens on %s", self._address, extra={"event": "http.listening"})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening, let running answers end, close. May be called twice."""
        await self._runner.cleanup()

    def _cannot_listen(self, error: OSError) -> AddressInUse | SettingInvalid:
        if error.errno == errno.EADDRINUSE:
            return AddressInUse(
                f"the worker's HTTP address {self._address} is taken by another program; set http_address "
                "(LOCALAI_HTTP_ADDR), or another base port with address (LOCALAI_ADDR)"
            )
        return SettingInvalid("http_address", f"cannot listen on {self._address}: {error.strerror or error}")

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_BODY, middlewares=[_log_failures, self._guard])
        application.add_routes([web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)])
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/") and not self._is_authorised(request):
            return web.Response(status=401, text="unauthorized")
        return await handler(request)

    def _is_authorised(self, request: web.Request) -> bool:
        """Every bearer is compared, whichever fits, so that the time taken tells nothing."""
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        given = presented.strip().encode("utf-8", errors="surrogateescape")
        matches = [hmac.compare_digest(given, bearer) for bearer in self._bearers]
        return scheme.lower() == "bearer" and any(matches)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        if problems := self._readiness.problems():
            return web.Response(status=503, text="not ready: " + ", ".join(problems))
        return web.Response(text="ok")
