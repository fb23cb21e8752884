"""The way to control: follows the view, reports, asks for models. Every one of them outlives control's absence."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Final

import aiohttp
import msgspec

from corral.base.errors import CorralError, PeerRefused, PeerUnavailable
from corral.base.retry import Backoff
from corral.gateway.config import GatewayConfig
from corral.gateway.ledger import Ledger
from corral.gateway.view import Directory
from corral.protocol.view import EnsureModel, GatewayReport, Loading, decode_line

log = logging.getLogger(__name__)

VIEW: Final = "/api/v1/gateway/view"
REPORT: Final = "/api/v1/gateway/report"
ENSURE: Final = "/api/v1/gateway/ensure"
_CALL_SECONDS: Final = 10.0
_MAX_LINE: Final = 256 * 1024 * 1024
_encoder: Final = msgspec.json.Encoder()


def open_session(config: GatewayConfig) -> aiohttp.ClientSession:
    """With control's address and our key in every request; close it when done."""
    is_socket = config.control_url.startswith("unix:")
    connector = aiohttp.UnixConnector(config.control_url.removeprefix("unix:")) if is_socket else None
    return aiohttp.ClientSession(
        base_url="http://control" if is_socket else config.control_url,
        connector=connector,
        headers={"Authorization": f"Bearer {config.control_key}"},
        timeout=aiohttp.ClientTimeout(total=_CALL_SECONDS, connect=config.time_outs.connect),
    )


class ControlLink:
    """Implements `dispatch.Ensurer`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ensure(self, model: str) -> Loading:
        """PeerUnavailable or PeerRefused when control does not say."""
        body = await self._post(ENSURE, EnsureModel(model=model))
        try:
            return msgspec.json.decode(body, type=Loading)
        except msgspec.MsgspecError as error:
            raise PeerUnavailable(f"control's answer was not understood: {error}") from error

    async def report(self, report: GatewayReport) -> None:
        await self._post(REPORT, report)

    async def _post(self, path: str, body: object) -> bytes:
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(path, data=_encoder.encode(body), headers=headers) as response:
                content = await response.read()
                _check(response)
                return content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PeerUnavailable(f"control did not answer: {error!r}") from error

    async def view_lines(self, silence: timedelta) -> AsyncIterator[bytes]:
        """Lines of the view, until control hangs up. PeerUnavailable when it breaks off or says nothing for long."""
        time_out = aiohttp.ClientTimeout(total=None, connect=_CALL_SECONDS, sock_read=silence.total_seconds())
        try:
            async with self._session.get(VIEW, timeout=time_out) as response:
                _check(response)
                rest = bytearray()
                async for piece in response.content.iter_any():
                    *lines, last = piece.split(b"\n")
                    for line in lines:
                        rest += line
                        yield bytes(rest)
                        rest.clear()
                    rest += last
                    if len(rest) > _MAX_LINE:
                        raise PeerUnavailable("control's view is too large")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PeerUnavailable(f"control's view broke off: {error!r}") from error


def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 500:
        raise PeerUnavailable(f"control answered {response.status}")
    if response.status >= 400:
        raise PeerRefused(f"control answered {response.status}; check the gateway's key", status=response.status)


class ViewFollower:
    """Keeps the directory as control tells it. Connecting again is how a full view is asked for."""

    def __init__(self, link: ControlLink, directory: Directory, *, silence: timedelta, reconnect: Backoff) -> None:
        self._link = link
        self._directory = directory
        self._silence = silence
        self._reconnect = reconnect

    async def run(self) -> None:
        failures = 0
        while True:
            heard = False
            try:
                async for line in self._link.view_lines(self._silence):
                    self._directory.hear(decode_line(line), now=asyncio.get_running_loop().time())
                    if not heard:
                        heard, failures = True, 0
                        self._say(self._directory.version)
                log.info("control ended the view", extra={"event": "gateway.view_ended"})
            except (CorralError, msgspec.MsgspecError) as error:
                if not failures:
                    log.warning("no view from control: %s", error, extra={"event": "gateway.view_lost"})
            failures += 1
            await asyncio.sleep(self._reconnect.delay(failures).total_seconds())

    def _say(self, version: int | None) -> None:
        log.info("view received", extra={"event": "gateway.view_received", "version": version})


class Reporter:
    """Tells control every period what is under way and what ended."""

    def __init__(
        self,
        link: ControlLink,
        directory: Directory,
        ledger: Ledger,
        *,
        waiting: Callable[[], dict[str, int]],
        period: timedelta,
    ) -> None:
        self._link = link
        self._directory = directory
        self._ledger = ledger
        self._waiting = waiting
        self._period = period
        self._was_silent = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._period.total_seconds())
            await self.send()

    async def send(self) -> None:
        """One report; what control does not take is sent again next time."""
        directory = self._directory
        report = self._ledger.report(
            in_flight=directory.in_flight(), waiting=self._waiting(), view_version=directory.version
        )
        try:
            await self._link.report(report)
        except CorralError as error:
            if not self._was_silent:
                log.warning("control took no report: %s", error, extra={"event": "gateway.report_failed"})
            self._was_silent = True
        else:
            self._was_silent = False
            self._ledger.acknowledged()
