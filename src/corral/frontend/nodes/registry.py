"""The registry: who belongs to the fleet, and what people decided about them.

Every change is load, decide (in `decide/`), apply guarded by the revision that was read; who loses starts over.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound, Overtaken
from corral.base.ids import NodeId, new_incarnation, new_node_id
from corral.base.tasks import Poke
from corral.base.values import PartlyPrinted
from corral.bus.credentials import UserJwt
from corral.frontend.nodes.decide import node as domain
from corral.frontend.nodes.decide.changes import change_of, identity_of, move_of
from corral.frontend.nodes.decide.invitations import Invitation, accept, refuse_ended
from corral.frontend.nodes.decide.nats_users import KnownUser
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
from corral.wire.labels import NodeLabels, label_growth_problem

log = logging.getLogger(__name__)

_TRIES: Final = 8
_EXPIRED_AT_ONCE: Final = 500
_SHOWN: Final = 80
AUTO_APPROVE: Final = "auto-approve"


class Registered(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("nats_user",)

    node: Node
    is_new: bool
    nats_user: UserJwt | None = None
    """What it may log in to NATS with."""


class _Decision(Protocol):
    """What becomes of a node."""

    def __call__(self, node: Node, /, *, at: datetime) -> Node: ...


class NodeRegistry:
    """Changes nodes. Names in `by` are those of keys, or `worker` for the node itself."""

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
                await self._announce()
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

    async def approve(
        self, node_id: NodeId, *, by: str, nats_user: Callable[[Node], KnownUser | None] = lambda _: None
    ) -> Node:
        """Only a pending node can be approved. `nats_user` may make a user that is stored with the approval."""

        def decide(node: Node, *, at: datetime) -> Node:
            if node.facts.approved_at is not None:
                raise Conflict(f"node {node.name} is not pending: {node.facts.approved_by} approved it")
            return domain.approve(node, by=by, at=at)

        return await self._change(node_id, decide, EventKind.NODE_APPROVED, by=by, nats_user=nats_user)

    async def approve_localai(self, node_id: NodeId, *, by: str) -> tuple[Node, UserJwt | None]:
        """Approve a node, and return the user that LocalAI's form of the answer has; a Corral node fetches its own."""
        issued: list[UserJwt | None] = []

        def issue(node: Node) -> KnownUser | None:
            user_id, user = self._nats_users.issue(node, node.updated_at) if node.peer is None else (None, None)
            issued[:] = [user]
            return user_id

        return await self.approve(node_id, by=by, nats_user=issue), next(iter(issued), None)

    async def drain(self, node_id: NodeId, *, by: str, mark: str | None = None) -> Node:
        """Begin a drain. Overtaken when the node's `drain_mark` is not the one that was seen, if one is given."""

        def decide(node: Node, *, at: datetime) -> Node:
            if mark is not None and domain.drain_mark(node) != mark:
                raise Overtaken
            return domain.drain(node, by=by, at=at)

        return await self._change(node_id, decide, EventKind.NODE_DRAINING, by=by)

    async def resume(self, node_id: NodeId, *, by: str) -> Node:
        """End a drain. It approves nothing and revives nothing."""
        return await self._change(node_id, partial(domain.resume, by=by), EventKind.NODE_RESUMED, by=by)

    async def deregister(self, node_id: NodeId) -> Node:
        """The worker says good-bye; it is offline until it registers again."""
        return await self._change(node_id, domain.deregister, EventKind.NODE_DEREGISTERED, by=BY_WORKER)

    async def remove(self, node_id: NodeId, *, by: str) -> None:
        """Forget the node, its secret and the keys issued to it. If its worker still runs, it joins as a new one."""
        node = await self._nodes.get(node_id)
        if node is None:
            raise _unknown(node_id)
        event = self._event(EventKind.NODE_REMOVED, node, by)
        if not await self._nodes.remove(node_id, events=[event]):
            raise _unknown(node_id)
        self._revocations.ring()
        await self._feed.announce()

    async def replace_labels(self, node_id: NodeId, labels: Mapping[str, str], *, by: str) -> Node:
        return await self._relabel(node_id, lambda node_labels: node_labels.replace_all(labels), by=by)

    async def merge_labels(self, node_id: NodeId, labels: Mapping[str, str], *, by: str) -> Node:
        return await self._relabel(node_id, lambda node_labels: node_labels.merge(labels), by=by)

    async def remove_label(self, node_id: NodeId, key: str, *, by: str) -> Node:
        return await self._relabel(node_id, lambda labels: labels.remove(key), by=by)

    async def _relabel(self, node_id: NodeId, decide: Callable[[NodeLabels], NodeLabels], *, by: str) -> Node:
        def relabel(node: Node, *, at: datetime) -> Node:
            labels = decide(node.labels)
            if problem := label_growth_problem(node.labels, labels):
                raise InvalidInput("labels", problem)
            return domain.relabel(node, labels, at=at)

        detail = attrgetter("labels.effective")
        return await self._change(node_id, relabel, EventKind.NODE_LABELS, by=by, detail=detail)

    async def set_max_replicas(self, node_id: NodeId, value: int | None, *, by: str) -> Node:
        """A person's value wins over the worker's and survives its registrations; None takes it back."""
        decide, detail = partial(domain.set_max_replicas, value=value), attrgetter("max_replicas_per_model")
        return await self._change(node_id, decide, EventKind.NODE_MAX_REPLICAS, by=by, detail=detail)

    async def set_vram_budget(self, node_id: NodeId, value: str | None, *, by: str) -> Node:
        """A person's value wins, as with replicas. `VramBudget` must have read the text already."""
        decide, detail = partial(domain.set_vram_budget, value=value), attrgetter("vram_budget")
        return await self._change(node_id, decide, EventKind.NODE_VRAM_BUDGET, by=by, detail=detail)

    async def put_card(self, node_id: NodeId, card: str, *, is_out: bool, by: str) -> Node:
        """Take one GPU out of service, or put it back. What uses it now goes on; nothing new is given to it."""

        def decide(node: Node, *, at: datetime) -> Node:
            if card not in node.cards_out and all(gpu.id != card for gpu in node.cards):
                has = ", ".join(gpu.id for gpu in node.cards) or "none"
                raise NotFound(f"node {node.name} has no GPU {card[:_SHOWN]!r}; it has {has}")
            return domain.put_card(node, card, is_out=is_out, at=at)

        def detail(node: Node) -> list[str]:
            return sorted(node.cards_out)

        return await self._change(node_id, decide, EventKind.NODE_CARDS, by=by, detail=detail)

    async def _change(
        self,
        node_id: NodeId,
        decide: _Decision,
        kind: EventKind,
        *,
        by: str,
        detail: Callable[[Node], object] | None = None,
        nats_user: Callable[[Node], KnownUser | None] = lambda _: None,
    ) -> Node:
        """Apply a decision to a node. Nothing to change: nothing is written, nothing is announced.

        `detail` is what the event tells of the node before and after, if anything.
        """
        for _ in range(_TRIES):
            before = await self._nodes.get(node_id)
            if before is None:
                raise _unknown(node_id)
            after = decide(before, at=self._clock.now())
            if after is before:
                return before
            data = {} if detail is None else {"before": detail(before), "after": detail(after)}
            event = self._event(kind, after, by, **data)
            if await self._nodes.replace(after, events=[event], nats_user=nats_user(after)):
                await self._announce()
                return after
        raise Conflict(f"node {node_id} is being changed by others; try again")

    async def _announce(self) -> None:
        self._health.ring()
        await self._feed.announce()

    def _event(self, kind: EventKind, node: Node, actor: str, **data: object) -> Event:
        return Event(kind=kind, at=self._clock.now(), actor=actor, node_id=node.id, data={"name": node.name, **data})


def _unknown(node_id: NodeId) -> NotFound:
    return NotFound(f"no node has the id {node_id}")
