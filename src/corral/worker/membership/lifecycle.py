"""The worker's life from the first registration to deregistration, as a list of steps.

The composition root has bound the HTTP port and started to connect to NATS before this begins.
"""

import asyncio
import logging
from collections.abc import Callable

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import NodeId
from corral.base.tasks import first_done, run_services
from corral.worker.membership.departure import Departure
from corral.worker.membership.heartbeat import HeartbeatLoop
from corral.worker.membership.nats_user import NatsUser
from corral.worker.membership.presence import AcceptedRegistration, Presence
from corral.worker.membership.registration import Registrar
from corral.worker.membership.subscriptions import NodeSubscriptions

log = logging.getLogger(__name__)


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
