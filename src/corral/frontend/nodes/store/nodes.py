"""Nodes: every column of theirs is read and written here. Only `Node` comes out, or its outline.

Four kinds of writers share a row and never undo each other: people and registration (guarded by the revision),
heartbeats (guarded by the last heartbeat that they were decided on), control's no-responders mark, and health's
announcements (guarded by all that a status follows from).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from sqlalchemy import Select, and_, delete, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import InvitationId, NodeId
from corral.frontend.access.store.keys import revoke_keys_of
from corral.frontend.nodes.decide.liveness import Pulse
from corral.frontend.nodes.decide.nats_users import KnownUser
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType, Suspicion, joined_at
from corral.frontend.nodes.decide.registration import AdmissionPolicy, TooManyPending, crowd_problem
from corral.frontend.nodes.decide.reports import NodeContact, with_host
from corral.frontend.nodes.store import invitations, liveness
from corral.frontend.nodes.store.liveness import AcceptedHeartbeat, NodeLook
from corral.frontend.nodes.store.nats_users import keep_user
from corral.frontend.nodes.store.rows import (
    NODE,
    OUTLINE,
    PEER,
    Outline,
    has_feature,
    heartbeat_values,
    node_from,
    outline_from,
    registered_values,
)
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database, ForgetStep
from corral.frontend.store.dialect import among, insert_into
from corral.frontend.store.schema import nodes
from corral.frontend.store.secrets import SealedSecret, discard, node_secret_name, store_sealed
from corral.wire.registration import Feature

_NODE: Final = select(*NODE)
_OUTLINE: Final = select(*OUTLINE)
_MARK: Final = select(nodes.c.id, nodes.c.revision, nodes.c.last_heartbeat, nodes.c.no_responders_at)
_REGISTERED: Final = func.coalesce(nodes.c.registered_at, nodes.c.updated_at)
"""Rows of early versions do not say when a node registered, but when anything but a heartbeat last changed it."""
_CONTACT: Final = select(
    nodes.c.id,
    nodes.c.name,
    nodes.c.approved_at,
    nodes.c.address,
    nodes.c.http_address,
    _REGISTERED.label("registered_at"),
    PEER,
)


NodeMark = tuple[int, datetime, datetime | None]
"""What differs whenever anything about a node has changed."""


class MoveStep(Protocol):
    """What another room does when a node comes back at another address: it runs in the node's own transaction."""

    async def __call__(self, connection: AsyncConnection, before: Node, after: Node, /) -> None: ...


