"""Tells everyone that something new is in the record of events. The record is the truth; this is the doorbell."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from corral.base.errors import CorralError
from corral.base.tasks import Poke
from corral.bus.port import Bus, Message
from corral.protocol.subjects import POKE_EVENTS

log = logging.getLogger(__name__)


class Feed:
    """Rings every listener of this process, and through NATS those of the other frontends."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listeners: set[Poke] = set()

    @contextmanager
    def listener(self) -> Iterator[Poke]:
        poke = Poke()
        self._listeners.add(poke)
        try:
            yield poke
        finally:
            self._listeners.discard(poke)

    async def announce(self) -> None:
        """Call after an event was stored. A lost ring costs latency, never an event."""
        self.ring()
        try:
            await self._bus.publish(POKE_EVENTS, b"")
        except CorralError as error:
            log.debug("other frontends could not be poked", extra={"event": "feed.unheard", "reason": str(error)})

    async def on_message(self, message: Message) -> None:
        self.ring()

    def ring(self) -> None:
        """Wake the listeners of this process only."""
        for poke in self._listeners:
            poke.ring()
