"""One look at an engine that somebody else runs: is it there, does it take the key, and which models does it list?"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from socket import AF_INET, AF_INET6, AddressFamily
from typing import Final

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from corral.base.http_client import HttpFailed, asked, read_body, user_agent
from corral.base.own_network import ForbiddenAddress
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.engines.addresses import EngineAddresses
from corral.frontend.engines.decide import EngineLook, EngineState, ExternalEngine

PATIENCE: Final = timedelta(seconds=5)
_LONGEST_LIST: Final = 1024 * 1024
_MOST_CONTEXTS: Final = 256
_TOO_BUSY: Final = 429
_REFUSED: Final = frozenset({401, 403})


class _ListedModel(msgspec.Struct):
    id: str


class _ModelListing(msgspec.Struct):
    """What `/v1/models` answers."""

    data: list[_ListedModel]


class _CheckedAddresses(AbstractResolver):
    """Resolves to addresses that were checked, and to no others."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: AddressFamily = AF_INET) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=AF_INET6 if ":" in address else AF_INET,
                proto=0,
                flags=0,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


class EngineLooks:
    """Looks at engines; nothing is kept between two looks but what certificates are trusted."""

    def __init__(self, addresses: EngineAddresses) -> None:
        self._addresses = addresses
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def look(self, engine: ExternalEngine) -> EngineLook:
        """Ask for its health path, once and within bounds. Never raises for what the engine does."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(2 * PATIENCE.total_seconds()):  # finding its address takes time as well
                addresses = await self._addresses.resolve(engine)
                found = await self._ask(engine, addresses)
        except ForbiddenAddress as error:
            found = EngineLook(state=EngineState.MISCONFIGURED, reason=str(error))
        except HttpFailed as error:
            found = EngineLook(state=EngineState.DOWN, reason=error.reason)
        except TimeoutError:
            found = EngineLook(state=EngineState.DOWN, reason="timed out")
        except (OSError, UnicodeError):
            found = EngineLook(state=EngineState.DOWN, reason="its name cannot be found")
        return replace(found, seconds=time.monotonic() - began)

    async def _ask(self, engine: ExternalEngine, addresses: Sequence[str]) -> EngineLook:
        connector = aiohttp.TCPConnector(
            resolver=_CheckedAddresses(addresses), ssl=self._context(engine.ca), force_close=True, use_dns_cache=False
        )
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": user_agent()}
        if engine.key:
            headers["Authorization"] = f"Bearer {engine.key}"
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=PATIENCE.total_seconds()),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        async with session, asked(session, "GET", engine.health_url, headers=headers) as response:
            if 200 <= response.status < 300:
                return _listing(engine, await _body(response))
            return _refusal(engine, response.status)

    def _context(self, ca: str) -> ssl.SSLContext:
        context = self._contexts.get(ca)
        if context is None:
            if len(self._contexts) >= _MOST_CONTEXTS:
                self._contexts.clear()
            context = self._contexts[ca] = ssl.create_default_context(cadata=ca or None)
        return context


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Empty for a body that is too long to be worth reading."""
    try:
        return await read_body(response, _LONGEST_LIST)
    except HttpFailed:
        return b""


def _listing(engine: ExternalEngine, body: bytes) -> EngineLook:
    try:
        names = tuple(each.id for each in msgspec.json.decode(body, type=_ModelListing).data)
    except UNREADABLE_JSON:
        return EngineLook(state=EngineState.UP)
    reason = "" if not names or engine.remote_model in names else f"it does not list {engine.remote_model}"
    return EngineLook(state=EngineState.UP, reason=reason, models=names)


def _refusal(engine: ExternalEngine, status: int) -> EngineLook:
    """What an answer means that is no good one. An engine that has too much to do is there."""
    path = engine.health_url.removeprefix(engine.origin)
    if status == _TOO_BUSY:
        return EngineLook(state=EngineState.UP, reason="it says that it has too much to do (429)")
    if status in _REFUSED:
        reason = f"it does not take its key ({status})" if engine.key else f"it wants a key ({status})"
        return EngineLook(state=EngineState.MISCONFIGURED, reason=reason)
    if status >= 500:
        return EngineLook(state=EngineState.DOWN, reason=f"it answers {status} to GET {path}")
    reason = f"it answers {status} to GET {path}; the url, or health_path, should name another one"
    return EngineLook(state=EngineState.MISCONFIGURED, reason=reason)
