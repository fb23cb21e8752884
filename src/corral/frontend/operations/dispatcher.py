"""Sends due intents to their nodes, a bounded number at once, and records what came of them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId, new_lease_token
from corral.base.logs import log_context
from corral.base.queues import Batches, Lane
from corral.base.tasks import Poke, poke_or_period
from corral.frontend.nodes.client import NodeBusy, NodeRefused
from corral.frontend.nodes.contacts import NodeContacts, NodeUnreachable
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.operations.decide import intent_steps
from corral.frontend.operations.decide.intent import (
    Intent,
    IntentKey,
    IntentKind,
    IntentPolicy,
    IntentState,
    Report,
    Sighting,
    Verb,
)
from corral.frontend.operations.decide.intent_steps import Rest, Send
from corral.frontend.operations.decide.reasons import Reason, sentence
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.store.intents import IntentChange, Intents
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.store import Events


class WorkerRestarted(CorralError):
    """The worker was restarted meanwhile."""

    code = "worker_restarted"
    retryable = True


class NodeWentAway(CorralError):
    """The node went offline meanwhile."""

    code = "node_went_away"
    retryable = True


@dataclass(slots=True)
class _OpenRequest:
    life: str
    """The incarnation of the worker that got the request; empty when nobody knows it."""
    patience: asyncio.Timeout
    why_not: type[CorralError] = WorkerRestarted
    """Why nobody waits any longer, when that is so."""


class OpenRequests:
    """Requests whose answers are waited for, until the worker that got them is restarted or goes offline."""

    def __init__(self) -> None:
        self._open: dict[IntentKey, _OpenRequest] = {}

    @property
    def nodes(self) -> set[NodeId]:
        return {node_id for node_id, _, _ in self._open}

    @asynccontextmanager
    async def waiting(self, intent: Intent) -> AsyncIterator[None]:
        """While inside, the answer to what the intent sent is waited for. WorkerRestarted when it cannot come,
        NodeWentAway when it may come late or never."""
        life = "" if intent.outstanding is None else intent.outstanding.life
        request = None
        try:
            async with asyncio.timeout(None) as patience:
                request = self._open[intent.key] = _OpenRequest(life, patience)
                yield
        except TimeoutError:
            raise (WorkerRestarted if request is None else request.why_not)(node_id=intent.node_id) from None
        finally:
            self._open.pop(intent.key, None)

    def give_up(self, node_id: NodeId, *, life: str) -> None:
        """What earlier lives of this node were asked for is not waited for any longer."""
        for request in self._of(node_id):
            if request.life and request.life != life:
                request.patience.reschedule(asyncio.get_running_loop().time())

    def give_up_offline(self, node_id: NodeId) -> None:
        """Nothing that this node was asked for is waited for any longer."""
        for request in self._of(node_id):
            request.why_not = NodeWentAway
            request.patience.reschedule(asyncio.get_running_loop().time())

    def _of(self, node_id: NodeId) -> list[_OpenRequest]:
        """The open requests to this node that nobody has given up yet."""
        requests = [request for (requests, _, _), request in self._open.items() if requests == node_id]
        return [request for request in requests if not request.patience.expired()]


log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=5)
"""Without a ring, and with nothing due before: how long what a dying frontend just stored waits for another one."""
_BUSY_PERIOD: Final = timedelta(seconds=1)
"""While requests are open: what became of them may be due soon."""
_NOT_BEFORE: Final = timedelta(milliseconds=50)
RETURNS_PERIOD: Final = timedelta(seconds=30)
"""Without a ring of the feed, which also looks for events whose ring was lost."""
REACHED: Final = frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING})
"""Nodes that are sent something. A drained one too: maintenance is when backends are upgraded."""
_BATCH: Final = 250
_MOST_WORKED_ON: Final = 10_000
_SLOTS: Final = 1024
_LONG: Final = timedelta(seconds=2)
_EVENTS: Final = 1000


class HopelessRefusal(NodeRefused):
    """What was asked for cannot be done, however often it is tried."""


class StorePlaces(Protocol):
    """Where intents belong that are not about nodes."""

    @property
    def elsewhere(self) -> Collection[NodeId]:
        """The stores that running frontends have and this one has not: they work on them."""

    def is_here(self, store: NodeId) -> bool:
        """Whether this frontend has the store."""


class KindActions(Protocol):
    """What the dispatcher needs of the room that owns a kind. `look` and `send` fail as calls to nodes do."""

    async def look(self, intent: Intent) -> Sighting:
        """Find out what the node has of the subject, and what that says about the intent."""

    async def hold(self, intent: Intent, node: Node, *, replaces: bool) -> Reason | None:
        """Why the request may not be sent yet; None when it may. Not asked about stores."""

    async def send(self, intent: Intent, *, replaces: bool) -> Sequence[str]:
        """Send the request. Returns when the node has answered that it is done, with the processes that it ended for
        it; NodeRefused has its error."""

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        """The node has answered, and ended these processes. Must not fail."""


class DispatchStores(msgspec.Struct, frozen=True, kw_only=True):
    intents: Intents
    nodes: NodeContacts
    events: Events


class Dispatcher:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        stores: DispatchStores,
        progress: ProgressBoard,
        fleet: Fleet,
        clock: Clock,
        policy: IntentPolicy,
        *,
        stores_there: StorePlaces,
        poke: Poke,
    ) -> None:
        """`poke` is rung when an intent becomes due before its time."""
        self._stores = stores
        self._places = stores_there
        self._progress = progress
        self._kinds: dict[IntentKind, KindActions] = {}
        self._fleet = fleet
        self._clock = clock
        self._policy = policy
        self._token = new_lease_token()
        self._looks = Lane(_SLOTS, patience=_LONG)
        self._sends = {verb: Lane(_SLOTS, patience=_LONG) for verb in Verb}
        self._working: set[IntentKey] = set()
        self._changes = Batches(self._store, under_way=lambda: len(self._working))
        self._requests = OpenRequests()
        self._heard_of: int | None = None
        self.poke = poke

    def handle(self, kind: IntentKind, actions: KindActions) -> None:
        """Have intents of this kind worked on by `actions`. Called once for each kind, before anything runs."""
        self._kinds[kind] = actions

    @property
    def slow(self) -> Mapping[Verb, int]:
        """Requests that have been open for long."""
        return {verb: lane.slow for verb, lane in self._sends.items()}

    async def run(self) -> None:
        """Until cancelled: then open requests are left to others. `renew` and `notice_returns` run beside it."""
        async with asyncio.TaskGroup() as group:

            async def step() -> timedelta | None:
                if not self._working:
                    now = self._clock.now()
                    waiting = await self._stores.intents.waiting(
                        now=now, until=now + self._policy.lease, elsewhere=self._places.elsewhere
                    )
                    if not waiting.is_due:
                        return None if waiting.next is None else max(waiting.next - now, _NOT_BEFORE)
                await self._work_on_all(group)
                return _BUSY_PERIOD

            await poke_or_period(step, poke=self.poke, clock=self._clock, period=PERIOD, name="dispatcher")

    async def tick(self) -> None:
        """Work on all that is due, to its end."""
        async with asyncio.TaskGroup() as group:
            await self._work_on_all(group)

    async def _work_on_all(self, group: asyncio.TaskGroup) -> None:
        while batch := await self.claim():
            for held, node in batch:
                group.create_task(self.work(held, node), name=f"{held.verb} {held.subject}")

    async def claim(self) -> list[tuple[Intent, Node | None]]:
        """Take what is due and nobody works on. None is a store, or a node that was removed a moment ago."""
        room = min(_BATCH, _MOST_WORKED_ON - len(self._working))
        if room <= 0:
            return []
        now = self._clock.now()
        claimed = await self._stores.intents.claim(
            self._token, now=now, until=now + self._policy.lease, limit=room, elsewhere=self._places.elsewhere
        )
        new = [intent for intent in claimed if intent.key not in self._working]
        nodes = await self._stores.nodes.load({intent.node_id for intent in new}) if new else {}
        self._working.update(intent.key for intent in new)
        return [(intent, nodes.get(intent.node_id)) for intent in new]

    async def work(self, intent: Intent, node: Node | None) -> None:
        """Work on one intent until its result is stored. If that fails, it is claimed again after its lease."""
        ids = {"node": intent.node_id, intent.kind.value: intent.subject, "operation": intent.operation_id}
        with log_context(**ids):
            try:
                await self._bring_about(intent, node)
            except CorralError as error:
                log.warning("what became of an intent was not stored: %s", error, extra={"event": "intent.unstored"})
            except Exception:
                log.exception("the work on an intent broke off", extra={"event": "intent.broke_off"})
            finally:
                self._working.discard(intent.key)

    async def _bring_about(self, intent: Intent, node: Node | None) -> None:
        if intent.kind.is_at_stores:
            await self._bring_about_here(intent)
            return
        if node is None or self._fleet.see(node).status not in REACHED:
            await self._release(intent_steps.absent(intent, self._clock.now(), self._policy), is_corral=False)
            return
        # What a frontend did itself has ended with it: no worker may still be busy with it.
        is_corral = node.peer is not None or intent.kind.ends_with_sender
        evidence = await self._look(intent)
        if isinstance(evidence, Intent):
            await self._release(evidence, is_corral=is_corral)
            return
        if evidence.payload is not intent.payload:
            intent = replace(intent, payload=evidence.payload)
        life = node.facts.incarnation
        match intent_steps.look(intent, evidence, self._clock.now(), self._policy, is_corral=is_corral, life=life):
            case Rest(intent=rested):
                await self._release(rested, is_corral=is_corral)
            case Send(replaces=replaces) if why := await self._kind(intent).hold(intent, node, replaces=replaces):
                await self._release(
                    intent_steps.held(intent, why, self._clock.now(), self._policy), is_corral=is_corral
                )
            case Send(intent=sent, replaces=replaces):
                if await self._changes.store(IntentChange(intent=sent, keeps_lease=True, is_corral=is_corral)):
                    settled, report = await self._send(sent, replaces=replaces, is_corral=is_corral)
                    await self._release(settled, is_corral=is_corral, report=report)

    async def _bring_about_here(self, intent: Intent) -> None:
        """Bring an intent about at a store of this frontend. No call of an earlier process can be under way
        there any more, and nothing has to be moved out of the way first."""
        if not self._places.is_here(intent.node_id):
            await self._release(intent_steps.absent(intent, self._clock.now(), self._policy), is_corral=True)
            return
        evidence = await self._look(intent)
        if isinstance(evidence, Intent):
            await self._release(evidence, is_corral=True)
            return
        step = intent_steps.look(
            intent, evidence, self._clock.now(), self._policy, is_corral=True, life=str(self._token)
        )
        if isinstance(step, Rest):
            await self._release(step.intent, is_corral=True)
        elif await self._changes.store(IntentChange(intent=step.intent, keeps_lease=True, is_corral=True)):
            settled, report = await self._send(step.intent, replaces=step.replaces, is_corral=True)
            await self._release(settled, is_corral=True, report=report)

    def _kind(self, intent: Intent) -> KindActions:
        return self._kinds[intent.kind]

    async def _look(self, intent: Intent) -> Sighting | Intent:
        """What the node shows of the subject, or what becomes of the intent when it does not say."""
        try:
            async with self._looks.slot():
                return await self._kind(intent).look(intent)
        except NodeUnreachable:
            return intent_steps.unreachable(intent, self._clock.now(), self._policy)
        except CorralError as error:
            return intent_steps.unheard(intent, error.message, self._clock.now(), self._policy)

    async def _send(self, intent: Intent, *, replaces: bool, is_corral: bool) -> tuple[Intent, Report | None]:
        """Ask the node, and see what came of it."""
        error, is_hopeless = None, False
        self._progress.begin_anew(intent.operation_id, intent.node_id)
        try:
            async with self._progress.followed(intent.operation_id), self._sends[intent.verb].slot():
                async with self._requests.waiting(intent):
                    stopped = await self._kind(intent).send(intent, replaces=replaces)
                await self._kind(intent).after(intent, stopped, is_corral=is_corral)
        except NodeUnreachable:
            return intent_steps.undelivered(intent, self._clock.now(), self._policy), None
        except NodeBusy:
            return intent_steps.timed_out(intent, self._clock.now(), self._policy), None
        except NodeRefused as refusal:
            error, is_hopeless = refusal.message, isinstance(refusal, HopelessRefusal)
            await self._kind(intent).after(intent, refusal.stopped, is_corral=is_corral)
        except NodeWentAway:
            return intent_steps.absent(intent, self._clock.now(), self._policy), None
        except CorralError as trouble:
            return intent_steps.unheard(intent, trouble.message, self._clock.now(), self._policy), None
        intent = intent_steps.heard(intent, is_corral=is_corral)
        evidence = await self._look(intent)  # the node answered; what it has decides
        now = self._clock.now()
        if isinstance(evidence, Intent):
            return intent_steps.answered_unseen(intent, error, now, self._policy), None
        if evidence.payload is not intent.payload:
            intent = replace(intent, payload=evidence.payload)
        settled = intent_steps.answered(intent, error, evidence, now, self._policy, is_hopeless=is_hopeless)
        return settled, evidence.report

    async def _release(self, intent: Intent, *, is_corral: bool, report: Report | None = None) -> None:
        if await self._changes.store(
            IntentChange(intent=intent, keeps_lease=False, is_corral=is_corral, report=report)
        ):
            _tell(intent)
            self._progress.changed(intent.operation_id)
        else:
            self.poke.ring()  # something newer is wanted there

    async def _store(self, changes: Sequence[IntentChange]) -> list[bool]:
        """Whether each was still ours and wanted."""
        return await self._stores.intents.store(self._token, changes)

    # Beside the work.

    @property
    def renewed_every(self) -> timedelta:
        return self._policy.lease / 3

    async def renew(self) -> None:
        """Hold the leases on all that this process works on, by one statement, and on nothing else: what could not be
        stored is to be found again."""
        if self._working:
            until = self._clock.now() + self._policy.lease
            await self._stores.intents.extend(self._token, list(self._working), until=until)

    async def notice_returns(self) -> None:
        """Nodes that were announced to be back get what waited for them at once, and nobody waits for answers from
        before, nor for those of nodes that were announced to be offline. What fails is done again with the next call.
        """
        events = self._stores.events
        if self._heard_of is None:
            self._heard_of = await events.last_sequence()
        while new := await events.after(self._heard_of, limit=_EVENTS):
            await self._welcome([stored.event for stored in new])
            self._heard_of = new[-1].sequence

    async def _welcome(self, happened: Sequence[Event]) -> None:
        back = {event.node_id for event in happened if event.node_id is not None and _is_return(event)}
        healed = {event.node_id for event in happened if event.node_id is not None and _is_healed(event)} - back
        for node_id in _lost(happened) & self._requests.nodes:
            self._requests.give_up_offline(node_id)
        waited_for = back & self._requests.nodes
        for node in (await self._stores.nodes.load(waited_for)).values() if waited_for else ():
            self._requests.give_up(node.id, life=node.facts.incarnation)
        at, woken = self._clock.now(), 0
        if back:
            woken += await self._stores.intents.wake(sorted(back), at=at)
            woken += await self._stores.intents.look_at(sorted(back), at=at)
        if healed:
            woken += await self._stores.intents.wake_unmissed(sorted(healed), at=at)
        if woken:
            self.poke.ring()


def _is_return(event: Event) -> bool:
    """Whether a node is there again that was away, or a new process of it."""
    return event.kind is EventKind.NODE_REREGISTERED or (_is_healed(event) and event.data.get("before") == "offline")


def _lost(happened: Sequence[Event]) -> set[NodeId]:
    """Nodes that went offline, and were not heard of since."""
    last = {event.node_id: event for event in happened if event.kind is EventKind.NODE_STATUS or _is_return(event)}
    return {
        node_id
        for node_id, event in last.items()
        if node_id is not None and event.data.get("after") == NodeStatus.OFFLINE
    }


def _is_healed(event: Event) -> bool:
    return event.kind is EventKind.NODE_STATUS and event.data.get("after") in REACHED


def _tell(intent: Intent) -> None:
    """One line for each change that matters to people."""
    if intent.state is IntentState.SATISFIED:
        done = {"event": "intent.satisfied", "proof": sentence(intent.reason)}
        log.info("%s of %s is proven", intent.verb, intent.subject, extra=done)
    elif intent.state is IntentState.BLOCKED:
        log.warning("%s is blocked: %s", intent.subject, sentence(intent.reason), extra={"event": "intent.blocked"})
