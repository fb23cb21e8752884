"""The worker from the first registration to the good-bye, as a list of steps, and the subjects it hears.

Leaving is bounded, and never stopped by a failure: ask for no new work, wait for what is in flight, say good-bye.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import NodeId
from corral.base.tasks import first_done, run_services
from corral.bus.port import Bus, Handler, Subscription
from corral.wire import subjects
from corral.wire.registration import Feature
from corral.worker.config import DepartureConfig
from corral.worker.membership.heartbeat import HeartbeatLoop
from corral.worker.membership.identity import NatsUser
from corral.worker.membership.registration import AcceptedRegistration, Presence, Registrar

log = logging.getLogger(__name__)


Subject = Callable[[NodeId], str]

AT_ONCE: Final = 1000
"""Messages of one subject that are handled concurrently. Most only wait for a process to become ready, and must not
wait behind the slow start of another backend."""
EXTENSIONS: Final[Mapping[Subject, str]] = {subjects.backend_rollback: Feature.BACKEND_ROLLBACK}
"""Subjects that only a frontend with that feature uses. NATS users of other fleets need not be allowed to listen."""


class NodeSubscriptions:
    """Answers on the subjects of one node id at a time."""

    def __init__(self, bus: Bus, handlers: Mapping[Subject, Handler]) -> None:
        self._bus = bus
        self._handlers = dict(handlers)
        self._open: dict[str, Subscription] = {}

    async def follow(self, member: AcceptedRegistration) -> None:
        """Listen as this member, and as no other. BusPermissionDenied when the NATS user may not."""
        handlers = {
            subject(member.node_id): handler
            for subject, handler in self._handlers.items()
            if subject not in EXTENSIONS or EXTENSIONS[subject] in member.features
        }
        if handlers.keys() == self._open.keys():
            return
        for name, handler in handlers.items():
            if name not in self._open:
                self._open[name] = await self._bus.subscribe(name, handler, concurrency=AT_ONCE)
        for name in self._open.keys() - handlers.keys():
            await self._open.pop(name).close()
        log.info("listening for commands", extra={"event": "node.listening", "node": member.node_id})


class Membership:
    """Keeps this worker a member of the fleet: registers, listens, beats, and starts over when it was forgotten."""

    def __init__(
        self,
        *,
        registrar: Registrar,
        subscriptions: NodeSubscriptions,
        heartbeat: HeartbeatLoop,
        presence: Presence,
        remember: Callable[[NodeId], None],
        nats_user: NatsUser,
    ) -> None:
        """`remember` keeps the id for the next start, and may block."""
        self._registrar = registrar
        self._subscriptions = subscriptions
        self._heartbeat = heartbeat
        self._presence = presence
        self._remember = remember
        self._nats_user = nats_user

    async def run(self) -> None:
        """Stay a member until cancelled.

        It ends earlier only if the first registration is refused, or if NATS denies a subject.
        """
        member = await self._registrar.join()
        while True:
            self._presence.member = member
            frontend = "Corral" if member.is_corral else "LocalAI"
            facts = {"node": member.node_id, "status": member.status, "frontend": frontend}
            log.info("registered", extra={"event": "node.registered", **facts})
            self._nats_user.take(member)
            await self._subscriptions.follow(member)
            await asyncio.to_thread(self._remember, member.node_id)  # disks may be slow
            renewed: asyncio.Future[AcceptedRegistration] = asyncio.get_running_loop().create_future()
            if await first_done(self._heartbeat.until_forgotten(member), self._renew(member, renewed)) == 1:
                member = renewed.result()
                continue
            self._presence.member = None
            log.warning("the frontend forgot this node; registering again", extra={"event": "node.forgotten"})
            member = await self._registrar.rejoin()

    async def _renew(self, member: AcceptedRegistration, renewed: asyncio.Future[AcceptedRegistration]) -> None:
        """Register again during the heartbeats whenever NATS needs new credentials, until it succeeds."""
        while True:
            await self._nats_user.until_due()
            try:
                again = await self._registrar.attempt()
            except (PeerUnavailable, PeerRefused) as error:
                log.info("no new NATS user: %s", error, extra={"event": "registration.not_renewed"})
                continue
            if again != member:
                renewed.set_result(again)
                return


class DepartureApi(Protocol):
    async def drain(self, member: AcceptedRegistration) -> None: ...

    async def in_flight(self, member: AcceptedRegistration) -> int: ...

    async def deregister(self, member: AcceptedRegistration) -> None: ...


class Departure:
    """Takes a member out of the fleet in good order."""

    def __init__(
        self,
        *,
        frontend: DepartureApi,
        calls: Callable[[], Awaitable[int]],
        clock: Clock,
        config: DepartureConfig,
        hurry: asyncio.Event,
    ) -> None:
        """`calls` counts the connections to this worker's own backends."""
        self._frontend = frontend
        self._calls = calls
        self._clock = clock
        self._config = config
        self._hurry = hurry

    async def leave(self, member: AcceptedRegistration) -> None:
        """Drain, wait, deregister. The event `hurry` cuts everything short but the last call."""
        try:
            async with asyncio.timeout(self._config.timeout.total_seconds()):
                if await first_done(self._hurry.wait(), self._drain(member)) == 0:
                    log.info("not waiting for requests in flight", extra={"event": "departure.hurried"})
                async with self._bounded_call():
                    await self._frontend.deregister(member)
                log.info("deregistered", extra={"event": "departure.done"})
        except (PeerUnavailable, PeerRefused) as error:
            log.warning("leaving without a good-bye: %s", error, extra={"event": "departure.no_goodbye"})
        except TimeoutError:
            log.warning("leaving took too long; ending anyway", extra={"event": "departure.timeout"})

    async def _drain(self, member: AcceptedRegistration) -> None:
        """Ask for a drain, and wait until nothing is in flight. A failure is logged, and only ends the waiting."""
        try:
            async with self._bounded_call():
                await self._frontend.drain(member)
            deadline = self._clock.monotonic() + self._config.drain_timeout.total_seconds()
            while in_flight := await self._in_flight(member):
                seconds_left = deadline - self._clock.monotonic()
                if seconds_left <= 0:
                    log.warning("still in flight: %d", in_flight, extra={"event": "departure.not_idle"})
                    return
                await self._clock.sleep(min(self._config.poll_interval.total_seconds(), seconds_left))
        except (PeerUnavailable, PeerRefused) as error:
            log.warning("leaving without a drain: %s", error, extra={"event": "departure.no_drain"})

    async def _in_flight(self, member: AcceptedRegistration) -> int:
        """Return the number of requests in flight.

        A LocalAI frontend forgets them when it drains a node, so connections are counted here. A Corral frontend knows
        the number, while its gateways keep idle connections open.
        """
        async with self._bounded_call():
            in_flight = await self._frontend.in_flight(member)
        return in_flight if in_flight or member.is_corral else await self._calls()

    @contextlib.asynccontextmanager
    async def _bounded_call(self) -> AsyncIterator[None]:
        seconds = self._config.call_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise PeerUnavailable(f"no answer within {seconds:g} s") from error


async def run_member(stop: asyncio.Event, *, membership: Membership, departure: Departure, presence: Presence) -> None:
    """Live in the fleet until `stop` is set, then leave in good order. Failures come as a group."""

    async def leave() -> None:
        presence.is_leaving = True
        log.info("leaving; a second signal hurries", extra={"event": "worker.leaving"})
        if (member := presence.member) is not None:
            await departure.leave(member)

    try:
        await run_services(stop, membership=membership.run())
    except Exception:
        await leave()
        raise
    await leave()
