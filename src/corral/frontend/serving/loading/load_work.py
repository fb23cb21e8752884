"""Loading a model: the work on a load job, on one node after another. `placing.py` says on which."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Final

from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import LoadJobId, NodeId, OperationId
from corral.base.tasks import running
from corral.frontend.nodes.client import NodeBusy, NodeRefused, StartedBackend
from corral.frontend.nodes.contacts import NodeGone, NodePending, NodeUnreachable
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.logs import NodeLogs
from corral.frontend.operations.decide.operation import NO_PROGRESS
from corral.frontend.operations.dispatcher import WorkerRestarted
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.load_job import (
    HeldJob,
    Hitch,
    LoadPolicy,
    LoadState,
    LoadStepName,
    next_look,
    says_that_it_ends,
    step_seconds,
    will_pass,
)
from corral.frontend.serving.decide.replica import Outgrown, Replica, ReplicaState
from corral.frontend.serving.loading.load_watch import LoadWatch, PlaceLost
from corral.frontend.serving.loading.model_loader import LoadMeter, ModelLoader, StepTimedOut, within_bound
from corral.frontend.serving.loading.placing import LoadStores, NoPlace, Placed, Placing, WaitingFor
from corral.frontend.serving.staging.service import (
    STAGING,
    ModelFilesUnusable,
    StagingFailed,
    StagingWatch,
    staging_report,
)
from corral.rpc.errors import BackendBusy, BackendError, BackendGone, LoadFailed
from corral.wire.backends import InstallBytes, InstallProgress
from corral.wire.models import LoadReason

log = logging.getLogger(__name__)

INSTALLING: Final = "installing"
_TOLD_EVERY: Final = 1.0
"""Seconds between two words to other frontends of how far a staging is."""
_BY: Final = "control"

_REASONS: Final[Sequence[tuple[type[CorralError], LoadReason]]] = (
    (Conflict, LoadReason.BEING_REMOVED),
    (StagingFailed, LoadReason.FILES_NOT_SENT),
    (ModelFilesUnusable, LoadReason.FILES_UNUSABLE),
    (NodeRefused, LoadReason.ENGINE_NOT_STARTED),
    (NodeUnreachable, LoadReason.MACHINE_AWAY),
    (WorkerRestarted, LoadReason.MACHINE_AWAY),
    (StepTimedOut, LoadReason.TIMED_OUT),
    (NodeBusy, LoadReason.TIMED_OUT),
    (LoadFailed, LoadReason.REFUSED_BY_ENGINE),
    (BackendBusy, LoadReason.TIMED_OUT),
    (BackendError, LoadReason.ENGINE_ENDED),
)


_ANSWERS: Final = (Conflict, NodeRefused)
"""Errors of an install after which the node is not busy with it: it was not sent, or was refused. One that nobody
listens for may have been asked before, and work on that."""


def reason_of(error: CorralError) -> LoadReason:
    """Why a load failed, in a word that every client may read."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), LoadReason.OTHER)


def _hitch_of(error: CorralError, replica: Replica) -> Hitch | None:
    """What this error is that a node or its backend answered with, if it may pass by itself."""
    match error:
        case NodeGone() | NodePending():
            return None
        case NodeUnreachable():
            return Hitch.NOT_LISTENING
        case NodeRefused() if says_that_it_ends(error.message, replica.process_key):
            return Hitch.STILL_ENDING
        case BackendGone():
            return Hitch.ENDED
        case _:
            return None


class JobLost(Exception):
    """The job or its replica is no longer ours: somebody else decides what becomes of it."""


