"""The registry against a model of it: hypothesis invents the story, two frontends live it, the model judges.

Services on a real SQLite file, no processes and no sockets, so thousands of steps take seconds. An act is done by one
frontend; or by two at once, one of which has already read when the other overtakes it. Then the outcome must be that of
one order or of the other.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from corral.admin.context import AdminContext
from corral.base.errors import Conflict, NotFound
from corral.base.ids import Incarnation, NodeId, new_incarnation
from corral.domain.event import EventKind
from corral.domain.node import BY_WORKER, Heartbeat, LivenessPolicy, Node, NodeStatus, Peer
from corral.domain.registration import Registration
from corral.protocol.keys import hash_secret
from corral.state.db import Database
from corral.state.nodes import Nodes
from corral.state.secrets_key import SecretsKey
from corral.testing.bus import MemoryBus, MemoryServer
from corral.testing.clock import ManualClock
from corral.testing.databases import DatabaseSource
from corral.testing.frontend import Frontend, frontend_config, open_frontend
from corral.testing.gates import Gates, gated

INTERVAL: Final = timedelta(seconds=10)
POLICY: Final = LivenessPolicy(tolerated_deafness=timedelta(minutes=1))
"""So that time may pass in long steps without control counting as deaf."""
PERSON: Final = "admin"
_NOBODY: Final = NodeId("nobody")

Identity = str
"""What a node is known by: its secret, or `name:` and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A node as the model has it."""

    name: str
    approved: bool = False
    draining_by: str = ""
    deregistered: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


State = Mapping[Identity, Known]


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody does. `subject` is the identity of the node that it is done to."""

    verb: str
    subject: Identity
    detail: str = ""

    def after(self, state: State) -> State:
        """What becomes of the fleet; unchanged when the act is refused or means nothing."""
        if self.verb == "register":
            return {**state, self.subject: self._registered(state)}
        known = state.get(self.subject)
        if known is None:
            return state
        if self.verb == "remove":
            return {identity: node for identity, node in state.items() if identity != self.subject}
        return {**state, self.subject: self._changed(known)}

    def _registered(self, state: State) -> Known:
        known = state.get(self.subject)
        trusted = self.verb == "register" and self.detail.endswith("+")
        name = self.detail.rstrip("+")
        if known is None:
            has_namesake = any(node.name == name and not _is_nameless(other) for other, node in state.items())
            is_stranger = _is_nameless(self.subject) and has_namesake
            return Known(name=name, approved=trusted and not is_stranger)
        own_drain = known.draining_by == BY_WORKER
        return replace(
            known,
            name=name,
            approved=known.approved or trusted,
            draining_by="" if own_drain else known.draining_by,
            deregistered=False,
        )

    def _changed(self, known: Known) -> Known:
        match self.verb:
            case "approve":
                return replace(known, approved=True)
            case "drain":
                kept = known.draining_by if self.detail == BY_WORKER else PERSON
                return replace(known, draining_by=kept or self.detail)
            case "resume":
                ends = self.detail == PERSON or known.draining_by == BY_WORKER
                return replace(known, draining_by="" if ends else known.draining_by)
            case "deregister":
                own_drain = known.draining_by == BY_WORKER
                return replace(known, deregistered=True, draining_by="" if own_drain else known.draining_by)
            case "label":
                return replace(known, labels={**known.labels, "rack": self.detail})
            case _:
                return known


def _is_nameless(identity: Identity) -> bool:
    """Whether the node has no secret, so that its name is all it is known by."""
    return identity.startswith("name:")


names = st.sampled_from(["n1", "n2"])
secrets = st.sampled_from(["a" * 32, "b" * 32])
people_and_workers = st.sampled_from([PERSON, BY_WORKER])


@st.composite
def registrations(draw: st.DrawFn) -> Act:
    name = draw(names)
    identity = draw(st.one_of(secrets, st.just(f"name:{name}")))
    return Act("register", identity, name + ("+" if draw(st.integers(0, 5)) == 0 else ""))


