"""Calls from control to a machine that asks whether it could be reached: to its own address only, a word and no more.

Nothing that answers there is read, so that nobody learns through control what else listens. A caller behind a proxy on
the frontend's own machine seems to be on that machine: callers from there do not learn how a call went, and notice for
themselves whether the word arrived.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from typing import Final

from corral.base.errors import InvalidInput
from corral.base.ids import IpAddress, parsed_ip
from corral.base.setting_kinds import split_url
from corral.wire.joining import DialledAddress

MOST_ADDRESSES: Final = 4
_PATIENCE_SECONDS: Final = 3.0
_LOWEST_PORT: Final = 1024
_AT_ONCE: Final = 8
_LOOKUPS_AT_ONCE: Final = 4
_LONGEST: Final = 300


class NameLookups:
    """Looks names up in threads of its own, a few at a time: a name server that hangs keeps its lookups busy for much
    longer than anybody waits, and must not keep control from finding its database or NATS."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

    async def find(self, host: str) -> list[IpAddress]:
        """Addresses of a name or of itself; none when it is not known. Cancelled callers leave their lookup behind,
        which keeps its place until it ends."""
        if (literal := parsed_ip(host)) is not None:
            return [literal]
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[list[IpAddress]] = loop.create_future()
        await self._free.acquire()

        def settle(addresses: list[IpAddress]) -> None:
            self._free.release()
            if not outcome.done():
                outcome.set_result(addresses)

        def look() -> None:
            addresses = _looked_up(host)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, addresses)

        try:
            threading.Thread(target=look, name=f"looking up {host[:80]}", daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            settle([])
        return await outcome


def _looked_up(host: str) -> list[IpAddress]:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [parsed for entry in entries if (parsed := parsed_ip(str(entry[4][0]))) is not None]


class Dialling:
    """Bounded: a few calls at a time for all who ask."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._names = NameLookups()

    async def try_all(self, addresses: list[str], *, source: str) -> list[DialledAddress]:
        """Call each address if it is that of the source. InvalidInput for what cannot be an address."""
        if len(addresses) > MOST_ADDRESSES:
            raise InvalidInput("addresses", f"must be at most {MOST_ADDRESSES}, got {len(addresses)}")
        places = [_read(address) for address in addresses]
        return [await self._try(host, port, source) for host, port in places]

    async def _try(self, host: str, port: int, source: str) -> DialledAddress:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        word = secrets.token_hex(16)
        async with self._places:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    target = _own_address(host, await self._names.find(host), source)
            except TimeoutError:
                target = _Foreign(f"the frontend did not find the name {host} within {_PATIENCE_SECONDS:g} s")
            if isinstance(target, _Foreign):
                return DialledAddress(address=address, problem=target.problem)
            problem = await _said(word, target, port)
        if problem and not _is_here(source):
            return DialledAddress(address=address, problem=problem)
        return DialledAddress(address=address, word=word)


async def _said(word: str, host: str, port: int) -> str:
    """What went wrong; empty when the word was said."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(word.encode())
                await writer.drain()
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer within {_PATIENCE_SECONDS:g} s"
    except OSError as error:
        return _words(error)
    return ""


def _is_here(source: str) -> bool:
    """Whether the call comes from this machine, or through a proxy on it."""
    caller = parsed_ip(source)
    return caller is not None and (caller.is_loopback or _is_of_this_machine(caller))


def _words(error: OSError) -> str:
    """asyncio puts the address into the text of its errors, which says less than the number."""
    return os.strerror(error.errno).lower() if error.errno is not None and error.errno > 0 else "no connection"


class _Foreign:
    def __init__(self, problem: str) -> None:
        self.problem = problem


def _read(address: str) -> tuple[str, int]:
    try:
        parts = split_url(f"tcp://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or len(address) > _LONGEST:
        raise InvalidInput("addresses", f"must be host:port, got {address[:80]!r}")
    if port < _LOWEST_PORT:
        raise InvalidInput("addresses", f"a worker has no port below {_LOWEST_PORT}, got {port}")
    return host, port


def _own_address(host: str, candidates: list[IpAddress], source: str) -> str | _Foreign:
    """The address to call: that of the source, or of this very machine for a source on it."""
    if not candidates:
        return _Foreign(f"the frontend cannot find the name {host}")
    caller = parsed_ip(source)
    for candidate in candidates:
        if candidate == caller or (caller is not None and caller.is_loopback and _is_of_this_machine(candidate)):
            return str(candidate)
    addresses = ", ".join(sorted({str(candidate) for candidate in candidates}))
    seen = source or "an unknown address"
    return _Foreign(f"not tried: for the frontend {host} is {addresses}, and this machine calls from {seen}")


def _is_of_this_machine(address: IpAddress) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return not address.is_unspecified