class Nodes:
    def __init__(
        self,
        database: Database,
        *,
        on_removal: Sequence[ForgetStep[NodeId]] = (),
        on_suspicion: Sequence[ForgetStep[NodeId]] = (),
        on_move: Sequence[MoveStep] = (),
    ) -> None:
        """`on_removal`, `on_suspicion` and `on_move` are what other rooms do when a node is removed, loses its
        approval, or has another address."""
        self._db = database
        self._on_removal = on_removal
        self._on_suspicion = on_suspicion
        self._on_move = on_move
        self.writes = 0
        """How often this process changed what registration and people own: what was read before may be outdated."""

    # Reading.

    async def get(self, id: NodeId) -> Node | None:
        return next(iter(await self._fetch(_NODE.where(nodes.c.id == id))), None)

    async def find_by_secret(self, secret_hash: str) -> Node | None:
        return next(iter(await self._fetch(_NODE.where(nodes.c.secret_hash == secret_hash))), None)

    async def find_by_name(self, name: str) -> list[Node]:
        """All nodes of this name, oldest first: names are not unique."""
        return await self._fetch(_NODE.where(nodes.c.name == name).order_by(nodes.c.created_at, nodes.c.id))

    async def page(self, *, after: tuple[str, str] | None, limit: int) -> list[Node]:
        """By name, then id; `after` is the name and id of the last node already seen."""
        return await self._fetch(_page(_NODE, after, limit))

    async def outlines(self, *, after: tuple[str, str] | None, limit: int) -> list[Outline]:
        """A page with less of each node."""
        async with self._db.look() as connection:
            return [outline_from(row) for row in await connection.execute(_page(_OUTLINE, after, limit))]

    async def all(self) -> list[Node]:
        """All nodes, in the order of their names and then of their ids."""
        return await self._fetch(_NODE.order_by(nodes.c.name, nodes.c.id))

    async def asked_to_drain(self) -> list[Node]:
        """Nodes that somebody drains, whatever their status is."""
        return await self._fetch(_NODE.where(nodes.c.draining_since.is_not(None)).order_by(nodes.c.name, nodes.c.id))

    async def pulse(self, *, silent_since: datetime) -> Pulse:
        """How many nodes are heard, and how many went silent since then, according to the announced statuses."""
        counted = and_(
            nodes.c.type == NodeType.BACKEND.value, nodes.c.approved_at.is_not(None), nodes.c.deregistered_at.is_(None)
        )
        is_silent = nodes.c.announced.in_([NodeStatus.UNHEALTHY.value, NodeStatus.OFFLINE.value])
        is_heard = nodes.c.announced.in_([NodeStatus.HEALTHY.value, NodeStatus.DRAINING.value])
        lately = nodes.c.announced_at >= silent_since
        statement = select(
            func.count().filter(is_heard).label("heard"), func.count().filter(and_(is_silent, lately)).label("silent")
        ).where(counted)
        async with self._db.look() as connection:
            row = (await connection.execute(statement)).one()
        return Pulse(heard=row.heard, silent=row.silent)

    async def load_many(self, ids: Iterable[NodeId]) -> dict[NodeId, Node]:
        """Return those of the nodes that exist, with one statement."""
        async with self._db.look() as connection:
            rows = await connection.execute(_NODE.where(among(connection, nodes.c.id, sorted(set(ids)))))
            return {node.id: node for node in map(node_from, rows.mappings())}

    async def marks(self) -> dict[NodeId, NodeMark]:
        """By which to see what changed since a node was read, of all nodes in one statement of few columns."""
        async with self._db.look() as connection:
            rows = (await connection.execute(_MARK)).all()
        return {
            NodeId(id): (revision, last_heartbeat, no_responders)
            for id, revision, last_heartbeat, no_responders in rows
        }

    async def contacts(self, ids: Iterable[NodeId]) -> dict[NodeId, NodeContact]:
        """How to reach those that exist, in one statement of few columns: it is asked before every call to a node."""
        async with self._db.look() as connection:
            rows = await connection.execute(_CONTACT.where(among(connection, nodes.c.id, sorted(set(ids)))))
            return {
                NodeId(row.id): NodeContact(
                    name=row.name,
                    is_approved=row.approved_at is not None,
                    address=row.address,
                    http_address=with_host(row.http_address),
                    joined_at=joined_at(row.registered_at, row.approved_at),
                    has_tls=has_feature(row.peer, Feature.FLEET_TLS),
                    can_confine=has_feature(row.peer, Feature.CONFINEMENT),
                )
                for row in rows
            }

    async def due(self, now: datetime, limit: int) -> list[Node]:
        """Nodes that health should look at now, the longest waiting first."""
        due = _NODE.where(nodes.c.next_look <= now)
        return await self._fetch(due.order_by(nodes.c.next_look, nodes.c.id).limit(limit))

    async def next_look(self) -> datetime | None:
        """When health should look at the first of them; None when it need not look at any."""
        async with self._db.look() as connection:
            first: datetime | None = (await connection.execute(select(func.min(nodes.c.next_look)))).scalar_one()
        return first

    # People and registration.

    async def admit(
        self,
        node: Node,
        *,
        events: Sequence[Event],
        policy: AdmissionPolicy,
        secret: SealedSecret | None = None,
        invitation: InvitationId | None = None,
        nats_user: KnownUser | None = None,
    ) -> bool:
        """Store a node that registers for the first time, its secret and its NATS user; health looks at it at once.

        The use of an invitation is counted with it; InvitationRefused when it ended meanwhile.

        False: a node with this id or this secret is there, or one of this name when neither has a secret.
        TooManyPending: it would wait for approval, and the policy does not let more wait.
        """
        row = {
            **registered_values(node),
            **heartbeat_values(node),
            "id": node.id,
            "created_at": node.created_at,
            "revision": node.revision,
            "announced": node.announced,
            "next_look": node.updated_at,
        }
        async with self._db.begin() as connection:
            if node.facts.approved_at is None:
                await _refuse_crowd(connection, node.registered_from, policy)
            insert = insert_into(connection, nodes).values(row).on_conflict_do_nothing()
            if (await connection.execute(insert)).rowcount != 1:
                return False
            if invitation is not None:
                await invitations.use(connection, invitation, node.updated_at)
            await _finish(connection, node, secret, nats_user, events)
        self.writes += 1
        return True

    async def replace(self, node: Node, *, events: Sequence[Event], nats_user: KnownUser | None = None) -> bool:
        """Write what people and registration own. False: somebody else changed the node since it was read."""
        async with self._db.begin() as connection:
            if not await _changed(connection, node, registered_values(node)):
                return False
            await _finish(connection, node, None, nats_user, events)
        self.writes += 1
        return True

    async def register(
        self,
        node: Node,
        *,
        events: Sequence[Event],
        secret: SealedSecret | None = None,
        invitation: InvitationId | None = None,
        nats_user: KnownUser | None = None,
        moved_from: Node | None = None,
    ) -> bool:
        """Write a registration, which counts as a heartbeat, and the use of an invitation. False: somebody else was
        first.

        `moved_from` is the node as it was, where its address is another one now.
        """
        values = {**registered_values(node), **heartbeat_values(node)}
        async with self._db.begin() as connection:
            if not await _changed(connection, node, values):
                return False
            if moved_from is not None:
                for move in self._on_move:
                    await move(connection, moved_from, node)
            if invitation is not None:
                await invitations.use(connection, invitation, node.updated_at)
            await _finish(connection, node, secret, nats_user, events)
        self.writes += 1
        return True

    async def suspect(self, node: Node, *, secret: SealedSecret | None, events: Sequence[Event]) -> bool:
        """Write a registration that takes the approval away; its keys are revoked, and the other rooms end what it has,
        as of the time of the (required) event. False: somebody else was first."""
        at = max(event.at for event in events)
        values = {**registered_values(node), **heartbeat_values(node)}
        async with self._db.begin() as connection:
            if not await _changed(connection, node, values):
                return False
            await revoke_keys_of(connection, node.id, at)
            for forget in self._on_suspicion:
                await forget(connection, node.id, reason="the node is pending again", at=at)
            await _finish(connection, node, secret, None, events)
        self.writes += 1
        return True

    async def never_heard(self, *, since: datetime, limit: int) -> list[Node]:
        """Pending nodes that registered before then and sent no heartbeat, the oldest first."""
        silent = and_(
            nodes.c.approved_at.is_(None),
            nodes.c.last_heartbeat < since,
            nodes.c.last_heartbeat <= _REGISTERED,
            or_(nodes.c.suspicion.is_(None), nodes.c.suspicion == Suspicion.NAMESAKE.value),
        )
        return await self._fetch(_NODE.where(silent).order_by(nodes.c.last_heartbeat, nodes.c.id).limit(limit))

    async def expire(self, node: Node, *, events: Sequence[Event]) -> bool:
        """Delete a node that was never approved, with its secret. False: it was heard or changed since it was read."""
        same = and_(
            nodes.c.id == node.id,
            nodes.c.revision == node.revision,
            nodes.c.last_heartbeat == node.facts.last_heartbeat,
        )
        async with self._db.begin() as connection:
            if (await connection.execute(delete(nodes).where(same))).rowcount != 1:
                return False
            await discard(connection, node_secret_name(node.id))
            await append(connection, events)
        self.writes += 1
        return True

    async def remove(self, id: NodeId, *, events: Sequence[Event]) -> bool:
        """Delete the node with its secret; its keys are revoked, and the other rooms forget it, as of the time of the
        (required) event. False: it was gone."""
        at = max(event.at for event in events)
        async with self._db.begin() as connection:
            if (await connection.execute(delete(nodes).where(nodes.c.id == id))).rowcount != 1:
                return False
            await discard(connection, node_secret_name(id))
            await revoke_keys_of(connection, id, at)
            for forget in self._on_removal:
                await forget(connection, id, reason="the node was removed", at=at)
            await append(connection, events)
        self.writes += 1
        return True

    # Heartbeats.

    async def beat(self, beats: Sequence[AcceptedHeartbeat]) -> set[NodeId]:
        """Write a batch of heartbeats in one transaction; returns which nodes exist.

        A heartbeat that was decided on an older state than the stored one is dropped: a newer one was there first.
        """
        if not beats:
            return set()
        ids = {beat.before.id for beat in beats}
        events = {beat.before.id: beat.event for beat in beats if beat.event is not None}
        if len(ids) > 1 or events:
            async with self._db.begin() as connection:
                node_ids, written = await liveness.write_beats(connection, beats)
                await append(connection, [event for id, event in events.items() if id in written])
            return node_ids
        async with self._db.write() as connection:  # of a small fleet: one statement
            is_written = await liveness.write_beat(connection, beats)
        return ids if is_written else set(await self.load_many(ids))

    async def mark_no_responders(self, ids: Sequence[NodeId], *, at: datetime) -> set[NodeId]:
        """Nobody answered for these nodes. Not marked: those that were heard since, are marked already, or are gone."""
        async with self._db.begin() as connection:
            return await liveness.mark_no_responders(connection, ids, at)

    # Health.

    async def judge(self, looks: Sequence[NodeLook], *, at: datetime) -> set[NodeId]:
        """Write what looks at nodes led to, and the events of what is announced; returns which nodes were as they were
        read. The others stay as they are: another frontend was first, or what the status follows from has changed."""
        async with self._db.begin() as connection:
            written = await liveness.judge(connection, looks, at)
            await append(connection, [look.event for look in looks if look.event and look.node.id in written])
        return written

    # Helpers.

    async def _fetch(self, statement: Select[Any]) -> list[Node]:
        async with self._db.look() as connection:
            return [node_from(row) for row in (await connection.execute(statement)).mappings()]


