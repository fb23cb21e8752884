"""Checks whether this machine answers at its advertised addresses. The worker tries that itself, before a request needs
it.

The HTTP server is asked at its advertised address, and must be this worker's. For backends, which may not run yet, a
port of their range is opened for a moment and called through the advertised host. What is wrong goes to the frontend
with every heartbeat. Firewalls between the machines are not seen from here: the frontend's doctor looks for those.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from corral.base.clock import Clock
from corral.base.tasks import end_tasks
from corral.wire.nodes import WORKER_HEADER
from corral.worker.membership.addresses import Addresses, HostPort, parse_host_port

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(minutes=5)
_PATIENCE_SECONDS: Final = 3.0
_MOST_TRIED: Final = 100
_MOST_BYTES: Final = 4096
_NO_ANSWER: Final = (OSError, TimeoutError, UnicodeError)
"""UnicodeError is what a host name raises that cannot be looked up at all."""


class OwnAddresses:
    """Keeps what is wrong with the addresses that this worker advertises."""

    def __init__(
        self, places: Addresses, ranges: Sequence[range], is_free: Callable[[int], bool], *, me: str, clock: Clock
    ) -> None:
        """`me` is what the own HTTP server says of itself; `ranges` are the ports that backends get."""
        self._places = places
        self._last_first = [port for ports in reversed(ranges) for port in ports[::-1][:_MOST_TRIED]]
        """Backends get the first ones."""
        self._is_free = is_free
        self._ranges = " or ".join(f"{ports.start} to {ports.stop - 1}" for ports in ranges)
        self._me = me
        self._clock = clock
        self.problems: tuple[str, ...] = ()

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(PERIOD.total_seconds())

    async def look(self) -> None:
        """Try both addresses, and log what is new."""
        problems = tuple([problem for problem in (await self._of_http(), await self._of_backends()) if problem])
        for problem in problems:
            if problem not in self.problems:
                log.warning("%s", problem, extra={"event": "worker.not_reachable"})
        if self.problems and not problems:
            log.info("the advertised addresses answer", extra={"event": "worker.reachable"})
        self.problems = problems

    async def _of_http(self) -> str:
        address = self._places.advertise_http
        claim = f"frontends are told that its HTTP server is at {address}"
        remedy = "set advertise_http_address (LOCALAI_ADVERTISE_HTTP_ADDR), or open that port"
        parsed = parse_host_port(address)
        try:
            if parsed is None:
                raise OSError("this is no address")
            answer = await _exchange(parsed, _question(parsed))
        except _NO_ANSWER as error:
            return f"{claim}, and from the machine itself nothing answers there ({_reason(error)}); {remedy}"
        if f"\r\n{WORKER_HEADER}: {self._me}\r\n".lower().encode() in answer.lower():
            return ""
        return f"{claim}, and another program answers there; {remedy}"

    async def _of_backends(self) -> str:
        parsed = parse_host_port(self._places.advertise)
        if parsed is None or not parsed.host:
            return ""  # the HTTP address has the same host, and was found wrong
        port = next(filter(self._is_free, self._last_first), None)
        if port is None:
            return ""  # all are used, and those are tried by requests
        try:
            await self._call(HostPort(parsed.host, port))
        except _NO_ANSWER as error:
            return (
                f"frontends are told that its backends are at {parsed.host}, and from the machine itself port {port} "
                f"there does not lead to it ({_reason(error)}); set advertise_address (LOCALAI_ADVERTISE_ADDR), or "
                f"open the ports {self._ranges}"
            )
        return ""

    async def _call(self, reached: HostPort) -> None:
        """Open the port, and call it as others would. OSError or TimeoutError when that does not lead here."""
        word = secrets.token_hex(16).encode()
        received: asyncio.Queue[bytes] = asyncio.Queue()
        callers: set[asyncio.Task[None]] = set()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (task := asyncio.current_task()) is not None:
                callers.add(task)
            try:
                received.put_nowait(await reader.readexactly(len(word)))
            except (OSError, asyncio.IncompleteReadError):
                return  # somebody else's call
            finally:
                writer.close()

        async with asyncio.timeout(_PATIENCE_SECONDS):
            server = await asyncio.start_server(listen, self._places.backend_bind, reached.port)
            try:
                _, writer = await asyncio.open_connection(reached.host, reached.port)
                try:
                    writer.write(word)
                    while await received.get() != word:
                        pass
                finally:
                    writer.close()
            finally:
                server.close()
                await end_tasks(*(task for task in callers if not task.done()))


async def host_towards(urls: Sequence[str]) -> str:
    """The address by which this machine calls the first of these URLs that has one; empty when none has.

    Nothing is sent: the kernel is asked which way it would take.
    """
    loop = asyncio.get_running_loop()
    for url in urls:
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                addresses = await loop.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
        except _NO_ANSWER:
            continue
        for family, kind, _, _, place in addresses:
            with socket.socket(family, kind) as probe:
                try:
                    probe.connect(place)
                except OSError:
                    continue
                return str(probe.getsockname()[0])
    return ""


def _question(address: HostPort) -> bytes:
    return f"GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()


async def _exchange(address: HostPort, question: bytes) -> bytes:
    """What an HTTP server answers; its head at least."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(question)
            return await reader.read(_MOST_BYTES)
        finally:
            writer.close()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_PATIENCE_SECONDS:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
