"""Admission: workers that register, as new nodes or as known ones that come back, and what makes them suspicious.

Every registration is load, decide (`decide/registration.py`), apply guarded by the revision that was read; who loses
starts over.
"""

import logging
from typing import Final

from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict
from corral.base.ids import new_incarnation, new_node_id
from corral.base.tasks import Poke
from corral.base.values import PartlyPrinted
from corral.bus.credentials import UserJwt
from corral.frontend.nodes.decide.changes import change_of, identity_of, move_of, node_event
from corral.frontend.nodes.decide.invitations import Invitation, accept, refuse_ended
from corral.frontend.nodes.decide.node import BY_WORKER, Node
from corral.frontend.nodes.decide.registration import (
    AdmissionPolicy,
    Approval,
    Registration,
    TooManyPending,
    is_new_life,
    is_renewal,
    is_still_waiting,
    register_again,
    register_new,
    register_stranger,
)
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.nats_users import NatsIssuer
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.store.secrets import SealedSecret, Secrets, node_secret_name

log = logging.getLogger(__name__)

_TRIES: Final = 8
_EXPIRED_AT_ONCE: Final = 500
AUTO_APPROVE: Final = "auto-approve"


class Registered(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("nats_user",)

    node: Node
    is_new: bool
    nats_user: UserJwt | None = None
    """What it may log in to NATS with."""


class NodeAdmission:
    """Lets workers into the fleet, and takes them back when they register again."""

    def __init__(  # noqa: PLR0913 - each is a collaborator or a setting
        self,
        nodes: Nodes,
        secrets: Secrets,
        feed: Feed,
        clock: Clock,
        *,
        fleet: Fleet,
        health: Poke,
        policy: AdmissionPolicy,
        nats_users: NatsIssuer,
        revocations: Poke,
    ) -> None:
        """`nats_users` makes what nodes log in to NATS with; `revocations` is rung when some of that must end."""
        self._nodes = nodes
        self._secrets = secrets
        self._feed = feed
        self._clock = clock
        self._fleet = fleet
        self._health = health
        self._policy = policy
        self._nats_users = nats_users
        self._revocations = revocations

    async def register(
        self,
        registration: Registration,
        *,
        secret: str,
        trusted_by: str | None = None,
        invitation: Invitation | None = None,
    ) -> Registered:
        """Admit a worker, or take it back. Idempotent: the same request again gives the same node.

        `secret` is what the servers of the node accept from control. LocalAI's workers have no secret of their own, and
        accept the token that they joined with, which need not be the one of the others.
        A node that came with the invitation before uses it no second time, also when it has ended since. Others get
        InvitationRefused then.
        """
        approval = None
        if trusted_by is not None:
            approval = Approval(by=trusted_by, is_proof=True)
        elif self._policy.auto_approve:
            approval = Approval(by=AUTO_APPROVE, is_proof=False)
        for _ in range(_TRIES):
            try:
                registered = await self._try_register(
                    registration, secret=secret, approval=approval, invitation=invitation
                )
            except TooManyPending:
                if await self.expire_pending():
                    continue
                raise
            if registered is not None:
                self._health.ring()
                await self._feed.announce()
                return registered
        raise Conflict(f"node {registration.name} is being changed by others; try again")

    async def _try_register(
        self,
        registration: Registration,
        *,
        secret: str,
        approval: Approval | None,
        invitation: Invitation | None,
    ) -> Registered | None:
        namesakes: list[Node] = []
        if registration.secret_hash is not None:
            stored = await self._nodes.find_by_secret(registration.secret_hash)
        else:
            same_name = await self._nodes.find_by_name(registration.name)
            stored = next((node for node in same_name if node.secret_hash is None), None)
            namesakes = [node for node in same_name if node.secret_hash is not None]
        if stored is not None:
            return await self._again(stored, registration, secret=secret, approval=approval, invitation=invitation)
        registration, id, now = self._with_life(registration, None), new_node_id(), self._clock.now()
        if namesakes:
            # Somebody without the secret uses the name of a node that has one: never approved by itself.
            node = register_stranger(registration, id=id, at=now)
            why = "registered without the secret of the node that has this name"
            data = {"namesake": namesakes[0].id, "why": why}
            event = self._event(EventKind.NODE_IMPERSONATION, node, BY_WORKER, address=node.address, **data)
        else:
            node = self._accepted(register_new(registration, id=id, at=now, approval=approval), invitation)
            invited = {} if invitation is None else {"invitation": invitation.id}
            by = node.facts.approved_by or None
            event = self._event(
                EventKind.NODE_REGISTERED, node, BY_WORKER, address=node.address, approved_by=by, **invited
            )
        known_user, nats_user = self._nats_users.issue(node, now)
        is_admitted = await self._nodes.admit(
            node,
            secret=self._sealed(node, secret),
            events=[event],
            policy=self._policy,
            invitation=None if invitation is None else invitation.id,
            nats_user=known_user,
        )
        return Registered(node=node, is_new=True, nats_user=nats_user) if is_admitted else None

    async def _again(
        self,
        stored: Node,
        registration: Registration,
        *,
        secret: str,
        approval: Approval | None,
        invitation: Invitation | None,
    ) -> Registered | None:
        registration = self._with_life(registration, stored)
        node = register_again(stored, registration, at=self._clock.now(), approval=approval, policy=self._policy)
        if stored.facts.approved_at is not None and node.facts.approved_at is None:
            return await self._suspected(stored, node, secret=secret)
        used = None
        if invitation is not None and stored.invitation_id != invitation.id:
            node, used = self._accepted(node, invitation), invitation.id
        events = []
        if is_new_life(stored, registration) or used is not None:
            invited = {} if used is None else {"invitation": used}
            events.append(self._event(EventKind.NODE_REREGISTERED, node, BY_WORKER, address=node.address, **invited))
        events += self._differences(stored, node)
        known_user, nats_user = self._nats_users.issue(node, node.updated_at)
        is_stored = await self._nodes.register(
            node,
            secret=self._sealed(node, secret),
            events=events,
            invitation=used,
            nats_user=known_user,
            moved_from=None if stored.address == node.address else stored,
        )
        return Registered(node=node, is_new=False, nats_user=nats_user) if is_stored else None

    async def _suspected(self, before: Node, node: Node, *, secret: str) -> Registered | None:
        """Make a suspicious node pending again, without keys and replicas: it may be another machine."""
        difference = change_of(before, node)
        alarm = self._event(
            EventKind.NODE_SUSPECTED,
            node,
            BY_WORKER,
            before={**identity_of(before), **difference.before},
            after={**identity_of(node), **difference.after},
            registered_from=node.registered_from,
            why=node.facts.suspicion,
        )
        if not await self._nodes.suspect(node, secret=self._sealed(node, secret), events=[alarm]):
            return None
        self._revocations.ring()
        log.warning(
            "a node came back changed and waits for approval again",
            extra={"event": "node.suspected", "node": node.id, "node_name": node.name, "why": node.facts.suspicion},
        )
        return Registered(node=node, is_new=False)

    def _accepted(self, node: Node, invitation: Invitation | None) -> Node:
        """Let the invitation, if there is one, say what becomes of the node. InvitationRefused when it ended."""
        if invitation is None:
            return node
        refuse_ended(invitation, self._clock.now())
        return accept(node, invitation, at=self._clock.now())

    def _differences(self, before: Node, node: Node) -> list[Event]:
        """Events for a node in service that came back at another address or with other hardware."""
        if before.facts.approved_at is None or node.facts.approved_at is None:
            return []
        differences = {EventKind.NODE_MOVED: move_of(before, node), EventKind.NODE_CHANGED: change_of(before, node)}
        events = []
        for kind, (was, now) in differences.items():
            if was:
                details = {"event": kind.value, "node": node.id, "node_name": node.name, "changed": list(now)}
                log.warning("a node came back with other facts", extra=details)
                events.append(self._event(kind, node, BY_WORKER, before=dict(was), after=dict(now)))
        return events

    async def expire_pending(self) -> int:
        """Forget pending nodes of which nothing was heard since they registered; returns how many."""
        now, count = self._clock.now(), 0
        retention = self._policy.pending_retention
        for node in await self._nodes.never_heard(since=now - retention, limit=_EXPIRED_AT_ONCE):
            if self._fleet.see(node, now).silent_seconds < retention.total_seconds():
                continue  # it could not be heard
            event = self._event(EventKind.NODE_EXPIRED, node, "control", address=node.address)
            count += await self._nodes.expire(node, events=[event])
        if count:
            log.info("pending nodes expired", extra={"event": "nodes.expired", "count": count})
            await self._feed.announce()
        return count

    def _with_life(self, registration: Registration, stored: Node | None) -> Registration:
        """LocalAI's workers tell none: each registration of theirs begins one, unless it only asks for approval again
        or renews credentials."""
        if registration.incarnation:
            return registration
        if stored is not None and is_still_waiting(stored, registration):
            return replace(registration, incarnation=stored.facts.incarnation)
        if stored is not None and is_renewal(stored, registration, self._clock.now(), self._nats_users.lifetime):
            return replace(registration, incarnation=stored.facts.incarnation)
        return replace(registration, incarnation=new_incarnation())

    def _sealed(self, node: Node, secret: str) -> SealedSecret:
        return self._secrets.seal(node_secret_name(node.id), secret, at=node.updated_at)

    async def knows_secret(self, secret_hash: str) -> bool:
        """Does a node of this fleet have this secret?"""
        return await self._nodes.find_by_secret(secret_hash) is not None

    def _event(self, kind: EventKind, node: Node, actor: str, **data: object) -> Event:
        return node_event(kind, node, actor, at=self._clock.now(), **data)