def mark_of(node: Node) -> NodeMark:
    return node.revision, node.facts.last_heartbeat, node.facts.no_responders_at


async def _changed(connection: AsyncConnection, node: Node, values: Mapping[str, object]) -> bool:
    """Write columns of a node. False: its revision is not the one that was read."""
    same = and_(nodes.c.id == node.id, nodes.c.revision == node.revision)
    changed = {**values, "revision": node.revision + 1, "next_look": node.updated_at}
    return (await connection.execute(update(nodes).where(same).values(changed))).rowcount == 1


async def _refuse_crowd(connection: AsyncConnection, source: str, policy: AdmissionPolicy) -> None:
    """On SQLite, where one transaction writes at a time, exact; on PostgreSQL a few that come together may slip in."""
    counted = select(func.count(), func.count().filter(nodes.c.registered_from == source))
    pending, from_source = (await connection.execute(counted.where(nodes.c.approved_at.is_(None)))).one()
    if problem := crowd_problem(policy, pending=pending, from_source=from_source, source=source):
        raise TooManyPending(problem)


async def _finish(
    connection: AsyncConnection,
    node: Node,
    secret: SealedSecret | None,
    nats_user: KnownUser | None,
    events: Sequence[Event],
) -> None:
    if secret is not None:
        await store_sealed(connection, secret)
    if nats_user is not None:
        await keep_user(connection, node.id, nats_user)
    await append(connection, events)


def _page(statement: Select[Any], after: tuple[str, str] | None, limit: int) -> Select[Any]:
    page = statement.order_by(nodes.c.name, nodes.c.id).limit(limit)
    return page if after is None else page.where(tuple_(nodes.c.name, nodes.c.id) > after)
