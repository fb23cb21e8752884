"""Administrative acts: who is meant, what fits, one transaction, and a poke. The dispatcher does the rest."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.ids import NodeId, OperationId, new_operation_id
from corral.base.tasks import Poke
from corral.control.feed import Feed
from corral.control.fleet import Fleet, NodeFilter, SeenNode
from corral.control.inventory import InventoryKeeper
from corral.domain import intent as intents
from corral.domain.backend import Artefact, Inventory, Verb, Wish
from corral.domain.backend_catalogue import BackendCatalogue, Found
from corral.domain.event import Event, EventKind
from corral.domain.fit import Blocked, Hindrance, judge, traits_of
from corral.domain.intent import Intent, IntentState
from corral.domain.node import NodeStatus, NodeType
from corral.domain.operation import Operation, OperationState, Target, status_of
from corral.images.errors import SourceInvalid
from corral.images.references import Source, default_name, names_an_entry, parse_source
from corral.state.failures import ConstraintViolated
from corral.state.operations import Operations as OperationStore

_TRIES: Final = 5
"""Of a transaction that met another one on the same backends."""
FRESH_WITHIN: Final = timedelta(seconds=5)
"""How long an upgrade waits for nodes to say whether they have the backend; of silent ones the last word counts."""
_LOOK_SECONDS: Final = 0.1
_NAME: Final = re.compile(r"[^/\\\x00\s][^/\\\x00]{0,254}")
_LONGEST: Final = 255


class CatalogueSource(Protocol):
    """Where backends are looked up."""

    async def catalogue(self) -> BackendCatalogue | None:
        """None when the galleries cannot be read from here: then only the nodes can tell."""


class NoCatalogue:
    """A frontend that cannot look anything up."""

    async def catalogue(self) -> BackendCatalogue | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a person wants."""

    verb: Verb
    backend: str = ""
    uri: str = ""
    name: str = ""
    alias: str = ""
    galleries: str = ""
    force: bool = False
    nodes: tuple[NodeId, ...] = ()
    """Exactly these; none mean all that match the labels."""
    labels: Mapping[str, str] = field(default_factory=dict)
    by: str
    idempotency_key: str = ""
    delay: timedelta = timedelta(0)
    """Somebody else is about to do it; looked at when that should be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What an operation would do at one node."""

    node: SeenNode
    wish: Wish
    hindrance: str = ""
    """Why nothing will be sent; empty when something may be."""


class Operations:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        store: OperationStore,
        fleet: Fleet,
        inventory: InventoryKeeper,
        galleries: CatalogueSource,
        feed: Feed,
        clock: Clock,
        *,
        dispatcher: Poke,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._inventory = inventory
        self._galleries = galleries
        self._feed = feed
        self._clock = clock
        self._dispatcher = dispatcher

    async def start(self, ask: Ask) -> Operation:
        """Accept it, whole or not at all. InvalidInput, NotFound and Conflict say why not.

        What was accepted before under the same key is found first: since then nodes may have changed.
        """
        if (known := await self._store.with_key(ask.idempotency_key)) is not None:
            return known
        id = new_operation_id()
        planned = await self.plan(ask, id)
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
        stored = await self._stored(operation, wishes)
        self._dispatcher.ring()
        await self._feed.announce()
        return stored

    async def plan(self, ask: Ask, id: OperationId | None = None) -> list[Planned]:
        """What would be done where. At least one node, or an error that says why there is none."""
        ask = _checked(ask)
        nodes = await self._meant(ask)
        catalogue = None if ask.uri else await self._galleries.catalogue()
        planned = [_planned(ask, one, catalogue, id or OperationId("plan")) for one in nodes]
        if ask.verb is Verb.UPGRADE:
            planned = await self._installed(planned)
        if not planned:
            raise Conflict(f'backend "{ask.backend}" is not installed on any node')
        return planned

    async def _meant(self, ask: Ask) -> list[SeenNode]:
        """Never pending or agent nodes; absent ones are waited for."""
        if ask.nodes:
            return [await self._named(node_id) for node_id in dict.fromkeys(ask.nodes)]
        wanted = NodeFilter(types=frozenset({NodeType.BACKEND}), labels=ask.labels)
        found = [one for one in await self._fleet.all(wanted) if one.status is not NodeStatus.PENDING]
        if not found:
            labels = ", ".join(f"{key}={value}" for key, value in ask.labels.items())
            raise Conflict(f"no node has the labels {labels}" if labels else "there is no node to do that on")
        return found

    async def _named(self, node_id: NodeId) -> SeenNode:
        seen = await self._fleet.get(node_id)
        if seen.node.type is not NodeType.BACKEND:
            raise Conflict(f"{seen.node.name} is an agent node: it has no backends")
        if seen.status is NodeStatus.PENDING:
            raise Conflict(f"{seen.node.name} waits for approval")
        return seen

    async def _installed(self, planned: Sequence[Planned]) -> list[Planned]:
        """Those nodes that have it, by their own words of just now, or else by their last."""
        reached = [one.node.node.id for one in planned if one.node.status is not NodeStatus.OFFLINE]
        ids = [one.node.node.id for one in planned]
        known: dict[NodeId, Inventory] = await self._inventory.known(ids)
        known |= await self._inventory.refresh(reached, within=FRESH_WITHIN)
        return [
            one
            for one in planned
            if one.node.node.id in known and known[one.node.node.id].find(one.wish.key) is not None
        ]

    async def _stored(self, operation: Operation, wishes: Sequence[Intent]) -> Operation:
        for left in reversed(range(_TRIES)):
            try:
                return await self._store.start(operation, wishes, events=[_started(operation)])
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
        """Take back what is not reached yet; returns those intents. What was sent, nodes may still finish."""
        now = self._clock.now()

        def taken_back(known: Intent) -> Intent | None:
            return intents.cancel(known, f"cancelled by {by}", now) if intents.may_cancel(known) else None

        event = Event(kind=EventKind.OPERATION_CANCELLED, at=now, actor=by, data={"operation": id})
        changed = await self._store.change(id, nodes, taken_back, events=[event])
        await self._feed.announce()
        return changed

    async def retry(self, id: OperationId, *, by: str, nodes: Sequence[NodeId] | None = None) -> list[Intent]:
        """Try again at once what failed or is blocked; returns those intents."""
        now = self._clock.now()

        def again(known: Intent) -> Intent | None:
            return intents.retry(known, now) if intents.may_retry(known) else None

        event = Event(kind=EventKind.OPERATION_RETRIED, at=now, actor=by, data={"operation": id})
        changed = await self._store.change(id, nodes, again, events=[event])
        self._dispatcher.ring()
        await self._feed.announce()
        return changed

    async def dismiss(self, id: OperationId) -> bool:
        return await self._store.dismiss(id, at=self._clock.now())

    async def clear(self, *, by: str) -> int:
        """Forget those that are over. What failed stays as long as its nodes are to be tried again."""
        event = Event(kind=EventKind.OPERATIONS_CLEARED, at=self._clock.now(), actor=by)
        return await self._store.clear(event=event)


