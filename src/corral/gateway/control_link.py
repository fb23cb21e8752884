"""The connection to control: follows the view, sends reports, asks for models. All three survive an absence of control.

Uses neither the relay nor an HTTP client library: there are only a few calls per second, and a library would take a
third of the process's memory. Each call opens its own connection.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import httptools
import msgspec

from corral.base.errors import CorralError, PeerRefused, PeerUnavailable
from corral.base.retry import Backoff
from corral.gateway.config import GatewayConfig
from corral.gateway.tally import Ledger
from corral.gateway.upstream import Origin
from corral.gateway.view import Directory
from corral.wire.fleet_tls import CertificateAsk, IssuedCertificate
from corral.wire.view import EnsureModel, GatewayReport, Loading, decode_line

log = logging.getLogger(__name__)

VIEW: Final = "/api/v1/gateway/view"
REPORT: Final = "/api/v1/gateway/report"
ENSURE: Final = "/api/v1/gateway/ensure"
CERTIFICATE: Final = "/api/v1/gateway/certificate"
_CALL_SECONDS: Final = 10.0
_PIECE: Final = 65536
_MAX_LINE: Final = 256 * 1024 * 1024
STARTING_SECONDS: Final = 30.0
"""Until this many seconds after our own start, a control that does not answer is logged as starting, not as away."""
_encoder: Final = msgspec.json.Encoder()


class _ControlAnswer:
    """Parser state of a response that is being received."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.body = bytearray()
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        """Raise HttpParserError for malformed data, and PeerUnavailable when control closed the connection."""
        if not data:
            raise PeerUnavailable("control hung up")
        self._parser.feed_data(data)

    def check(self) -> None:
        if self.status >= 500:
            raise PeerUnavailable(f"control answered {self.status}")
        if self.status >= 400:
            raise PeerRefused(f"control answered {self.status}; check the gateway's key", status=self.status)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


def _away(error: Exception, failed_step: str) -> PeerUnavailable:
    """Return the error to raise. A control that is starting or restarting is the usual case, and the text says so."""
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return PeerUnavailable("control does not listen; it is being started, or away")
    return PeerUnavailable(f"{failed_step}: {error!r}")


class ControlLink:
    """Client for control's gateway routes. Implements `dispatch.Ensurer`."""

    def __init__(self, config: GatewayConfig) -> None:
        self._origin = Origin.of(config.control_url)
        self._host = self._origin.host_header.decode()
        self._key = config.control_key
        self._tls = (config.control_tls or ssl.create_default_context()) if self._origin.tls else None

    async def ensure(self, model: str) -> Loading:
        """Ask control to load the model. Raise PeerUnavailable or PeerRefused when it does not answer or refuses."""
        body = await self._post(ENSURE, EnsureModel(model=model))
        try:
            return msgspec.json.decode(body, type=Loading)
        except msgspec.MsgspecError as error:
            raise PeerUnavailable(f"control's answer was not understood: {error}") from error

    async def certificate(self, csr: str) -> IssuedCertificate:
        """Have a request for a certificate signed. Fails as `ensure` does."""
        body = await self._post(CERTIFICATE, CertificateAsk(csr=csr))
        try:
            return msgspec.json.decode(body, type=IssuedCertificate)
        except msgspec.MsgspecError as error:
            raise PeerUnavailable(f"control's answer was not understood: {error}") from error

    async def report(self, report: GatewayReport) -> None:
        await self._post(REPORT, report)

    async def _post(self, path: str, body: object) -> bytes:
        try:
            async with (
                asyncio.timeout(_CALL_SECONDS),
                self._request("POST", path, _encoder.encode(body)) as (reader, answer),
            ):
                while not answer.is_complete:
                    answer.feed(await reader.read(_PIECE))
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            raise _away(error, "control did not answer") from error
        answer.check()
        return bytes(answer.body)

    async def view_lines(self, silence: timedelta) -> AsyncIterator[bytes]:
        """Yield the lines of the view stream until control ends it. Raise PeerUnavailable when it breaks or stays
        silent."""
        try:
            async with self._request("GET", VIEW, b"") as (reader, answer):
                while not answer.is_complete:
                    async with asyncio.timeout(silence.total_seconds()):
                        answer.feed(await reader.read(_PIECE))
                    answer.check()
                    *lines, unfinished = answer.body.split(b"\n")
                    answer.body = unfinished
                    if len(unfinished) > _MAX_LINE:
                        raise PeerUnavailable("control's view is too large")
                    for line in lines:
                        yield bytes(line)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            raise _away(error, "control's view broke off") from error

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: bytes
    ) -> AsyncIterator[tuple[asyncio.StreamReader, _ControlAnswer]]:
        """Open a connection and send a request on it. Raise OSError or TimeoutError when that fails."""
        async with asyncio.timeout(_CALL_SECONDS):
            if self._origin.socket:
                reader, writer = await asyncio.open_unix_connection(self._origin.socket)
            else:
                reader, writer = await asyncio.open_connection(self._origin.host, self._origin.port, ssl=self._tls)
        try:
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self._key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            yield reader, _ControlAnswer()
        finally:
            writer.transport.abort()


