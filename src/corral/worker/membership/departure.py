"""Leaving: ask for no new work, wait for what is in flight, say good-bye. Bounded, and never stopped by a failure."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Protocol

from corral.base.clock import Clock
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.tasks import task_group
from corral.worker.config import DepartureConfig
from corral.worker.membership.registration import AcceptedRegistration

log = logging.getLogger(__name__)


class DepartureApi(Protocol):
    async def drain(self, member: AcceptedRegistration) -> None: ...

    async def in_flight(self, member: AcceptedRegistration) -> int: ...

    async def deregister(self, member: AcceptedRegistration) -> None: ...


class Calls(Protocol):
    """What goes on at this worker's own backends."""

    async def count(self) -> int: ...


class _Hurry(Exception):
    """The hurry event was set."""


class Departure:
    """Takes a member out of the fleet in good order."""

    def __init__(
        self, *, frontend: DepartureApi, calls: Calls, clock: Clock, config: DepartureConfig, hurry: asyncio.Event
    ) -> None:
        self._frontend = frontend
        self._calls = calls
        self._clock = clock
        self._config = config
        self._hurry = hurry

    async def leave(self, member: AcceptedRegistration) -> None:
        """Drain, wait, deregister. The event `hurry` cuts everything short but the last call."""
        try:
            async with asyncio.timeout(self._config.timeout.total_seconds()):
                await self._drain_unless_hurried(member)
                await self._deregister(member)
        except TimeoutError:
            log.warning("leaving took too long; ending anyway", extra={"event": "departure.timeout"})

    async def _drain_unless_hurried(self, member: AcceptedRegistration) -> None:
        try:
            async with task_group() as group:
                watcher = group.create_task(self._raise_when_hurried(), name="hurry")
                await self._drain(member)
                watcher.cancel()
        except* _Hurry:
            log.info("not waiting for requests in flight", extra={"event": "departure.hurried"})

    async def _raise_when_hurried(self) -> None:
        await self._hurry.wait()
        raise _Hurry

    async def _drain(self, member: AcceptedRegistration) -> None:
        """Ask for a drain. A failure is logged, and only ends the waiting: a leaving worker cannot insist."""
        try:
            async with self._bounded_call():
                await self._frontend.drain(member)
            await self._wait_until_idle(member)
        except (PeerUnavailable, PeerRefused) as error:
            log.warning("leaving without a drain: %s", error, extra={"event": "departure.no_drain"})

    async def _wait_until_idle(self, member: AcceptedRegistration) -> None:
        deadline = self._clock.monotonic() + self._config.drain_timeout.total_seconds()
        while in_flight := await self._in_flight(member):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                log.warning("still in flight: %d", in_flight, extra={"event": "departure.not_idle"})
                return
            await self._clock.sleep(min(self._config.poll_interval.total_seconds(), left))

    async def _in_flight(self, member: AcceptedRegistration) -> int:
        """Return the number of requests in flight.

        A LocalAI frontend forgets them when it drains a node, so connections are counted here. A Corral frontend knows
        the number, while its gateways keep idle connections open.
        """
        async with self._bounded_call():
            told = await self._frontend.in_flight(member)
        return told if told or member.is_corral else await self._calls.count()

    async def _deregister(self, member: AcceptedRegistration) -> None:
        try:
            async with self._bounded_call():
                await self._frontend.deregister(member)
        except (PeerUnavailable, PeerRefused) as error:
            log.warning("leaving without a good-bye: %s", error, extra={"event": "departure.no_goodbye"})
        else:
            log.info("deregistered", extra={"event": "departure.done"})

    @contextlib.asynccontextmanager
    async def _bounded_call(self) -> AsyncIterator[None]:
        bound = self._config.call_timeout
        try:
            async with asyncio.timeout(bound.total_seconds()):
                yield
        except TimeoutError as error:
            raise PeerUnavailable(f"no answer within {_seconds(bound)}") from error


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
