"""A model of a fleet without I/O: frontends, a database, Corral's and LocalAI's workers, each reduced to its decisions.

Everything that can go wrong is a method; the deciding is the product's own (`frontend/operations/decide/intent.py`). An
oracle beside it knows what is truly on every disk, and the last wish that was accepted for each node and backend."""

from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.decide.backend import (
    Artefact,
    Wish,
    artefact_of,
    evidence_of,
    payload_of,
    prove,
    wish_of,
    with_alias_kept,
)
from corral.frontend.models.decide.removal import evidence_of_removal
from corral.frontend.operations.decide import intent as intents
from corral.frontend.operations.decide import intent_steps
from corral.frontend.operations.decide.intent import (
    Intent,
    IntentKind,
    IntentPolicy,
    IntentState,
    Proven,
    Sighting,
    Verb,
)
from corral.frontend.operations.decide.intent_steps import Rest, Send
from corral.frontend.operations.decide.operation import FINAL, Target, TargetStatus, status_of
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.frontend.rules.decide import FleetRule, NameResolver, contradicting
from corral.frontend.serving.decide.load_job import LoadNeed, needed_by_load
from tests.kit.clock import START
from tests.kit.intent_model_parts import (
    ClaimedIntent,
    IntentKey,
    ModelledAnswer,
    ModelledFrontend,
    Request,
    Worker,
    WorkerConduct,
)

POLICY: Final = IntentPolicy()
NAMES: Final = NameResolver(catalogue=None)


