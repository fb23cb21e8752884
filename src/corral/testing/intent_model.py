"""A fleet without I/O: frontends, a database, Corral's and LocalAI's workers, each as little as decides anything.

Everything that can go wrong is a method; the deciding is the product's own (`domain/intent.py`). An oracle beside it
knows what is truly on every disk, and the last wish that was accepted for each node and backend.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from corral.base.ids import LeaseToken, NodeId, OperationId
from corral.domain import intent as intents
from corral.domain.backend import Artefact, BackendEntry, Inventory, Proven, Verb, Wish, prove
from corral.domain.intent import Intent, IntentPolicy, IntentState, LoadNeed, Rest, Send
from corral.domain.operation import FINAL, OperationState, Target, TargetStatus, state_of, status_of
from corral.testing.clock import START

POLICY: Final = IntentPolicy()
Key = tuple[str, str]


class Deed(StrEnum):
    """What a worker does with a request, and what it says."""

    HONEST = "honest"
    REFUSES = "refuses"
    BOASTS = "boasts"
    """Says that it is done, and did nothing."""
    MODEST = "modest"
    """Did it, and says that it failed."""


@dataclass(kw_only=True)
class Request:
    key: str
    wish: Wish
    force: bool
    frontend: int
    life: int
    until: datetime


@dataclass(kw_only=True)
class Worker:
    """Its disk, and what waits at its door."""

    name: str
    is_corral: bool
    up: bool = True
    lives: int = 1
    disk: dict[str, BackendEntry] = field(default_factory=dict)
    serials: dict[str, int] = field(default_factory=dict)
    """How often each backend was written, which no report tells."""
    door: list[Request] = field(default_factory=list)

    @property
    def life(self) -> str:
        """What it tells of its life, if it is one of Corral's."""
        return str(self.lives) if self.is_corral else ""

    def report(self, now: datetime) -> Inventory:
        return Inventory(entries=tuple(self.disk.values()), seen_at=now)

    def do(self, request: Request, now: datetime, digest: str) -> str | None:
        """As an honest worker; returns its error."""
        wish, key = request.wish, request.key
        if wish.verb is Verb.DELETE:
            return None if self.disk.pop(key, None) is not None else f'backend "{key}": backend not found'
        if key in self.disk and wish.verb is Verb.INSTALL and not request.force:
            return None
        self._write(key, wish.artefact, now, digest)
        return None

    def _write(self, key: str, artefact: Artefact, now: datetime, digest: str) -> None:
        at = now.replace(microsecond=0)
        before = self.disk.get(key)
        if self.is_corral and before is not None:
            at = max(at, datetime.fromisoformat(before.installed_at) + timedelta(seconds=1))
        self.serials[key] = self.serials.get(key, 0) + 1
        uri = artefact.uri or f"oci://gallery/{key}"
        told = digest if self.is_corral else ""
        self.disk[key] = BackendEntry(name=key, installed_at=at.isoformat(), uri=uri, digest=told)


@dataclass(kw_only=True)
class Work:
    """An intent that a frontend has claimed, with its request open."""

    intent: Intent
    token: LeaseToken


@dataclass(kw_only=True)
class Frontend:
    number: int
    life: int = 0
    working: dict[Key, Work] = field(default_factory=dict)

    @property
    def token(self) -> LeaseToken:
        return LeaseToken(f"{self.number}/{self.life}")


@dataclass(kw_only=True)
class Answer:
    request: Request
    node: str
    error: str | None


