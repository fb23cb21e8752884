"""Starting, cancelling and retrying operations, and removing old ones."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol, Self

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import NotFound
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.sessions import SessionStore
from corral.frontend.nodes.admission import NodeAdmission
from corral.frontend.nodes.decide.node import NodeStatus, SeenNode
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.operations.broadcasts import Broadcasts
from corral.frontend.operations.decide import intent as intents
from corral.frontend.operations.decide.intent import Intent, IntentKey, IntentState, Payload
from corral.frontend.operations.decide.operation import FINAL, Operation, OperationState, Target, status_of
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.store.operations import Generations, OperationStore
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events
from corral.frontend.store.db import ConstraintViolated
from corral.frontend.store.leases import Leader

_TRIES: Final = 5
"""Attempts at a transaction that met another one about the same subjects."""
_LOOK_SECONDS: Final = 0.1
_AWAY: Final = (NodeStatus.OFFLINE, NodeStatus.UNHEALTHY)


class PlannedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation wants of one node, or of a store."""

    node_id: NodeId
    node_name: str
    is_away: bool = False
    subject: str
    """The canonical name on that node."""
    payload: Payload = msgspec.field(default_factory=dict)
    hindrance: Reason | None = None
    """Why nothing will be sent; None when something may be."""

    @classmethod
    def on(
        cls, seen: SeenNode, subject: str, *, payload: Payload | None = None, hindrance: Reason | None = None
    ) -> Self:
        return cls(
            node_id=seen.node.id,
            node_name=seen.node.name,
            is_away=seen.status in _AWAY,
            subject=subject,
            payload=payload or {},
            hindrance=hindrance,
        )


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that only has to be stored."""

    operation: Operation
    intents: list[Intent]


class CancelGuard(Protocol):
    """Protects what the fleet shall have for ever."""

    async def refuse_cancel(self, operation: Operation, targets: Sequence[tuple[SeenNode, Target]]) -> None:
        """Conflict when these targets of an operation are demanded, so that it would only be started again."""


class Operations:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        store: OperationStore,
        fleet: Fleet,
        feed: Feed,
        clock: Clock,
        *,
        guard: CancelGuard,
        progress: ProgressBoard,
        broadcasts: Broadcasts,
        dispatcher: Poke,
    ) -> None:
        self._store = store
        self._guard = guard
        self._fleet = fleet
        self._feed = feed
        self._clock = clock
        self._progress = progress
        self._broadcasts = broadcasts
        self._dispatcher = dispatcher

    async def with_key(self, idempotency_key: str) -> Operation | None:
        """The operation that was accepted under this idempotency key."""
        return await self._store.with_key(idempotency_key)

    async def generations(self, keys: Sequence[IntentKey]) -> Generations:
        """The generation of each of these intents, which `start` takes as `seen`."""
        return await self._store.generations(keys)

    async def start(self, prepared: Prepared, *, seen: Generations | None = None) -> Operation:
        """Accept it, whole or not at all; an operation with the same idempotency key is returned instead.

        Overtaken when an intent is not of the generation that was `seen`.
        """
        events = [started_event(prepared.operation)]
        for remaining_tries in reversed(range(_TRIES)):
            try:
                stored = await self._store.start(prepared.operation, prepared.intents, events=events, seen=seen)
                break
            except ConstraintViolated:
                if not remaining_tries:
                    raise
        await self.tell([stored] if stored.id == prepared.operation.id else [])
        return stored

    async def tell(self, started: Sequence[Operation]) -> None:
        """Wake the dispatcher and the feed, and broadcast that these operations were accepted."""
        self._dispatcher.ring()
        await self._feed.announce()
        for operation in started:
            await self._broadcasts.accepted(operation)

    # Reading.

    async def get(self, id: OperationId) -> Operation:
        operation = await self._store.get(id)
        if operation is None:
            raise NotFound(f"no operation has the id {id}")
        return operation

    async def settled(self, id: OperationId, *, within: timedelta) -> Operation:
        """The operation once nothing of it is under way, or as it is when the time is over."""
        deadline = self._clock.now() + within
        while True:
            operation = await self.get(id)
            if operation.state is not OperationState.RUNNING or self._clock.now() >= deadline:
                return operation
            await self._clock.sleep(_LOOK_SECONDS)

    # What people do with operations.

    async def cancel(self, id: OperationId, *, by: str, nodes: Sequence[NodeId] | None = None) -> list[Intent]:
        """Take back what is not reached yet; returns those intents. What was sent, nodes may still finish.

        Conflict when a fleet rule demands it: that would only ask for it again.
        """
        operation = await self._store.get(id)
        if operation is not None:
            open_targets = [
                target
                for target in operation.targets
                if target.status not in FINAL and (nodes is None or target.node_id in nodes)
            ]
            nodes_by_id = await self._fleet.some([target.node_id for target in open_targets])
            targets_of_nodes = [
                (nodes_by_id[target.node_id], target) for target in open_targets if target.node_id in nodes_by_id
            ]
            await self._guard.refuse_cancel(operation, targets_of_nodes)
        changed = await self.take_back(id, by=by, nodes=nodes)
        if nodes is None:
            await self._broadcasts.cancelled(id)
        return changed

    async def take_back(self, id: OperationId, *, by: str, nodes: Sequence[NodeId] | None = None) -> list[Intent]:
        """Cancel what can still be cancelled, without a broadcast: another frontend has sent one."""
        now, why = self._clock.now(), because(ReasonCode.CANCELLED, by=by)

        def taken_back(intent: Intent) -> Intent | None:
            return intents.cancel(intent, why, now) if intents.may_cancel(intent) else None

        event = Event(kind=EventKind.OPERATION_CANCELLED, at=now, actor=by, data={"operation": id})
        changed = await self._store.change(id, nodes, taken_back, events=[event])
        if changed:
            self._progress.changed(id)
            await self._feed.announce()
        return changed

    async def retry(self, id: OperationId, *, by: str, nodes: Sequence[NodeId] | None = None) -> list[Intent]:
        """Try again at once what failed or is blocked; returns those intents."""
        now = self._clock.now()

        def again(intent: Intent) -> Intent | None:
            return intents.retry(intent, now) if intents.may_retry(intent) else None

        event = Event(kind=EventKind.OPERATION_RETRIED, at=now, actor=by, data={"operation": id})
        changed = await self._store.change(id, nodes, again, events=[event])
        self._dispatcher.ring()
        self._progress.changed(id)
        await self._feed.announce()
        return changed

    async def dismiss(self, id: OperationId) -> bool:
        await self._broadcasts.dismissed(id)
        return await self._store.dismiss(id, at=self._clock.now())

    async def dismiss_quietly(self, id: OperationId) -> bool:
        """Dismiss a failed operation, without a broadcast: another frontend has sent one."""
        operation = await self._store.get(id)
        is_failed = operation is not None and operation.state is OperationState.FAILED
        return is_failed and await self._store.dismiss(id, at=self._clock.now())

    async def clear(self, *, by: str) -> int:
        """Forget those that are over. What failed stays as long as its nodes are to be tried again."""
        event = Event(kind=EventKind.OPERATIONS_CLEARED, at=self._clock.now(), actor=by)
        return await self._store.clear(event=event)


def prepare(operation: Operation, planned: Sequence[PlannedTarget], *, delay: timedelta = timedelta(0)) -> Prepared:
    """The operation with a target and an intent for each node; the dispatcher first looks at them after `delay`."""
    opened, targets = [], []
    for plan in planned:
        intent = Intent(
            node_id=plan.node_id,
            verb=operation.verb,
            subject=plan.subject,
            payload=plan.payload,
            operation_id=operation.id,
            state=IntentState.BLOCKED if plan.hindrance else IntentState.OPEN,
            reason=plan.hindrance,
            accepted_at=operation.accepted_at,
            changed_at=operation.accepted_at,
            next_try=operation.accepted_at + delay,
            waits_for_node=not plan.hindrance and plan.is_away,
        )
        target = Target(
            operation_id=operation.id,
            node_id=intent.node_id,
            node_name=plan.node_name,
            subject=intent.subject,
            status=status_of(intent),
            waits_for_node=intent.waits_for_node,
            reason=intent.reason,
            changed_at=intent.changed_at,
        )
        opened.append(intent)
        targets.append(target)
    payload = planned[0].payload if planned else {}
    return Prepared(operation=replace(operation, payload=payload, targets=tuple(targets)), intents=opened)


def started_event(operation: Operation) -> Event:
    return Event(
        kind=EventKind.OPERATION_STARTED,
        at=operation.accepted_at,
        actor=operation.asked_by,
        node_id=operation.node_id,
        data={
            "operation": operation.id,
            "verb": operation.verb.value,
            "backend": operation.subject,
            "targets": len(operation.targets),
        },
    )


log = logging.getLogger(__name__)

HOUSEKEEPING_PERIOD: Final = timedelta(hours=1)
_LEASE_TIME: Final = timedelta(minutes=5)
_KEPT_EVENTS: Final = 10_000


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long what is kept."""

    events: timedelta
    operations: timedelta


class Housekeeping:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        events: Events,
        operations: OperationStore,
        keys: Keys,
        sessions: SessionStore,
        leader: Leader,
        admission: NodeAdmission,
        clock: Clock,
        *,
        retention: Retention,
    ) -> None:
        self._events = events
        self._operations = operations
        self._keys = keys
        self._sessions = sessions
        self._leader = leader
        self._admission = admission
        self._clock = clock
        self._retention = retention

    async def tidy(self) -> None:
        now = self._clock.now()
        async with self._leader.turn("housekeeping", duration=_LEASE_TIME) as is_ours:
            if not is_ours:
                return
            events = await self._events.trim(now - self._retention.events, keep_at_least=_KEPT_EVENTS)
            await self._keys.trim_logins(now - self._retention.events)
            await self._sessions.trim(now=now, before=now - self._retention.events)
            operations = await self._operations.trim(now - self._retention.operations)
            await self._admission.expire_pending()
        if events:
            log.info("old events removed", extra={"event": "events.trimmed", "count": events})
        if operations:
            log.info("old operations removed", extra={"event": "operations.trimmed", "count": operations})
