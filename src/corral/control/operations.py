"""Administrative acts: who is meant, what fits, one transaction, and a poke. The dispatcher does the rest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.ids import NodeId, OperationId, new_operation_id
from corral.base.tasks import Poke
from corral.control.broadcasts import Broadcasts
from corral.control.feed import Feed
from corral.control.fleet import Fleet, NodeFilter
from corral.control.inventory import InventoryKeeper
from corral.control.planning import Ask, GivenNames, Planned, Planner
from corral.control.progress import ProgressBoard
from corral.control.rule_guard import RuleGuard
from corral.domain import intent as intents
from corral.domain.artefacts import understood_by_all
from corral.domain.backend import Inventory, Verb, Wish
from corral.domain.event import Event, EventKind
from corral.domain.fleet_rule import FleetRule
from corral.domain.intent import Intent, IntentState
from corral.domain.node import NodeStatus, NodeType, SeenNode
from corral.domain.operation import FINAL, Operation, OperationState, Target, status_of
from corral.oci.errors import SourceInvalid
from corral.oci.references import PullSource, default_name, names_an_entry, parse_source
from corral.state.failures import ConstraintViolated
from corral.state.operations import Generations, OperationStore

__all__ = ["Ask", "Operations", "Planned"]

_TRIES: Final = 5
"""Of a transaction that met another one on the same backends."""
FRESH_WITHIN: Final = timedelta(seconds=5)
"""How long an upgrade waits for nodes to say whether they have the backend; of silent ones the last word counts."""
_LOOK_SECONDS: Final = 0.1
_NAME: Final = re.compile(r"[^/\\\x00\s][^/\\\x00]{0,254}")
_LONGEST: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An operation that only has to be stored."""

    operation: Operation
    intents: list[Intent]


