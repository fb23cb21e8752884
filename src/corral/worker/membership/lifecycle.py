"""The worker from the first registration to the good-bye, as a list of steps, and the subjects it hears."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import NodeId
from corral.base.tasks import first_done, run_services
from corral.bus.port import Bus, Handler, Subscription
from corral.wire import subjects
from corral.wire.registration import Feature
from corral.worker.membership.departure import Departure
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
        wanted = {
            subject(member.node_id): handler
            for subject, handler in self._handlers.items()
            if subject not in EXTENSIONS or EXTENSIONS[subject] in member.features
        }
        if wanted.keys() == self._open.keys():
            return
        for name, handler in wanted.items():
            if name not in self._open:
                self._open[name] = await self._bus.subscribe(name, handler, concurrency=AT_ONCE)
        for name in self._open.keys() - wanted.keys():
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
        """Until cancelled. Only a first registration that is refused, or NATS permissions that lack, end it."""
        member = await self._registrar.join()
        while True:
            await self._take_up(member)
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

    async def _take_up(self, member: AcceptedRegistration) -> None:
        self._presence.member = member
        frontend = "Corral" if member.is_corral else "LocalAI"
        told = {"event": "node.registered", "node": member.node_id, "status": member.status, "frontend": frontend}
        log.info("registered", extra=told)
        self._nats_user.take(member)
        await self._subscriptions.follow(member)
        await asyncio.to_thread(self._remember, member.node_id)  # disks may be slow


class Lifecycle:
    """Keeps the membership until asked to stop, then takes the worker out of the fleet."""

    def __init__(self, *, membership: Membership, departure: Departure, presence: Presence) -> None:
        self._membership = membership
        self._departure = departure
        self._presence = presence

    async def run(self, stop: asyncio.Event) -> None:
        """Live until `stop` is set, then leave in good order. What ends a worker against its will comes as a group."""
        try:
            await run_services(stop, membership=self._membership.run())
        except Exception:
            await self._leave()
            raise
        await self._leave()

    async def _leave(self) -> None:
        self._presence.is_leaving = True
        log.info("leaving; a second signal hurries", extra={"event": "worker.leaving"})
        if (member := self._presence.member) is not None:
            await self._departure.leave(member)
