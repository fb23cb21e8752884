"""The registry against a model of it: hypothesis invents the story, two frontends live it, the model judges.

Services on a real SQLite file, no processes and no sockets, so thousands of steps take seconds. An act is done by one
frontend; or by two at once, one of which has already read when the other overtakes it. Then the outcome must be that of
one order or of the other.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from corral.base.errors import Conflict, NotFound
from corral.base.ids import Incarnation, NodeId, new_incarnation
from corral.frontend.api.route import AdminContext
from corral.frontend.nodes.decide.liveness import Heartbeat, LivenessPolicy
from corral.frontend.nodes.decide.node import BY_WORKER, Node, NodeStatus, Peer
from corral.frontend.nodes.decide.registration import Registration
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import EventKind
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from corral.wire.keys import hash_secret
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.databases import DatabaseSource
from tests.kit.frontend import Frontend, frontend_config, open_frontend
from tests.kit.gates import Gates, gated

INTERVAL: Final = timedelta(seconds=10)
POLICY: Final = LivenessPolicy(tolerated_deafness=timedelta(minutes=1))
"""So that time may pass in long steps without control counting as deaf."""
PERSON: Final = "admin"
_NOBODY: Final = NodeId("nobody")
_SHARED_TOKEN: Final = "the token of nodes without a secret"

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
    """One action. `subject` is the identity of the node that it concerns."""

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
        trusted = self.detail.endswith("+")
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
            case "deregister" if not known.deregistered:
                own_drain = known.draining_by == BY_WORKER
                return replace(known, deregistered=True, draining_by="" if own_drain else known.draining_by)
            case "label":
                return replace(known, labels={**known.labels, "rack": self.detail})
            case _:
                return known


def _is_nameless(identity: Identity) -> bool:
    """Whether the node has no secret, so that its name is all it is known by."""
    return identity.startswith("name:")


SECRETS: Final = ("a" * 32, "b" * 32)
NAMES: Final = ("n1", "n2")
VERBS: Final = ("approve", "drain", "resume", "deregister", "label", "remove", "beat")


@dataclass(frozen=True, slots=True)
class Plan:
    """An act before it is known whom it concerns."""

    verb: str
    whom: int
    detail: str = ""

    def aim(self, state: State) -> Act:
        """Choose a subject, mostly an existing one: actions on unknown nodes are quickly covered."""
        anybody = [*SECRETS, *(f"name:{name}" for name in NAMES)]
        if self.verb == "register":
            subject = anybody[self.whom % len(anybody)]
            name = subject.removeprefix("name:") if _is_nameless(subject) else NAMES[self.whom % len(NAMES)]
            return Act("register", subject, name + self.detail)
        there = sorted(state) if state and self.whom % 5 else anybody
        return Act(self.verb, there[self.whom % len(there)], self.detail)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    verb = draw(st.sampled_from(["register", "register", *VERBS]))
    by = st.sampled_from([PERSON, BY_WORKER])
    details = {
        "register": st.sampled_from(["", "", "", "+"]),
        "drain": by,
        "resume": by,
        "label": st.sampled_from("xyz"),
    }
    return Plan(verb, draw(st.integers(0, 19)), draw(details.get(verb, st.just(""))))


class _Anyone:
    """A claim that always fits: who may speak for a node is tested elsewhere."""

    async def fits(self, secret_hash: str | None) -> bool:
        return True

    async def may_ask(self) -> bool:
        return True


class RegistryMachine(RuleBasedStateMachine):
    """One run of the model. The caller sets `source`."""

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

    @rule(plan=plans(), through_slow=st.booleans())
    def alone(self, plan: Plan, through_slow: bool) -> None:
        """One frontend does something."""
        act = plan.aim(self.state)
        self._runner.run(self._do(act, self.slow if through_slow else self.quick))
        self._runner.run(self._judge(act.after(self.state)))

    @rule(slow_plan=plans(), quick_plan=plans())
    def overtaken(self, slow_plan: Plan, quick_plan: Plan) -> None:
        """One frontend has read and decided; before it writes, another one does something."""
        slow, quick = slow_plan.aim(self.state), quick_plan.aim(self.state)
        self._runner.run(self._hold(self._do(slow, self.slow), self._do(quick, self.quick)))
        self._runner.run(self._judge(quick.after(slow.after(self.state)), slow.after(quick.after(self.state))))

    @rule(first_plan=plans(), then_plan=plans())
    def announcement_overtaken(self, first_plan: Plan, then_plan: Plan) -> None:
        """One frontend is about to announce what changed; before it writes, something changes again."""
        first = first_plan.aim(self.state)
        then = then_plan.aim(first.after(self.state))
        self._runner.run(self._do(first, self.quick))
        self._note_ids(self._runner.run(self.nodes.all()))
        self._runner.run(self._hold(self.slow.control.context.nodes.health.sweep(), self._do(then, self.quick)))
        self._runner.run(self._judge(then.after(first.after(self.state))))

    @rule(seconds=st.sampled_from([3, 15, 33]))
    def silence(self, seconds: int) -> None:
        """Let time pass without any heartbeat."""
        self._runner.run(self._pass_time(timedelta(seconds=seconds)))
        self._runner.run(self._judge(self.state))

    async def _hold(self, slow: Coroutine[None, None, object], quick: Coroutine[None, None, None]) -> None:
        """Let the slow one come to its first write, then the quick one do all it does, then the slow one go on."""
        async with asyncio.TaskGroup() as group, self.gates.held_inside("begin") as held:
            task = group.create_task(slow)
            inside = group.create_task(held.until_inside())
            await asyncio.wait({task, inside}, return_when=asyncio.FIRST_COMPLETED)
            inside.cancel()  # a caller that writes nothing never reaches the gate
            await quick

    async def _pass_time(self, duration: timedelta) -> None:
        await self.clock.advance(duration)
        for frontend in (self.quick, self.slow):
            await frontend.control.context.nodes.hearing.tick()

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
        accepted = secret or _SHARED_TOKEN
        await context.nodes.admission.register(registration, secret=accepted, trusted_by=trusted_by)

    async def _change(self, act: Act, node_id: NodeId, context: AdminContext) -> None:
        registry = context.nodes.registry
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
                heartbeat = Heartbeat(at=self.clock.now())
                await context.nodes.heartbeats.beat(node_id, _Anyone(), lambda: heartbeat)

    async def _judge(self, *allowed: State) -> None:
        """Check that the stored fleet is one of the expected ones, that it was announced, and that the record is
        consistent."""
        await self.quick.settle()
        stored = await self.nodes.all()
        self._check_fleet(stored, allowed)
        self._check_statuses(stored)
        await self._check_record()

    def _check_fleet(self, stored: Sequence[Node], allowed: Sequence[State]) -> None:
        actual = {_identity(node): _known(node) for node in stored}
        assert len(actual) == len(stored), f"two nodes are known by the same: {stored}"
        assert actual in allowed, f"{actual} is none of {allowed}"
        self._note_ids(stored)
        self.state = actual

    def _note_ids(self, stored: Sequence[Node]) -> None:
        ids = {_identity(node): node.id for node in stored}
        self.removed |= {id for identity, id in self.ids.items() if ids.get(identity) != id}
        assert self.removed.isdisjoint(ids.values())
        self.ids = ids

    def _check_statuses(self, stored: Sequence[Node]) -> None:
        for node in stored:
            expected = self._status(node)
            assert node.announced is expected, f"{expected} of {node.name} was not announced"
            for frontend in (self.quick, self.slow):
                seen = frontend.control.context.nodes.fleet.see(node).status
                assert seen is expected, f"{node.name} is seen as {seen}, expected {expected}"

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
        for stored in await self.quick.control.context.record.events.after(self.last_event, limit=100_000):
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
    by_hash = {hash_secret(secret): secret for secret in SECRETS}
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