class Operations:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        store: OperationStore,
        fleet: Fleet,
        inventory: InventoryKeeper,
        planner: Planner,
        feed: Feed,
        clock: Clock,
        *,
        rules: RuleGuard,
        progress: ProgressBoard,
        broadcasts: Broadcasts,
        dispatcher: Poke,
    ) -> None:
        self._store = store
        self._rules = rules
        self._fleet = fleet
        self._inventory = inventory
        self._planner = planner
        self._feed = feed
        self._clock = clock
        self._progress = progress
        self._broadcasts = broadcasts
        self._dispatcher = dispatcher

    async def start(self, ask: Ask) -> Operation:
        """Accept it, whole or not at all. InvalidInput, NotFound and Conflict say why not.

        What was accepted before under the same key is found first: since then nodes may have changed.
        """
        if (known := await self._store.with_key(ask.idempotency_key)) is not None:
            return known
        prepared = await self.prepare(ask)
        stored = await self._stored(prepared, ask.seen)
        await self.tell([stored] if stored.id == prepared.operation.id else [])
        return stored

    async def prepare(self, ask: Ask, *, rules: Sequence[FleetRule] | None = None) -> Prepared:
        """All of it but storing; `rules` are those that it must not go against, if not the ones in force."""
        id = new_operation_id()
        planned = await self.plan(ask, id, rules=rules)
        if ask.refuses_unknown and all(one.is_unknown for one in planned):
            raise InvalidInput("backend", planned[0].hindrance)
        now = self._clock.now()
        wishes = [replace(_intent(one, id, now), next_try=now + ask.delay) for one in planned]
        operation = Operation(
            id=id,
            verb=ask.verb,
            backend=ask.backend or ask.name,
            artefact=planned[0].wish.artefact,
            asked_by=ask.by,
            accepted_at=now,
            node_id=ask.nodes[0] if len(ask.nodes) == 1 else None,
            idempotency_key=ask.idempotency_key,
            targets=tuple(_target(one, wish, now) for one, wish in zip(planned, wishes, strict=True)),
        )
        return Prepared(operation=operation, intents=wishes)

    async def tell(self, started: Sequence[Operation]) -> None:
        """These are stored."""
        self._dispatcher.ring()
        await self._feed.announce()
        for operation in started:
            await self._broadcasts.accepted(operation)

    async def plan(
        self, ask: Ask, id: OperationId | None = None, *, rules: Sequence[FleetRule] | None = None
    ) -> list[Planned]:
        """What would be done where. At least one node, or an error that says why there is none."""
        ask = checked(ask)
        nodes = await self._meant(ask)
        reports = await self._reports(ask, nodes)
        planned = await self._planner.plan(ask, nodes, reports, id or OperationId("plan"), given=await self._given(ask))
        await self._rules.refuse([(one.node, one.wish) for one in planned], rules)
        if not planned:
            raise Conflict(f'backend "{ask.backend}" is not installed on any node')
        return planned

    async def _given(self, ask: Ask) -> GivenNames:
        if ask.verb is Verb.INSTALL:
            return GivenNames()
        aliased = await self._inventory.aliased(ask.backend)
        return GivenNames(aliased=aliased, installed=await self._inventory.asked_for(ask.backend))

    async def _meant(self, ask: Ask) -> list[SeenNode]:
        """Never pending or agent nodes; absent ones are waited for."""
        if ask.nodes:
            known = await self._fleet.some(ask.nodes)
            return [_usable(node_id, known.get(node_id)) for node_id in dict.fromkeys(ask.nodes)]
        wanted = NodeFilter(types=frozenset({NodeType.BACKEND}), labels=ask.labels)
        found = [one for one in await self._fleet.all(wanted) if one.status is not NodeStatus.PENDING]
        if not found:
            labels = ", ".join(f"{key}={value}" for key, value in ask.labels.items())
            raise Conflict(f"no node has the labels {labels}" if labels else "there is no node to do that on")
        return found

    async def _reports(self, ask: Ask, nodes: Sequence[SeenNode]) -> dict[NodeId, Inventory]:
        """What nodes said last. Only those are upgraded that have the backend, so they are asked anew for that."""
        known = await self._inventory.known([one.node.id for one in nodes])
        if ask.verb is Verb.UPGRADE:
            reached = [one.node.id for one in nodes if one.status is not NodeStatus.OFFLINE]
            known |= await self._inventory.refresh(reached, within=FRESH_WITHIN)
        return known

    async def _stored(self, prepared: Prepared, seen: Generations | None) -> Operation:
        events = [started_event(prepared.operation)]
        for left in reversed(range(_TRIES)):
            try:
                return await self._store.start(prepared.operation, prepared.intents, events=events, seen=seen)
            except ConstraintViolated:
                if not left:
                    raise
        raise AssertionError("unreachable")

    # What is there.

    async def get(self, id: OperationId) -> Operation:
        found = await self._store.get(id)
        if found is None:
            raise NotFound(f"no operation has the id {id}")
        return found

    async def newest(self, *, limit: int, before: tuple[datetime, str] | None = None) -> list[Operation]:
        return await self._store.newest(limit=limit, before=before)

    async def left(self, *, limit: int, before: tuple[datetime, str] | None = None) -> list[Operation]:
        """The newest of which nothing is under way, or that somebody has dismissed."""
        return await self._store.left(limit=limit, before=before)

    async def current(self) -> list[Operation]:
        return await self._store.current()

    async def settled(self, id: OperationId, *, within: timedelta) -> Operation:
        """The operation once nothing of it is under way, or as it is when the time is over."""
        deadline = self._clock.now() + within
        while True:
            operation = await self.get(id)
            if operation.state is not OperationState.RUNNING or self._clock.now() >= deadline:
                return operation
            await self._clock.sleep(_LOOK_SECONDS)

    # What people do to it.

    async def cancel(self, id: OperationId, *, by: str, nodes: Sequence[NodeId] | None = None) -> list[Intent]:
        """Take back what is not reached yet; returns those intents. What was sent, nodes may still finish.

        Conflict when a fleet rule demands it: that would only ask for it again.
        """
        await self._refuse_to_cancel_what_rules_demand(id, nodes)
        changed = await self.take_back(id, by=by, nodes=nodes)
        if nodes is None:
            await self._broadcasts.cancelled(id)
        return changed

    async def take_back(self, id: OperationId, *, by: str, nodes: Sequence[NodeId] | None = None) -> list[Intent]:
        """The same for somebody who was told so by another frontend."""
        now = self._clock.now()

        def taken_back(known: Intent) -> Intent | None:
            return intents.cancel(known, f"cancelled by {by}", now) if intents.may_cancel(known) else None

        event = Event(kind=EventKind.OPERATION_CANCELLED, at=now, actor=by, data={"operation": id})
        changed = await self._store.change(id, nodes, taken_back, events=[event])
        if changed:
            self._progress.changed(id)
            await self._feed.announce()
        return changed

    async def _refuse_to_cancel_what_rules_demand(self, id: OperationId, nodes: Sequence[NodeId] | None) -> None:
        operation = await self._store.get(id)
        if operation is None or operation.verb is not Verb.INSTALL:
            return
        left = [one for one in operation.targets if one.status not in FINAL and (nodes is None or one.node_id in nodes)]
        known = await self._fleet.some([one.node_id for one in left])
        without = [
            (known[one.node_id], Wish(verb=Verb.DELETE, key=one.backend, artefact=operation.artefact))
            for one in left
            if one.node_id in known
        ]
        await self._rules.refuse(without)

    async def retry(self, id: OperationId, *, by: str, nodes: Sequence[NodeId] | None = None) -> list[Intent]:
        """Try again at once what failed or is blocked; returns those intents."""
        now = self._clock.now()

        def again(known: Intent) -> Intent | None:
            return intents.retry(known, now) if intents.may_retry(known) else None

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
        """The same for somebody who was told so by another frontend; only what failed can be meant."""
        known = await self._store.get(id)
        is_failed = known is not None and known.state is OperationState.FAILED
        return is_failed and await self._store.dismiss(id, at=self._clock.now())

    async def clear(self, *, by: str) -> int:
        """Forget those that are over. What failed stays as long as its nodes are to be tried again."""
        event = Event(kind=EventKind.OPERATIONS_CLEARED, at=self._clock.now(), actor=by)
        return await self._store.clear(event=event)


