"""The worker's life from the first registration to the good-bye, as a list of steps.

Whoever composes the process has bound the HTTP port and started to connect to NATS before this begins.
"""

import asyncio
import logging

from corral.agent.departure import Departure
from corral.agent.heartbeat import Heartbeat
from corral.agent.identity import Identity
from corral.agent.presence import Member, Presence
from corral.agent.registration import Registrar
from corral.agent.subscriptions import NodeSubscriptions
from corral.base.tasks import run_services

log = logging.getLogger(__name__)


class Membership:
    """Keeps this worker a member of the fleet: registers, listens, beats, and starts over when it was forgotten."""

    def __init__(
        self,
        *,
        registrar: Registrar,
        subscriptions: NodeSubscriptions,
        heartbeat: Heartbeat,
        presence: Presence,
        identity: Identity,
        name: str,
    ) -> None:
        self._registrar = registrar
        self._subscriptions = subscriptions
        self._heartbeat = heartbeat
        self._presence = presence
        self._identity = identity
        self._name = name

    async def run(self) -> None:
        """Until cancelled. Only a first registration that is refused, or NATS permissions that lack, end it."""
        member = await self._registrar.join()
        while True:
            await self._take_up(member)
            await self._heartbeat.until_forgotten(member)
            self._presence.member = None
            log.warning("the frontend forgot this node; registering again", extra={"event": "node.forgotten"})
            member = await self._registrar.rejoin()

    async def _take_up(self, member: Member) -> None:
        self._presence.member = member
        frontend = "Corral" if member.is_corral else "LocalAI"
        told = {"event": "node.registered", "node": member.node_id, "status": member.status, "frontend": frontend}
        log.info("registered", extra=told)
        await self._subscriptions.follow(member.node_id)
        await asyncio.to_thread(self._identity.remember, member.node_id, self._name)  # disks may be slow


class Lifecycle:
    """Runs the membership until told to stop, then takes the worker out of the fleet."""

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