def _checked(ask: Ask) -> Ask:
    """An install by uri needs a name, since workers look for the backend under one afterwards. Files and archives have
    one themselves, as LocalAI has it; images do not."""
    for name, text in (("backend", ask.backend), ("alias", ask.alias)):
        if len(text) > _LONGEST or not text.isprintable():
            raise InvalidInput(name, f"{text[:100]!r} is too long for a name, or has characters that nobody can read")
    if not ask.uri:
        if not ask.backend:
            raise InvalidInput("backend", "name or uri required")
        return ask
    if ask.verb is Verb.DELETE:
        raise InvalidInput("uri", "a delete takes a name")
    name = ask.name or ask.backend or default_name(_source(ask.uri))
    if not name:
        raise InvalidInput("name", f"an install of the image {ask.uri[:100]} needs a name for the backend")
    if _NAME.fullmatch(name) is None or name.startswith("."):
        raise InvalidInput("name", f"{name[:100]!r} cannot be the name of a backend")
    _source(ask.uri)
    return replace(ask, name=name, backend=name)


def _source(uri: str) -> Source:
    if any(character.isspace() for character in uri):
        raise InvalidInput("uri", f"{uri[:100]!r} has blanks")
    if names_an_entry(uri):
        raise InvalidInput("uri", f"{uri[:100]!r} is none; a backend of a gallery is asked for with `backend`")
    try:
        return parse_source(uri)
    except SourceInvalid as error:
        raise InvalidInput("uri", error.message) from error


def _planned(ask: Ask, seen: SeenNode, catalogue: BackendCatalogue | None, id: OperationId) -> Planned:
    key, sent, hindrance = _resolved(ask, seen, catalogue)
    artefact = Artefact(
        backend=sent,
        galleries=ask.galleries,
        uri=ask.uri,
        name=ask.name,
        alias=ask.alias,
        renewal=id if ask.force and ask.verb is Verb.INSTALL else "",
    )
    return Planned(node=seen, wish=Wish(verb=ask.verb, key=key, artefact=artefact), hindrance=hindrance)


def _resolved(ask: Ask, seen: SeenNode, catalogue: BackendCatalogue | None) -> tuple[str, str, str]:
    """The canonical name, the name that is sent, and what stands in the way."""
    bare = ask.backend.strip().rpartition("@")[2]
    if catalogue is None:
        return bare, bare, ""
    traits = traits_of(seen.node)
    found = catalogue.resolve(ask.backend, traits.effective_capability)
    if isinstance(found, Found):
        return found.key, found.entry.name, ""
    verdict = judge(ask.backend, catalogue, traits, None)
    blocks = ask.verb is Verb.INSTALL and isinstance(verdict, Blocked)
    is_unknown = isinstance(verdict, Blocked) and verdict.hindrance is Hindrance.NO_SUCH_BACKEND
    # A gallery of the request's own, or one that could not be read, may have what ours do not.
    doubtful = is_unknown and (bool(ask.galleries) or any(not one.entries for one in catalogue.galleries))
    return bare, bare, verdict.reason if blocks and not doubtful and isinstance(verdict, Blocked) else ""


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


def _started(operation: Operation) -> Event:
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
