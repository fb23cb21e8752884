"""Whether an engine's URL leads to Corral itself, or to where nobody is sent, whatever its name looks like."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.own_network import ForbiddenAddress, allowed_addresses, is_this_machine, plain_host
from corral.frontend.engines.decide import ExternalEngine

log = logging.getLogger(__name__)

_LOOKUP: Final = timedelta(seconds=5)
_KNOWN_FOR: Final = timedelta(minutes=1)
Places = Callable[[], Awaitable[Collection[tuple[str, int]]]]


class EngineAddresses:
    def __init__(self, fleet: Places, clock: Clock, *, own_ports: Collection[int]) -> None:
        """`fleet` tells the hosts and ports of nodes and replicas; `own_ports` are those that this frontend listens
        on, wherever that is."""
        self._fleet = fleet
        self._clock = clock
        self._own_ports = frozenset(own_ports)
        self._places: Collection[tuple[str, int]] = ()
        self._read_at: float | None = None

    async def check(self, engine: ExternalEngine) -> None:
        """InvalidInput for an engine that must not be asked. A name that nobody knows at the moment is no reason."""
        try:
            async with asyncio.timeout(_LOOKUP.total_seconds()):
                await self.resolve(engine)
        except ForbiddenAddress as error:
            raise InvalidInput("url", str(error)) from error
        except (OSError, UnicodeError):
            return

    async def resolve(self, engine: ExternalEngine) -> list[str]:
        """The addresses to connect to. ForbiddenAddress when one of them may not be called, another OSError when the
        name has none."""
        host, port = engine.place
        addresses = await allowed_addresses(host, port)
        fleet = await self._known_places()
        for address in addresses:
            is_own = port in self._own_ports and is_this_machine(address)
            if is_own or (plain_host(address), port) in fleet or (plain_host(host), port) in fleet:
                raise ForbiddenAddress(f"{host}:{port} is Corral itself; name the engine's own address")
        return addresses

    async def _known_places(self) -> Collection[tuple[str, int]]:
        """Addresses and ports of the fleet, at most a minute old; older ones while the database is away."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at > _KNOWN_FOR.total_seconds():
            try:
                self._places = {(plain_host(host), port) for host, port in await self._fleet()}
                self._read_at = now
            except CorralError as error:
                log.debug("places of the fleet are not known: %s", error, extra={"event": "engines.places_unknown"})
        return self._places


def place_of(address: str) -> tuple[str, int] | None:
    """Host and port of `host:port` or of a URL; None for anything else."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None