class ViewFollower:
    """Keeps the directory up to date with control's view stream. Reconnecting requests a full view."""

    def __init__(self, link: ControlLink, directory: Directory, *, silence: timedelta, reconnect: Backoff) -> None:
        self._link = link
        self._directory = directory
        self._silence = silence
        self._reconnect = reconnect

    async def run(self) -> None:
        failures = 0
        logged: tuple[bool, str] | None = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            has_connected = False
            try:
                async for line in self._link.view_lines(self._silence):
                    self._directory.hear(decode_line(line), now=loop.time())
                    if not has_connected:
                        has_connected, failures, logged = True, 0, None
                        version = self._directory.version
                        log.info("view received", extra={"event": "gateway.view_received", "version": version})
                log.info("control ended the view", extra={"event": "gateway.view_ended"})
            except (CorralError, msgspec.MsgspecError) as error:
                is_starting = self._directory.version is None and loop.time() - began < STARTING_SECONDS
                if (is_starting, str(error)) != logged:  # log each new reason once, not every attempt
                    logged = (is_starting, str(error))
                    if is_starting:
                        log.info("waiting for control: %s", error, extra={"event": "gateway.waiting"})
                    else:
                        log.warning("no view from control: %s", error, extra={"event": "gateway.view_lost"})
            failures += 1
            self._directory.lost(now=loop.time())
            await asyncio.sleep(self._reconnect.delay(failures).total_seconds())


class GatewayReporter:
    """Sends control a periodic report about requests in flight and requests that ended."""

    def __init__(
        self,
        link: ControlLink,
        ledger: Ledger,
        *,
        complete: Callable[[GatewayReport], GatewayReport],
        period: timedelta,
    ) -> None:
        """`complete` fills in the values that are current when the report is sent."""
        self._link = link
        self._ledger = ledger
        self._complete = complete
        self._period = period
        self._was_silent = False
        self._alarm_at = 0.0
        self._is_due = asyncio.Event()

    def ring(self) -> None:
        """Report immediately: control is waiting for the news."""
        self._is_due.set()

    async def run(self) -> None:
        self._alarm_at = asyncio.get_running_loop().time() + STARTING_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period.total_seconds()):
                    await self._is_due.wait()
            self._is_due.clear()
            await self.send()

    async def send(self, *, is_last: bool = False) -> None:
        """Send one report. What control does not acknowledge is sent again with the next one."""
        report = self._complete(self._ledger.report())
        report.is_last = is_last
        try:
            await self._link.report(report)
        except CorralError as error:
            if not self._was_silent and asyncio.get_running_loop().time() >= self._alarm_at:
                self._was_silent = True
                log.warning("control took no report: %s", error, extra={"event": "gateway.report_failed"})
        else:
            self._was_silent = False
            self._alarm_at = 0.0
            self._ledger.acknowledged()