def _usable(node_id: NodeId, seen: SeenNode | None) -> SeenNode:
    if seen is None:
        raise NotFound(f"no node has the id {node_id}")
    if seen.node.type is not NodeType.BACKEND:
        raise Conflict(f"{seen.node.name} is an agent node: it has no backends")
    if seen.status is NodeStatus.PENDING:
        raise Conflict(f"{seen.node.name} waits for approval")
    return seen


def checked(ask: Ask) -> Ask:
    """An install by uri needs a name, since workers look for the backend under one afterwards. Files and archives have
    one themselves, as LocalAI has it; images do not."""
    for name, text in (("backend", ask.backend), ("alias", ask.alias)):
        if len(text) > _LONGEST or not text.isprintable():
            raise InvalidInput(name, f"{text[:100]!r} is too long for a name, or has characters that nobody can read")
    if not ask.uri:
        if not ask.backend:
            raise InvalidInput("backend", "name or uri required")
        if not _is_name(ask.backend.strip().rpartition("@")[2]):
            problem = f"{ask.backend[:100]!r} cannot be the name of a backend; a uri goes into `uri`"
            raise InvalidInput("backend", problem)
        return ask
    if ask.verb is Verb.DELETE:
        raise InvalidInput("uri", "a delete takes a name")
    name = ask.name or ask.backend or default_name(_source(ask.uri))
    if not name:
        raise InvalidInput("name", f"an install of the image {ask.uri[:100]} needs a name for the backend")
    if not _is_name(name):
        raise InvalidInput("name", f"{name[:100]!r} cannot be the name of a backend")
    _source(ask.uri)
    return replace(ask, name=name, backend=name, uri=understood_by_all(ask.uri))


def _is_name(text: str) -> bool:
    """It becomes the name of a directory on every node."""
    return _NAME.fullmatch(text) is not None and not text.startswith(".")


def _source(uri: str) -> PullSource:
    if any(character.isspace() for character in uri):
        raise InvalidInput("uri", f"{uri[:100]!r} has blanks")
    if names_an_entry(uri):
        raise InvalidInput("uri", f"{uri[:100]!r} is none; a backend of a gallery is asked for with `backend`")
    try:
        return parse_source(uri)
    except SourceInvalid as error:
        raise InvalidInput("uri", error.message) from error


def _intent(planned: Planned, id: OperationId, now: datetime) -> Intent:
    fresh = Intent(
        node_id=planned.node.node.id,
        wish=planned.wish,
        operation_id=id,
        accepted_at=now,
        changed_at=now,
        next_try=now,
        waits_for_node=planned.node.status in (NodeStatus.OFFLINE, NodeStatus.UNHEALTHY),
    )
    if not planned.hindrance:
        return fresh
    return replace(fresh, state=IntentState.BLOCKED, message=planned.hindrance, waits_for_node=False)


def _target(planned: Planned, intent: Intent, now: datetime) -> Target:
    return Target(
        operation_id=intent.operation_id,
        node_id=intent.node_id,
        node_name=planned.node.node.name,
        backend=intent.backend,
        status=status_of(intent),
        waits_for_node=intent.waits_for_node,
        message=intent.message,
        changed_at=now,
    )


def started_event(operation: Operation) -> Event:
    return Event(
        kind=EventKind.OPERATION_STARTED,
        at=operation.accepted_at,
        actor=operation.asked_by,
        node_id=operation.node_id,
        data={
            "operation": operation.id,
            "verb": operation.verb.value,
            "backend": operation.backend,
            "targets": len(operation.targets),
        },
    )