class LoadWork:
    """Works on a job that this process holds: gets a place, then installs, stages and loads."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        stores: LoadStores,
        loader: ModelLoader,
        feed: Feed,
        clock: Clock,
        *,
        policy: LoadPolicy,
        board: ProgressBoard,
        logs: NodeLogs,
        placing: Placing,
        watch: LoadWatch,
    ) -> None:
        self._stores = stores
        self._loader = loader
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._board = board
        self._logs = logs
        self._watch = watch
        self.placing = placing
        self.phases: dict[LoadJobId, str] = {}
        """What is being done, by the jobs that this process works on."""
        self.stagings: dict[LoadJobId, StagingWatch] = {}
        """How far the files of these jobs are, while they are brought to a node."""
        self.meter = LoadMeter()

    async def bring_up(self, held: HeldJob) -> None:
        """Try node after node, until one serves or it makes no sense to go on."""
        tried: dict[NodeId, str] = {}
        for _ in range(self._policy.attempts):
            placed = await self.place(held, tried)
            if placed is None:
                return
            replica, node, at_place = placed
            try:
                loaded, done = await self._load(at_place, replica, node)
            except (JobLost, PlaceLost) as loss:
                await self._put_back(at_place, loss)
                return
            except CorralError as error:
                tried[node.id] = f"{node.name}: {error.message}"
                lines = await self._failed_on(held, replica, error)
                held = replace(held, job=replace(held.job, reason=reason_of(error), engine_lines=lines))
                if isinstance(error, ModelFilesUnusable):
                    break  # no other node would do better
            else:
                await self._finish(done, loaded, node)
                return
        await self._give_up(held, "; ".join(tried.values()))

    async def _load(self, held: HeldJob, replica: Replica, node: Node) -> tuple[Replica, HeldJob]:
        """Do all steps on the node, from the first one again when its worker is restarted meanwhile."""
        restarts = 0
        while True:
            try:
                async with self._watch.over(replica, node.facts.incarnation):
                    return await self._until_served(held, replica, node)
            except WorkerRestarted:
                restarts += 1
                if restarts >= self._policy.restarts:
                    raise
            node = await self._again(held, node)

    async def _until_served(self, held: HeldJob, replica: Replica, node: Node) -> tuple[Replica, HeldJob]:
        """Do all steps, from the first one again when the node named a process that it was just ending."""
        while True:
            try:
                return await self._through_steps(held, replica, node)
            except BackendGone as error:
                if not await self._will_pass(error, replica, node):
                    raise
            await self._clock.sleep(self._policy.hitch_pause.total_seconds())

    async def _again(self, held: HeldJob, node: Node) -> Node:
        """The node as it is now. What it tells of its progress counts from nothing."""
        self._board.begin_anew(OperationId(held.job.id), node.id)
        return await self._stores.nodes.get(node.id) or node

    async def _will_pass(self, error: CorralError, replica: Replica, node: Node, began: datetime | None = None) -> bool:
        """Whether the node may do in a moment what it has not done now. `began` is when it was first asked for it."""
        if (hitch := _hitch_of(error, replica)) is None:
            return False
        since = await self._stores.replicas.place_free_since(replica) if hitch is Hitch.ENDED else began
        return will_pass(hitch, node, since=since, now=self._clock.now(), policy=self._policy)

    async def _through_steps(self, held: HeldJob, replica: Replica, node: Node) -> tuple[Replica, HeldJob]:
        policy, spec, job = self._policy, held.spec, held.job.id
        self.phases[job] = INSTALLING
        held = await self._at_step(held, LoadStepName.INSTALL, ReplicaState.RESERVED, asked=node)
        async with self._board.followed(OperationId(job)):
            installed = await self._installed(held, replica, node)
        held = await self._at_step(held, LoadStepName.STAGE, ReplicaState.STAGING)
        models, has_sent = await self._stage(held, node)
        # Bringing files takes time: processes of the node may have ended meanwhile.
        if has_sent or self._loader.needs_telling(installed, spec, models):
            held = await self._at_step(held, LoadStepName.START, ReplicaState.STAGING, asked=node)
            installed = await self._installed(held, replica, node, models=models)
        held = await self._at_step(held, LoadStepName.LOAD, ReplicaState.LOADING)
        self.phases[job] = ReplicaState.LOADING
        await self._tell(held, node, InstallProgress(phase=ReplicaState.LOADING))
        loaded = await self._loader.load(
            replica, node, spec, installed, models=models, policy=policy, clock=self._clock
        )
        return loaded, held

    async def _at_step(
        self, held: HeldJob, name: LoadStepName, state: ReplicaState, *, asked: Node | None = None
    ) -> HeldJob:
        """Store that a step begins, and which node it asks for the backend. JobLost when it must not begin."""
        now, life = self._clock.now(), None if asked is None else asked.facts.incarnation
        held = held.at_step(name, now)
        if not await self._stores.jobs.advance(held.job, held.token, state, at=now, asked_life=life):
            raise JobLost
        return held

    async def _installed(
        self, held: HeldJob, replica: Replica, node: Node, *, models: PurePath | None = None
    ) -> StartedBackend:
        """Have the process of the replica, as soon as the node can be asked for it."""
        began = self._clock.now()
        while True:
            try:
                return await self._install(held, replica, node, models)
            except CorralError as error:
                if not await self._will_pass(error, replica, node, began):
                    raise
            await self._clock.sleep(self._policy.hitch_pause.total_seconds())

    async def _install(self, held: HeldJob, replica: Replica, node: Node, models: PurePath | None) -> StartedBackend:
        """Have the process of the replica; the node may download its backend for as long as bytes move."""
        job, policy = held.job.id, self._policy
        return await within_bound(
            "having its backend there",
            self._loader.install(
                replica, node, held.spec, timeout=policy.longest, job=job, now=self._clock.now(), models=models
            ),
            moved=lambda: self._board.of(OperationId(job)).get(node.id, NO_PROGRESS),
            bound=policy.install_bound,
            clock=self._clock,
        )

    def _staged(self) -> int:
        """What all stagings of this process moved: one that waits for its turn behind others does not stand still."""
        return sum(watch.movement for watch in self.stagings.values())

    async def _stage(self, held: HeldJob, node: Node) -> tuple[PurePath | None, bool]:
        """Bring the files, which may take as long as bytes move; whether any were sent."""
        watch, began = StagingWatch(self._clock), self._clock.monotonic()
        self.phases[held.job.id], self.stagings[held.job.id] = STAGING, watch
        try:
            async with running(self._tell_staging(held, node, watch), name=f"progress of {held.job.model}"):
                models = await within_bound(
                    "bringing its files there",
                    self._loader.stage(node, held.spec, watch),
                    moved=self._staged,
                    bound=self._policy.stage_bound(self._loader.size_of(held.spec)),
                    clock=self._clock,
                )
        finally:
            del self.stagings[held.job.id]
            self.meter.staged(watch.count.sent_bytes, self._clock.monotonic() - began)
            if sent := watch.count.sent_bytes:
                details = {"event": "model.staged", "model": held.job.model, "node": node.name, "bytes": sent}
                log.info("model files sent", extra=details)
        return models, sent > 0

    async def _tell_staging(self, held: HeldJob, node: Node, watch: StagingWatch) -> None:
        while True:
            await self._clock.sleep(_TOLD_EVERY)
            await self._tell(held, node, staging_report(watch.count))

    async def _tell(self, held: HeldJob, node: Node, report: InstallProgress) -> None:
        """Broadcast how far the load is to all frontends, in the words of the node's own install progress."""
        job = OperationId(held.job.id)
        progress = self._board.of(job).get(node.id, NO_PROGRESS)
        numbers = InstallBytes(sequence=1, current=0, total=0) if report.corral is None else report.corral
        numbers.attempt = progress.attempt + (progress.phase != report.phase)
        numbers.sequence = 1 if progress.phase != report.phase else progress.sequence + 1
        report.op_id, report.node_id, report.backend = held.job.id, node.id, held.spec.backend
        report.corral = numbers
        await self._board.report(job, node.id, report)

    async def place(self, held: HeldJob, tried: Mapping[NodeId, str]) -> Placed | None:
        """A reserved place; None when the job was given back or lost."""
        if not tried and (taken_over := await self.placing.taken_over(held)) is not None:
            if taken_over.replica.revision == held.spec.revision:
                return taken_over
            # It would say that it has the configuration of before, and its place was measured for that.
            await self._leave_place(held, taken_over.replica, Outgrown.CHANGED, is_answered=False)
            held = replace(held, job=replace(held.job, node_id=None, replica_id=None))
        held = replace(held, job=replace(held.job, steps=())).at_step(LoadStepName.PLACE, self._clock.now())
        outcome = await self.placing.reserve(held, tried)
        match outcome:
            case Placed():
                return outcome
            case WaitingFor():
                await self._wait(held, outcome)
            case NoPlace.NO_OTHER_NODE:
                await self._give_up(held, "; ".join(tried.values()))
            case NoPlace.UNWANTED:
                await self._stores.jobs.drop(held.job, held.token, at=self._clock.now())
        return None

    async def _failed_on(self, held: HeldJob, replica: Replica, error: CorralError) -> tuple[str, ...]:
        """Give the place up; returns what the engine wrote last, if it ran at all."""
        details = {"event": "load.failed_on_node", "model": held.job.model, "node": replica.node_id}
        log.warning("a load failed: %s", error, extra=details)
        await self._leave_place(held, replica, error.message, is_answered=isinstance(error, _ANSWERS))
        if not isinstance(error, BackendError):
            return ()
        return await self._logs.last_errors(replica.node_id, replica.process_key)

    async def _leave_place(self, held: HeldJob, replica: Replica, why: str, *, is_answered: bool) -> None:
        """End what may run there, and keep the job, which is without a place then."""
        await self._loader.stop(replica)
        left = replace(replica, reason=why)
        await self._stores.jobs.abandon(held.job, held.token, left, is_answered=is_answered, at=self._clock.now())

    async def _finish(self, held: HeldJob, replica: Replica, node: Node) -> None:
        seconds = {name: round(took, 3) for name, took in step_seconds(held.job, replica.changed_at).items()}
        data = {
            "model": replica.model,
            "replica": replica.id,
            "node": node.name,
            "backend": replica.backend,
            "why": replica.why.value,
            "seconds": seconds,
        }
        event = Event(kind=EventKind.MODEL_LOADED, at=replica.changed_at, actor=_BY, node_id=node.id, data=data)
        if await self._stores.jobs.finish(held.job, held.token, replica, events=[event]):
            self.meter.loaded(seconds)
            log.info("model loaded", extra={"event": "model.loaded", "model": replica.model, "node": node.name})
            await self._feed.announce()

    async def _wait(self, held: HeldJob, room: WaitingFor) -> bool:
        """No node can take it now: look again soon. False: the job is no longer ours."""
        now = self._clock.now()
        is_stuck = room.reason is LoadReason.NO_PLACE and not room.is_brief
        waiting = replace(
            held.job,
            state=LoadState.PENDING,
            message=room.message,
            reason=room.reason,
            engine_lines=(),
            retry_at=next_look(held.job, now, self._policy) if is_stuck else now + self._policy.look_again,
            replica_id=None,
        )
        return await self._stores.jobs.give_back(waiting, held.token, at=now, events=[])

    async def _put_back(self, held: HeldJob, loss: JobLost | PlaceLost) -> None:
        """Have the job look for another place, unless it is somebody else's by now."""
        why = loss.message if isinstance(loss, PlaceLost) else "its place was lost"
        if await self._wait(held, WaitingFor(why, is_brief=True)):
            details = {"event": "load.place_lost", "model": held.job.model, "node": held.job.node_id}
            log.warning("a load lost its place: %s", why, extra=details)

    async def _give_up(self, held: HeldJob, why: str) -> None:
        now = self._clock.now()
        failures = held.job.failures + 1
        failed = replace(
            held.job,
            state=LoadState.FAILED,
            message=why,
            failures=failures,
            retry_at=now + self._policy.cooldown.steady(failures),
            replica_id=None,
        )
        data = {"model": held.job.model, "why": why, "failures": failures}
        event = Event(kind=EventKind.MODEL_LOAD_FAILED, at=now, actor=_BY, data=data)
        if await self._stores.jobs.give_back(failed, held.token, at=now, events=[event]):
            log.warning("model not loaded: %s", why, extra={"event": "model.load_failed", "model": held.job.model})
            await self._feed.announce()