@st.composite
def changes(draw: st.DrawFn) -> Act:
    identity = draw(st.one_of(secrets, names.map("name:{}".format)))
    verb = draw(st.sampled_from(["approve", "drain", "resume", "deregister", "label", "remove", "beat"]))
    detail = {"drain": people_and_workers, "resume": people_and_workers, "label": st.sampled_from("xyz")}
    return Act(verb, identity, draw(detail.get(verb, st.just(""))))


acts = st.one_of(registrations(), changes())


class _Anyone:
    """A claim that always fits: who may speak for a node is tested elsewhere."""

    async def fits(self, node: Node) -> bool:
        return True

    async def may_ask(self) -> bool:
        return True


class RegistryMachine(RuleBasedStateMachine):
    """One story. `source` is set by whoever runs it."""

    source: ClassVar[DatabaseSource]

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.state: State = {}
        self.ids: dict[Identity, NodeId] = {}
        self.removed: set[NodeId] = set()
        self.recorded_removals: set[NodeId | None] = set()
        self.told: dict[NodeId | None, object] = {}
        self.last_event = 0
        self._runner.run(self._open())

    async def _open(self) -> None:
        stack = self._stack
        database = await stack.enter_async_context(self.source.fresh_database("sqlite"))
        self.clock = ManualClock()
        self.gates = Gates()
        self.nodes = Nodes(database)
        bus = await stack.enter_async_context(MemoryBus(MemoryServer()))
        key = SecretsKey.generate()
        opened = [
            await stack.enter_async_context(_frontend(held, self.clock, bus, key))
            for held in (database, gated(database, self.gates, "begin"))
        ]
        self.quick, self.slow = opened

    def teardown(self) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    @rule(act=acts, through_slow=st.booleans())
    def alone(self, act: Act, through_slow: bool) -> None:
        """One frontend does something."""
        self._runner.run(self._do(act, self.slow if through_slow else self.quick))
        self._runner.run(self._expect(act.after(self.state)))

    @rule(slow=acts, quick=acts)
    def overtaken(self, slow: Act, quick: Act) -> None:
        """One frontend has read and decided; before it writes, another one does something."""
        self._runner.run(self._race(slow, quick))
        self._runner.run(self._expect(quick.after(slow.after(self.state)), slow.after(quick.after(self.state))))

    @rule(seconds=st.sampled_from([3, 15, 33]))
    def silence(self, seconds: int) -> None:
        """Time passes, and nobody says anything."""
        self._runner.run(self._pass_time(timedelta(seconds=seconds)))

    @invariant()
    def everybody_agrees(self) -> None:
        self._runner.run(self._check())

    async def _race(self, slow: Act, quick: Act) -> None:
        async with asyncio.TaskGroup() as group, self.gates.held_inside("begin") as held:
            task = group.create_task(self._do(slow, self.slow))
            inside = group.create_task(held.until_inside())
            await asyncio.wait({task, inside}, return_when=asyncio.FIRST_COMPLETED)
            inside.cancel()  # an act that writes nothing never comes to the gate
            await self._do(quick, self.quick)

    async def _pass_time(self, duration: timedelta) -> None:
        await self.clock.advance(duration)
        for frontend in (self.quick, self.slow):
            await frontend.control.context.hearing.tick()

    async def _do(self, act: Act, frontend: Frontend) -> None:
        """Do it; that it was refused shows in what became of the fleet."""
        context = frontend.control.context
        try:
            if act.verb == "register":
                await self._register(act, context)
            else:
                await self._change(act, self.ids.get(act.subject, _NOBODY), context)
        except (NotFound, Conflict):
            return

    async def _register(self, act: Act, context: AdminContext) -> None:
        secret = None if _is_nameless(act.subject) else act.subject
        registration = Registration(
            name=act.detail.rstrip("+"),
            address="10.0.0.1:50051",
            peer=Peer(version="1") if secret else None,
            secret_hash=hash_secret(secret) if secret else None,
            incarnation=new_incarnation() if secret else Incarnation(""),
            interval=INTERVAL,
        )
        trusted_by = "corral up" if act.detail.endswith("+") else None
        await context.registry.register(registration, secret=secret, trusted_by=trusted_by)

    async def _change(self, act: Act, node_id: NodeId, context: AdminContext) -> None:
        registry = context.registry
        match act.verb:
            case "approve":
                await registry.approve(node_id, by=PERSON)
            case "drain":
                await registry.drain(node_id, by=act.detail)
            case "resume":
                await registry.resume(node_id, by=act.detail)
            case "deregister":
                await registry.deregister(node_id)
            case "label":
                await registry.merge_labels(node_id, {"rack": act.detail}, by=PERSON)
            case "remove":
                await registry.remove(node_id, by=PERSON)
            case "beat":
                await context.heartbeats.beat(node_id, _Anyone(), Heartbeat(at=self.clock.now()))

    async def _expect(self, *allowed: State) -> None:
        """The stored fleet is one of these, and whoever stayed kept its id."""
        stored = await self.nodes.all()
        actual = {_identity(node): _known(node) for node in stored}
        assert len(actual) == len(stored), f"two nodes are known by the same: {stored}"
        assert actual in allowed, f"{actual} is none of {allowed}"
        ids = {_identity(node): node.id for node in stored}
        self.removed |= {id for identity, id in self.ids.items() if ids.get(identity) != id}
        assert self.removed.isdisjoint(ids.values())
        self.state, self.ids = actual, ids

    async def _check(self) -> None:
        await self.quick.settle()
        await self._check_statuses()
        await self._check_record()

    async def _check_statuses(self) -> None:
        """What the frontends say is what the model says, and everyone was told."""
        stored = {node.id: node for node in await self.nodes.all()}
        for frontend in (self.quick, self.slow):
            for seen in await frontend.control.context.fleet.all():
                expected = self._status(stored[seen.node.id])
                assert seen.status is expected, f"{seen.node.name}: {seen.status}, expected {expected}"
                assert stored[seen.node.id].announced is expected, f"{expected} was not announced"

    def _status(self, node: Node) -> NodeStatus:
        """In our own words, not the domain's."""
        known = self.state[_identity(node)]
        quiet = self.clock.now() - node.facts.last_heartbeat
        if not known.approved:
            return NodeStatus.PENDING
        if known.deregistered or quiet >= POLICY.offline_after * INTERVAL:
            return NodeStatus.OFFLINE
        if quiet >= POLICY.unhealthy_after * INTERVAL:
            return NodeStatus.UNHEALTHY
        return NodeStatus.DRAINING if known.draining_by else NodeStatus.HEALTHY

    async def _check_record(self) -> None:
        """No gap, no announcement that contradicts the last one, no id that went without being removed."""
        for stored in await self.quick.control.context.events.after(self.last_event, limit=100_000):
            self.last_event += 1
            assert stored.sequence == self.last_event
            event = stored.event
            if event.kind is EventKind.NODE_STATUS:
                assert event.data["before"] == self.told.get(event.node_id)
                self.told[event.node_id] = event.data["after"]
            elif event.kind is EventKind.NODE_REMOVED:
                self.recorded_removals.add(event.node_id)
        assert self.removed == self.recorded_removals, "an id changed though nobody removed the node"


@asynccontextmanager
async def _frontend(database: Database, clock: ManualClock, bus: MemoryBus, key: SecretsKey) -> AsyncIterator[Frontend]:
    config = frontend_config(Path("unused"), liveness=POLICY)
    async with open_frontend(database, clock, bus, config, key=key) as frontend:
        yield frontend


def _identity(node: Node) -> Identity:
    by_hash = {hash_secret(secret): secret for secret in ("a" * 32, "b" * 32)}
    return f"name:{node.name}" if node.secret_hash is None else by_hash[node.secret_hash]


def _known(node: Node) -> Known:
    facts = node.facts
    return Known(
        name=node.name,
        approved=facts.approved_at is not None,
        draining_by=facts.draining_by,
        deregistered=facts.deregistered_at is not None,
        labels=dict(node.labels.admin),
    )