class FleetModel:
    def __init__(self) -> None:
        self.now = START
        # Few, so that stories soon come to the same place twice: what happens at one has no part in another.
        self.workers = {"c": Worker(name="c", is_corral=True), "l": Worker(name="l", is_corral=False)}
        self.frontends = [Frontend(number=0), Frontend(number=1)]
        self.stored: dict[Key, Intent] = {}
        self.targets: dict[OperationId, dict[str, Target]] = {}
        self.answers: list[Answer] = []
        self.digest = "sha256:1"
        self.operations = 0
        self.serial_at_acceptance: dict[tuple[Key, int], int] = {}
        self.sent: dict[tuple[Key, int], int] = {}
        self.heard_success: set[tuple[Key, int]] = set()
        self.rules: set[str] = set()
        """Backends that every node shall have."""

    # People.

    def accept(self, verb: Verb, key: str, nodes: list[str], *, renew: bool = False, uri: str = "") -> bool:
        """One operation on these nodes. False: refused, because of a rule."""
        if verb is Verb.DELETE and key in self.rules:
            return False
        chosen = [n for n in nodes if verb is not Verb.UPGRADE or key in self.workers[n].disk]
        if not chosen:
            return False
        self.operations += 1
        operation = OperationId(f"op{self.operations}")
        digests = frozenset({self.digest}) if verb is Verb.UPGRADE else frozenset()
        artefact = Artefact(backend=key, uri=uri, renewal=operation if renew else "", digests=digests)
        self.targets[operation] = {}
        for node in chosen:
            self._wish(operation, node, Wish(verb=verb, key=key, artefact=artefact))
        return True

    def _wish(self, operation: OperationId, node: str, wish: Wish) -> None:
        place = (node, wish.key)
        old = self.stored.get(place)
        fresh = Intent(
            node_id=NodeId(node),
            wish=wish,
            operation_id=operation,
            accepted_at=self.now,
            changed_at=self.now,
            next_try=self.now,
        )
        if old is not None and (known := self.targets[old.operation_id][node]).status not in FINAL:
            self.targets[old.operation_id][node] = replace(known, status=TargetStatus.SUPERSEDED)
        self.targets[operation][node] = Target(
            operation_id=operation, node_id=NodeId(node), node_name=node, backend=wish.key, changed_at=self.now
        )
        self._put(place, intents.supersede(old, fresh))
        self.serial_at_acceptance[place, self.stored[place].generation] = self.workers[node].serials.get(wish.key, 0)

    def cancel(self, place: Key) -> None:
        known = self.stored.get(place)
        if known is not None and intents.may_cancel(known):
            self._put(place, intents.cancel(known, "cancelled", self.now))

    def retry(self, place: Key) -> None:
        known = self.stored.get(place)
        if known is not None and intents.may_retry(known):
            self._put(place, intents.retry(known, self.now))

    def cold_load(self, node: str, key: str) -> None:
        """A model wants its backend there, without anybody's operation."""
        match intents.needed_by_load(self.stored.get((node, key))):
            case LoadNeed.REPLACE:
                self.accept(Verb.INSTALL, key, [node])
            case LoadNeed.FREE | LoadNeed.REFUSED:
                pass

    def demand(self, key: str) -> None:
        """A rule, and what the loop behind rules does about it."""
        self.rules.add(key)
        lacking = [n for n in self.workers if self._lacks(n, key)]
        if lacking:
            self.accept(Verb.INSTALL, key, lacking)

    def _lacks(self, node: str, key: str) -> bool:
        known = self.stored.get((node, key))
        return known is None or known.wish.verb is Verb.DELETE or known.state is IntentState.CANCELLED

    # Frontends.

    def step(self, number: int, place: Key, *, crash_before_sending: bool = False) -> None:
        """Claim, look, and send or not."""
        frontend, known = self.frontends[number], self.stored.get(place)
        if known is None or not intents.is_due(known, self.now, POLICY) or place in frontend.working:
            return
        claimed = replace(known, lease_token=frontend.token, lease_until=self.now + POLICY.lease)
        self._put(place, claimed)
        worker = self.workers[place[0]]
        if not worker.up:
            self._release(place, frontend, intents.unreachable(claimed, self.now, POLICY))
            return
        step = intents.look(
            claimed, worker.report(self.now), self.now, POLICY, is_corral=worker.is_corral, life=worker.life
        )
        match step:
            case Rest(intent=rested):
                self._release(place, frontend, rested)
            case Send(intent=sent, force=force):
                self._send(place, frontend, sent, force=force, crash=crash_before_sending)

    def _send(self, place: Key, frontend: Frontend, sent: Intent, *, force: bool, crash: bool) -> None:
        worker = self.workers[place[0]]
        assert sent.state is IntentState.OPEN
        assert sent.outstanding is not None
        seen = prove(sent.wish, worker.report(self.now), sent.before)
        in_doubt = sent.doubt is not None and sent.doubt.generation < sent.generation
        assert in_doubt or not isinstance(seen, Proven), "what is proven was sent again"
        self._put(place, sent)
        frontend.working[place] = Work(intent=sent, token=frontend.token)
        if crash:
            self.crash(frontend.number)
            return
        counted = (place, sent.generation)
        self.sent[counted] = self.sent.get(counted, 0) + 1
        worker.door.append(
            Request(
                key=place[1],
                wish=sent.wish,
                force=force,
                frontend=frontend.number,
                life=frontend.life,
                until=sent.outstanding.until,
            )
        )

    def hear(self, index: int, *, twice: bool = False) -> None:
        """An answer arrives: the inventory is asked, and decides."""
        answer = self.answers[index] if twice else self.answers.pop(index)
        frontend = self.frontends[answer.request.frontend]
        place = (answer.node, answer.request.key)
        work = frontend.working.get(place)
        if work is None or frontend.life != answer.request.life or work.intent.wish != answer.request.wish:
            return
        del frontend.working[place]
        worker = self.workers[answer.node]
        work.intent = intents.heard(work.intent, is_corral=worker.is_corral)
        if worker.up:
            settled = intents.answered(work.intent, answer.error, worker.report(self.now), self.now, POLICY)
            settled = self._with_moved_tag(settled, work.intent, worker)
        else:
            settled = intents.answered_unseen(work.intent, answer.error, self.now, POLICY)
        self._release(place, frontend, settled)

    def _with_moved_tag(self, settled: Intent, before: Intent, worker: Worker) -> Intent:
        """What was installed is not what the tag named: ask the registry what it names now."""
        proof = prove(before.wish, worker.report(self.now), before.before)
        if isinstance(proof, Proven) or not proof.is_other_digest:
            return settled
        artefact = replace(before.wish.artefact, digests=frozenset({self.digest}))
        moved = replace(before, wish=replace(before.wish, artefact=artefact))
        return intents.answered(moved, None, worker.report(self.now), self.now, POLICY)

    def give_up(self, number: int) -> None:
        """Requests whose time is over."""
        frontend = self.frontends[number]
        for place, work in list(frontend.working.items()):
            sent = work.intent.outstanding
            if sent is not None and sent.sent_at + POLICY.timeout(sent.verb) <= self.now:
                del frontend.working[place]
                self._release(place, frontend, intents.timed_out(work.intent, self.now, POLICY))

    def _release(self, place: Key, frontend: Frontend, settled: Intent) -> None:
        """As the database does it: only the holder of the lease, and only on the generation that it worked on."""
        known = self.stored[place]
        if known.lease_token != frontend.token:
            return
        free = {"lease_token": None, "lease_until": None}
        if known.generation != settled.generation or known.state is not IntentState.OPEN:
            is_corral = self.workers[place[0]].is_corral
            self._put(place, replace(intents.overtaken(known, settled, is_corral=is_corral), **free))  # type: ignore[arg-type]
        else:
            self._put(place, replace(settled, **free))  # type: ignore[arg-type]

    def crash(self, number: int) -> None:
        """Whatever it knew is gone, and what it was told later nobody hears."""
        frontend = self.frontends[number]
        frontend.working.clear()
        frontend.life += 1

    # Workers, the bus, time.

    def work(self, node: str, index: int, deed: Deed) -> None:
        """Take a request from the door: a Corral worker the first of each backend, a LocalAI worker any."""
        worker = self.workers[node]
        if not worker.up or not worker.door:
            return
        request = worker.door[index % len(worker.door)]
        if worker.is_corral:
            request = next(one for one in worker.door if one.key == request.key)
        worker.door.remove(request)
        error = worker.do(request, self.now, self.digest) if deed in (Deed.HONEST, Deed.MODEST) else None
        if deed in (Deed.REFUSES, Deed.MODEST):
            error = error or "no"
        self.answers.append(Answer(request=request, node=node, error=error))

    def go_down(self, node: str) -> None:
        self.workers[node].up = False
        self.workers[node].door.clear()

    def come_back(self, node: str) -> None:
        """Its first heartbeat pokes the dispatcher."""
        worker = self.workers[node]
        worker.lives += not worker.up
        worker.up = True
        for place, known in self.stored.items():
            if place[0] == node and known.waits_for_node:
                self._put(place, replace(known, next_try=self.now))

    def move_tag(self) -> None:
        self.digest = f"sha256:{int(self.digest.split(':')[1]) + 1}"

    def pass_time(self, duration: timedelta) -> None:
        """Frontends that live renew their leases; requests that nobody took in time are gone."""
        self.now += duration
        for frontend in self.frontends:
            for place in frontend.working:
                known = self.stored[place]
                if known.lease_token == frontend.token:
                    self._put(place, replace(known, lease_until=self.now + POLICY.lease))
            self.give_up(frontend.number)
        for worker in self.workers.values():
            worker.door = [one for one in worker.door if one.until > self.now]

    # The oracle.

    def _put(self, place: Key, intent: Intent) -> None:
        old = self.stored.get(place)
        if old is not None:
            assert intent.generation in (old.generation, old.generation + 1)
            if intent.generation == old.generation and intent.state is not old.state:
                assert intent.state in intents.NEXT.get(old.state, frozenset()), f"{old.state} became {intent.state}"
        became = intent.state is IntentState.SATISFIED and (old is None or old.state is not IntentState.SATISFIED)
        if became:
            assert self.is_true(place, intent), "success was told without proof"
        self.stored[place] = intent
        targets = self.targets[intent.operation_id]
        known = targets[place[0]]
        if known.status not in FINAL:
            targets[place[0]] = replace(
                known, status=status_of(intent), waits_for_node=intent.waits_for_node, message=intent.message
            )

    def is_true(self, place: Key, intent: Intent) -> bool:
        """Whether the disk is as wished, which only the oracle knows."""
        worker, key = self.workers[place[0]], place[1]
        if intent.wish.verb is Verb.DELETE:
            return key not in worker.disk
        if key not in worker.disk:
            return False
        entry, wish = worker.disk[key], intent.wish
        if wish.artefact.uri and entry.uri != wish.artefact.uri:
            return False
        if wish.verb is Verb.UPGRADE and entry.digest in wish.artefact.digests:
            return True
        written = worker.serials.get(key, 0) > self.serial_at_acceptance[place, intent.generation]
        return written or not wish.must_renew

    def settle(self) -> None:
        """Faults end: every node is there, every worker is honest, blocked intents are retried; all work is done."""
        for node in self.workers:
            self.come_back(node)
        for place in self.stored:
            self.retry(place)
        for _ in range(80):
            if not self._settle_once():
                return
        raise AssertionError(f"does not come to rest: {[one for one in self.stored.values() if self._is_open(one)]}")

    def _settle_once(self) -> bool:
        for place in sorted(self.stored):
            self.step(0, place)
        for worker in self.workers.values():
            while worker.door:
                self.work(worker.name, 0, Deed.HONEST)
        while self.answers:
            self.hear(0)
        self.pass_time(timedelta(minutes=1))
        return any(self._is_open(one) for one in self.stored.values())

    def _is_open(self, intent: Intent) -> bool:
        return intent.state is IntentState.OPEN

    def check_rest(self) -> None:
        """After everything came to rest: the disks are as last wished, and stay so for a day without a request."""
        for place, known in self.stored.items():
            if known.state is IntentState.SATISFIED:
                assert self.is_true(place, known), f"{place} is not as it was last wished: {known}"
        sent, disks = dict(self.sent), {name: dict(worker.disk) for name, worker in self.workers.items()}
        self.pass_time(timedelta(days=1))
        for place in self.stored:
            self.step(1, place)
        assert self.sent == sent
        assert {name: worker.disk for name, worker in self.workers.items()} == disks

    def check_operations(self) -> None:
        """What operators see follows from what is stored."""
        for operation, targets in self.targets.items():
            state = state_of(targets.values())
            live = [one for one in self.stored.values() if one.operation_id == operation]
            if state in (OperationState.DONE, OperationState.CANCELLED):
                assert all(one.state is not IntentState.OPEN for one in live)
            if state is OperationState.DONE:
                assert any(one.status is TargetStatus.SUCCESS for one in targets.values())
