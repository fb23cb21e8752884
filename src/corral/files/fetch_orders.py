"""Asking a worker to fetch a file itself, and hearing how far it is. Closing the connection ends the fetch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from corral.base.errors import CorralError
from corral.files.file_peer import FilePeer, FilePeerAway
from corral.wire.files import FETCHES, FetchAsk, FetchNews

_LONGEST_LINE: Final = 64 * 1024
_SHOWN: Final = 300
_OK: Final = b"200"


class FetchRefused(CorralError):
    """The worker does not get the file from this source."""

    code = "fetch_refused"
    retryable = True

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        self.is_full = is_full
        """Whether the worker has no room for the file: no other source makes a difference."""
        super().__init__(message)


async def order_fetch(peer: FilePeer, ask: FetchAsk, heard: Callable[[int], None]) -> str:
    """Have the worker fetch the file; returns where it has it, whole and with the right digest.

    `heard` learns how many bytes are there. FetchRefused has the reason of the worker; FilePeerAway when nobody answers
    any more.
    """
    body = msgspec.json.encode(ask)
    head = (
        f"POST {FETCHES} HTTP/1.0\r\nHost: {peer.address}\r\nAuthorization: Bearer {peer.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with _connected(peer) as (reader, writer):
            writer.write(head.encode() + body)
            await _check_status(reader, peer)
            while line := await _line(reader, peer):
                news = msgspec.json.decode(line, type=FetchNews)
                if news.path:
                    return news.path
                if news.error:
                    raise FetchRefused(news.error[:_SHOWN], is_full=news.is_full)
                heard(min(max(news.present, 0), ask.size))
    except TimeoutError as error:
        raise FilePeerAway(f"{peer.address} is silent while it fetches a file") from error
    except OSError as error:
        raise FilePeerAway(f"the file server at {peer.address} cannot be asked: {error.strerror or error}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise FetchRefused(f"{peer.address} answers what nobody understands") from error
    raise FilePeerAway(f"{peer.address} broke off while it fetched a file")


@asynccontextmanager
async def _connected(peer: FilePeer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = peer.address.rpartition(":")
    async with asyncio.timeout(peer.connect_seconds):
        reader, writer = await asyncio.open_connection(
            host.strip("[]"),
            int(port),
            limit=_LONGEST_LINE,
            ssl=None if peer.tls is None else peer.tls.context,
            server_hostname=None if peer.tls is None else peer.tls.name,
        )
    try:
        yield reader, writer
    finally:
        writer.close()


async def _check_status(reader: asyncio.StreamReader, peer: FilePeer) -> None:
    first = await _line(reader, peer)
    while (await _line(reader, peer)).strip():
        pass  # headers
    if first.split(None, 2)[1:2] != [_OK]:
        async with asyncio.timeout(peer.stall_seconds):
            text = (await reader.read(_SHOWN)).decode(errors="replace").strip()
        raise FetchRefused(f"{peer.address} answers {first.decode(errors='replace').strip()[:_SHOWN]}: {text}")


async def _line(reader: asyncio.StreamReader, peer: FilePeer) -> bytes:
    async with asyncio.timeout(peer.stall_seconds):
        return await reader.readline()