class FleetModel:
    def __init__(self) -> None:
        self.now = START
        # Few, so that stories soon come to the same place twice: what happens at one has no part in another.
        self.workers = {"c": Worker(name="c", is_corral=True), "l": Worker(name="l", is_corral=False)}
        self.frontends = [ModelledFrontend(number=0), ModelledFrontend(number=1)]
        self.stored: dict[IntentKey, Intent] = {}
        self.targets: dict[OperationId, dict[str, Target]] = {}
        self.answers: list[ModelledAnswer] = []
        self.digest = "sha256:1"
        self.operations = 0
        self.serial_at_acceptance: dict[tuple[IntentKey, int], int] = {}
        self.sent: dict[tuple[IntentKey, int], int] = {}
        self.answered: set[tuple[IntentKey, int]] = set()
        """Places and generations that their node has reported as done."""
        self.deceived: set[IntentKey] = set()
        """Where a node said last that a model's files are gone, and had deleted nothing."""
        self.rules: dict[str, FleetRule] = {}
        """Rules by name, which is the name of their backend here."""
        self.started_by_rules = 0
        self.touched: set[IntentKey] = set()
        """Places where somebody has deleted something by hand: only a rule repairs that."""

    # People.

    def accept(self, verb: Verb, key: str, nodes: list[str], *, renew: bool = False, uri: str = "") -> bool:
        """One operation on these nodes. False: refused, because of a rule, or because no node is meant."""
        chosen = [n for n in nodes if verb is not Verb.UPGRADE or key in self.workers[n].disk]
        artefact = Artefact(backend=key, uri=uri, renewal=f"op{self.operations + 1}" if renew else "")
        wish = Wish(verb=verb, key=key, artefact=artefact)
        if not chosen or any(self._contradicts(wish, node) for node in chosen):
            return False
        self.start(wish, chosen)
        return True

    def _contradicts(self, wish: Wish, node: str) -> bool:
        return contradicting(self.rules.values(), wish, self.workers[node].labels, NAMES, "") is not None

    def start(self, wish: Wish, nodes: list[str]) -> OperationId:
        self.operations += 1
        operation = OperationId(f"op{self.operations}")
        self.targets[operation] = {}
        for node in nodes:
            self._wish(operation, node, self._with_digest(wish, node))
        return operation

    def _with_digest(self, wish: Wish, node: str) -> Wish:
        """The wish as planned: what is there already need not be what the tag names, unless it is upgraded."""
        is_there = isinstance(prove(wish, self.workers[node].report(self.now), None), Proven)
        if wish.verb.deletes or is_there:
            return wish
        return replace(wish, artefact=replace(wish.artefact, digests=frozenset({self.digest})))

    def _wish(self, operation: OperationId, node: str, wish: Wish) -> None:
        place = (node, wish.key)
        old = self.stored.get(place)
        fresh = Intent(
            node_id=NodeId(node),
            verb=wish.verb,
            subject=wish.key,
            payload=payload_of(wish.artefact),
            operation_id=operation,
            accepted_at=self.now,
            changed_at=self.now,
            next_try=self.now,
        )
        if old is not None and (target := self.targets[old.operation_id][node]).status not in FINAL:
            self.targets[old.operation_id][node] = replace(target, status=TargetStatus.SUPERSEDED)
        self.targets[operation][node] = Target(
            operation_id=operation, node_id=NodeId(node), node_name=node, subject=wish.key, changed_at=self.now
        )
        self._put(place, intents.supersede(old, fresh, with_alias_kept))
        self.serial_at_acceptance[place, self.stored[place].generation] = self.workers[node].serials.get(wish.key, 0)

    def cancel(self, place: IntentKey) -> None:
        intent = self.stored.get(place)
        if intent is None or not intents.may_cancel(intent):
            return
        is_install = intent.verb is Verb.INSTALL
        if is_install and self._contradicts(replace(wish_of(intent), verb=Verb.DELETE), place[0]):
            return
        self.take_back(place)

    def take_back(self, place: IntentKey) -> None:
        intent = self.stored[place]
        if intents.may_cancel(intent):
            self._put(place, intents.cancel(intent, because(ReasonCode.CANCELLED, by="somebody"), self.now))

    def retry(self, place: IntentKey) -> None:
        intent = self.stored.get(place)
        if intent is not None and intents.may_retry(intent):
            self._put(place, intents.retry(intent, self.now))

    def cold_load(self, node: str, key: str) -> None:
        """A load needs its backend on the node, without an operation."""
        match needed_by_load(self.stored.get((node, key)), since=self.now, now=self.now):
            case LoadNeed.REPLACE:
                self.accept(Verb.INSTALL, key, [node])
            case LoadNeed.FREE | LoadNeed.REFUSED:
                pass

    def delete_by_hand(self, place: IntentKey) -> None:
        """Delete a backend on the machine, where no frontend sees it."""
        self.touched.add(place)
        self.workers[place[0]].disk.pop(place[1], None)

    # Frontends.

    def step(self, number: int, place: IntentKey, *, crash_before_sending: bool = False) -> None:
        """Claim an intent, look at the worker, and send a request if one is needed."""
        frontend, intent = self.frontends[number], self.stored.get(place)
        if intent is None or not intents.is_due(intent, self.now, POLICY) or place in frontend.working:
            return
        claimed = replace(intent, lease_token=frontend.token, lease_until=self.now + POLICY.lease)
        self._put(place, claimed)
        worker = self.workers[place[0]]
        if not worker.up and claimed.kind is IntentKind.BACKEND:
            self._release(place, frontend, intent_steps.unreachable(claimed, self.now, POLICY))
            return
        claimed = self._followed(claimed, worker)
        step = intent_steps.look(
            claimed, self._evidence(claimed, worker), self.now, POLICY, is_corral=worker.is_corral, life=worker.life
        )
        match step:
            case Rest(intent=rested):
                self._release(place, frontend, rested)
            case Send(intent=sent, replaces=replaces):
                self._send(place, frontend, sent, force=replaces, crash=crash_before_sending)

    def _send(self, place: IntentKey, frontend: ModelledFrontend, sent: Intent, *, force: bool, crash: bool) -> None:
        worker = self.workers[place[0]]
        assert sent.state is IntentState.OPEN
        assert sent.outstanding is not None
        seen = self._evidence(sent, worker).proof
        in_doubt = sent.doubt is not None and sent.doubt.generation < sent.generation
        assert in_doubt or not isinstance(seen, Proven), "what is proven was sent again"
        self._put(place, sent)
        request = Request(
            key=place[1],
            wish=wish_of(sent),
            force=force,
            frontend=frontend.number,
            life=frontend.life,
            generation=sent.generation,
            accepted_at=sent.accepted_at,
            until=sent.outstanding.until,
        )
        frontend.working[place] = ClaimedIntent(intent=sent, request=request)
        if crash:
            self.crash(frontend.number)
        elif not worker.up:
            del frontend.working[place]
            self._release(place, frontend, intent_steps.undelivered(sent, self.now, POLICY))
        else:
            counted = (place, sent.generation)
            assert sent.kind is IntentKind.BACKEND or counted not in self.answered, "what was answered was sent again"
            self.sent[counted] = self.sent.get(counted, 0) + 1
            worker.door.append(request)

    def hear(self, index: int, *, twice: bool = False) -> None:
        """An answer arrives: the inventory is asked, and decides."""
        answer = self.answers[index] if twice else self.answers.pop(index)
        frontend = self.frontends[answer.request.frontend]
        place = (answer.node, answer.request.key)
        work = frontend.working.get(place)
        if work is None or frontend.life != answer.request.life or wish_of(work.intent) != answer.request.wish:
            return
        is_about_backends = answer.request.wish.verb.kind is IntentKind.BACKEND
        if not is_about_backends and work.request is not answer.request:
            return  # where the answer decides, each request has an address of its own for it
        del frontend.working[place]
        if answer.error is None:
            self.answered.add((place, answer.request.generation))
        worker = self.workers[answer.node]
        work.intent = intent_steps.heard(work.intent, is_corral=worker.is_corral)
        if worker.up or not is_about_backends:
            followed = self._followed(work.intent, worker)
            settled = intent_steps.answered(followed, answer.error, self._evidence(followed, worker), self.now, POLICY)
        else:
            settled = intent_steps.answered_unseen(work.intent, answer.error, self.now, POLICY)
        self._release(place, frontend, settled)

    def _followed(self, intent: Intent, worker: Worker) -> Intent:
        """What was installed is not what the tag named: ask the registry what it names now."""
        proof = self._evidence(intent, worker).proof
        if isinstance(proof, Proven) or not proof.is_other_digest:
            return intent
        artefact = replace(artefact_of(intent.payload), digests=frozenset({self.digest}))
        return replace(intent, payload=payload_of(artefact))

    def _evidence(self, intent: Intent, worker: Worker) -> Sighting:
        """What the kind of the intent concludes from a look at the worker."""
        if intent.kind is IntentKind.MODEL:
            return evidence_of_removal(intent)
        return evidence_of(intent, worker.report(self.now))

    def give_up(self, number: int) -> None:
        """Requests that expired."""
        frontend = self.frontends[number]
        for place, work in list(frontend.working.items()):
            sent = work.intent.outstanding
            if sent is not None and sent.sent_at + POLICY.timeout(sent.verb) <= self.now:
                del frontend.working[place]
                self._release(place, frontend, intent_steps.timed_out(work.intent, self.now, POLICY))

    def _release(self, place: IntentKey, frontend: ModelledFrontend, settled: Intent) -> None:
        """Only the holder of the lease may store, and only on the generation that it worked on, as in the database."""
        intent = self.stored[place]
        if intent.lease_token != frontend.token:
            return
        free = {"lease_token": None, "lease_until": None}
        if intent.generation != settled.generation or intent.state is not IntentState.OPEN:
            is_corral = self.workers[place[0]].is_corral
            self._put(place, replace(intents.overtaken(intent, settled, is_corral=is_corral), **free))
        else:
            self._put(place, replace(settled, **free))

    def crash(self, number: int) -> None:
        """Lose the frontend's memory, and the replies to its requests."""
        frontend = self.frontends[number]
        frontend.working.clear()
        frontend.decided = []
        frontend.life += 1

    # Workers, the bus, time.

    def work(self, node: str, index: int, deed: WorkerConduct) -> None:
        """Take a request from the door: a Corral worker the first of each backend, a LocalAI worker any."""
        worker = self.workers[node]
        if not worker.up or not worker.door:
            return
        request = worker.door[index % len(worker.door)]
        if worker.is_corral:
            request = next(waiting for waiting in worker.door if waiting.key == request.key)
        worker.door.remove(request)
        does = deed in (WorkerConduct.HONEST, WorkerConduct.MODEST)
        error = worker.do(request, self.now, self.digest) if does else None
        if does:
            self.deceived.discard((node, request.key))
        if deed is WorkerConduct.BOASTS:
            self.deceived.add((node, request.key))
        if deed in (WorkerConduct.REFUSES, WorkerConduct.MODEST):
            error = error or "no"
        self.answers.append(ModelledAnswer(request=request, node=node, error=error))

    def go_down(self, node: str) -> None:
        self.workers[node].up = False
        self.workers[node].door.clear()

    def come_back(self, node: str) -> None:
        """Register the node: the dispatcher is poked, and requests to its earlier run are given up."""
        worker = self.workers[node]
        if not worker.up:
            worker.lives += 1
            self._give_up_on_earlier_lives(node)
        worker.up = True
        for place, intent in self.stored.items():
            if place[0] == node and (intent.waits_for_node or (intent.outstanding and not intent.lease_token)):
                self._put(place, replace(intent, next_try=self.now))

    def _give_up_on_earlier_lives(self, node: str) -> None:
        for frontend in self.frontends:
            for place in [place for place in frontend.working if place[0] == node]:
                unheard = intent_steps.unheard(frontend.working.pop(place).intent, "restarted", self.now, POLICY)
                self._release(place, frontend, unheard)

    def announce_offline(self, node: str) -> None:
        """Nobody waits for the node's answers any longer: it is down, or works on and is not heard."""
        for frontend in self.frontends:
            for place in [place for place in frontend.working if place[0] == node]:
                away = intent_steps.absent(frontend.working.pop(place).intent, self.now, POLICY)
                self._release(place, frontend, away)

    def poll(self, node: str) -> None:
        """Ask a node what it has, and keep that."""
        worker = self.workers[node]
        if worker.up:
            worker.last_report = worker.report(self.now)

    def move_tag(self) -> None:
        self.digest = f"sha256:{int(self.digest.split(':')[1]) + 1}"

    def pass_time(self, duration: timedelta) -> None:
        """Advance time: living frontends renew their leases, and requests that expired are dropped."""
        self.now += duration
        for frontend in self.frontends:
            for place in frontend.working:
                intent = self.stored[place]
                if intent.lease_token == frontend.token:
                    self._put(place, replace(intent, lease_until=self.now + POLICY.lease))
            self.give_up(frontend.number)
        for worker in self.workers.values():
            worker.door = [request for request in worker.door if request.until > self.now]

    # The oracle.

    def _put(self, place: IntentKey, intent: Intent) -> None:
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
        target = targets[place[0]]
        if target.status not in FINAL:
            targets[place[0]] = replace(
                target, status=status_of(intent), waits_for_node=intent.waits_for_node, reason=intent.reason
            )

    def is_true(self, place: IntentKey, intent: Intent) -> bool:
        """Whether the disk really is as wished."""
        worker, key = self.workers[place[0]], place[1]
        if intent.verb is Verb.REMOVE:
            is_gone = worker.files.get(key, intent.accepted_at + timedelta(seconds=1)) > intent.accepted_at
            return (place, intent.generation) in self.answered and (is_gone or place in self.deceived)
        if intent.verb is Verb.DELETE:
            return key not in worker.disk
        if key not in worker.disk:
            return False
        entry, wish = worker.disk[key], wish_of(intent)
        if wish.artefact.uri and entry.uri != wish.artefact.uri:
            return False
        if wish.verb is Verb.UPGRADE and entry.digest in wish.artefact.digests:
            return True
        written = worker.serials.get(key, 0) > self.serial_at_acceptance[place, intent.generation]
        return written or not wish.must_renew
