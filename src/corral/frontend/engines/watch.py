"""Whether engines that somebody else runs answer, whether they take the key, and which models they list.

Every frontend looks itself, as its gateways ask themselves.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Hashable, Iterable, Sequence
from datetime import timedelta
from socket import AF_INET, AF_INET6, AddressFamily
from typing import Final

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.http_client import HttpFailed, asked, read_body, user_agent
from corral.base.own_network import ForbiddenAddress
from corral.base.retry import Backoff
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.engines.addresses import EngineAddresses
from corral.frontend.engines.decide import (
    EngineLook,
    EngineObservation,
    EngineState,
    ExternalEngine,
    after_failed_request,
    after_look,
)
from corral.frontend.engines.service import ExternalEngines
from corral.frontend.record.feed import Feed
from corral.wire.view import ReplicaFailure

PATIENCE: Final = timedelta(seconds=5)
_LONGEST_LIST: Final = 1024 * 1024
_MOST_CONTEXTS: Final = 256
_TOO_BUSY: Final = 429
_REFUSED: Final = frozenset({401, 403})


class _ListedModel(msgspec.Struct):
    id: str


class _ModelListing(msgspec.Struct):
    """The part of an engine's answer to `/v1/models` that is read here."""

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
                result = await self._ask(engine, addresses)
        except ForbiddenAddress as error:
            result = EngineLook(state=EngineState.MISCONFIGURED, reason=str(error))
        except HttpFailed as error:
            result = EngineLook(state=EngineState.DOWN, reason=error.reason)
        except TimeoutError:
            result = EngineLook(state=EngineState.DOWN, reason="timed out")
        except (OSError, UnicodeError):
            result = EngineLook(state=EngineState.DOWN, reason="its name cannot be found")
        return replace(result, seconds=time.monotonic() - began)

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


log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=15)
"""Without any engine to look at: a ring tells of new ones."""
_WHEN_UP: Final = Backoff(first=timedelta(seconds=10), cap=timedelta(seconds=10))
_OTHERWISE: Final = Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=15))
_SOONEST: Final = timedelta(milliseconds=50)
_AT_ONCE: Final = 16
_NOTHING: Final = EngineObservation()


class EngineWatch:
    def __init__(self, engines: ExternalEngines, looks: EngineLooks, feed: Feed, clock: Clock) -> None:
        self._engines = engines
        self._looks = looks
        self._feed = feed
        self._clock = clock
        self._observed: dict[str, EngineObservation] = {}
        self._looked_at: dict[str, ExternalEngine] = {}
        """What each engine was when it was last looked at."""
        self._due: dict[str, float] = {}

    def of(self, id: str) -> EngineObservation:
        return self._observed.get(id, _NOTHING)

    def mark(self) -> Hashable:
        """A value that changes whenever the gateways' view of the engines changes."""
        return tuple(sorted((id, observed.state) for id, observed in self._observed.items()))

    def suspect(self, failures: Iterable[ReplicaFailure]) -> None:
        """A gateway got no answer from these; those that are engines are looked at now."""
        current_ids = {engine.id for engine in self._engines.current}
        for failure in failures:
            if failure.replica in current_ids:
                now = self._clock.now()
                self._learn(failure.replica, after_failed_request(self.of(failure.replica), failure.reason, now))
                self._due.pop(failure.replica, None)
                self._engines.poke.ring()

    async def sweep(self) -> timedelta | None:
        """Look at all engines that are due; how long until the next is."""
        engines = {engine.id: engine for engine in self._engines.current if engine.is_enabled}
        self._forget_others(engines)
        now = self._clock.monotonic()
        slots = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for engine in engines.values():
                if self._due.get(engine.id, now) <= now:
                    group.create_task(self._look_at(engine, slots), name=f"look at {engine.name}")
        if not engines:
            return None
        return max(timedelta(seconds=min(self._due.values()) - self._clock.monotonic()), _SOONEST)

    async def try_out(self, engine: ExternalEngine) -> EngineLook:
        """Look at an engine now, for somebody who wants to know. What is known of it becomes that, too."""
        look = await self._looks.look(engine)
        if engine.is_enabled:
            self._learn(engine.id, after_look(self.of(engine.id), look, self._clock.now()))
        return look

    async def _look_at(self, engine: ExternalEngine, slots: asyncio.Semaphore) -> None:
        async with slots:
            look = await self._looks.look(engine)
        self._looked_at[engine.id] = engine
        observed = after_look(self.of(engine.id), look, self._clock.now())
        self._learn(engine.id, observed)
        backoff = _WHEN_UP if observed.state is EngineState.UP else _OTHERWISE
        self._due[engine.id] = self._clock.monotonic() + backoff.delay(max(observed.failures, 1)).total_seconds()

    def _forget_others(self, engines: dict[str, ExternalEngine]) -> None:
        """Forget engines that are gone, and what was seen of engines that are asked in another way now."""
        for id in list(self._observed):
            engine, before = engines.get(id), self._looked_at.get(id)
            if engine is None or (before is not None and not engine.is_asked_alike(before)):
                for facts_by_engine in (self._observed, self._looked_at, self._due):
                    facts_by_engine.pop(id, None)

    def _learn(self, id: str, observed: EngineObservation) -> None:
        before, self._observed[id] = self.of(id).state, observed
        if observed.state is not before:
            self._feed.ring()  # the gateways of this frontend hear of it at once
            level = logging.INFO if observed.state is EngineState.UP else logging.WARNING
            named = next((f"{each.model}/{each.name}" for each in self._engines.current if each.id == id), id)
            details = {"event": "engine.state", "engine": named, "state": observed.state.value}
            log.log(level, "an engine is %s: %s", observed.state.value, observed.reason or "it answers", extra=details)
