"""Loading a model: the work on a load job, from choosing a node to telling the backend there to load."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import LeaseToken, NodeId, OperationId, new_replica_id
from corral.base.tasks import running
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.client import NodeBusy, NodeLogs, NodeRefused, NodeUnreachable
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.operation import NO_PROGRESS
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.load_job import LoadJob, LoadPolicy, LoadState
from corral.frontend.serving.decide.placement import CandidateNode, Placement, PlacementRefusal, PlacementRequest, place
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState
from corral.frontend.serving.model_loader import ModelLoader
from corral.frontend.serving.staging import ModelFilesUnusable, StagingCount, StagingFailed, StagingWatch
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.rpc.errors import BackendBusy, BackendError, LoadFailed
from corral.wire.backends import InstallBytes, InstallProgress, size_text
from corral.wire.models import LoadReason

log = logging.getLogger(__name__)

INSTALLING: Final = "installing"
STAGING: Final = "staging"
_TOLD_EVERY: Final = 1.0
"""Seconds between two words to other frontends of how far a staging is."""
_BY: Final = "control"


async def choose_node(request: PlacementRequest, fleet: Fleet, replicas: ReplicaStore) -> Placement | PlacementRefusal:
    """Where the model goes, by what is stored now. Nothing is reserved."""
    living = await replicas.living()
    candidates = [
        CandidateNode(
            node=seen.node,
            status=seen.status,
            replicas=tuple(replica for replica in living if replica.node_id == seen.node.id),
        )
        for seen in await fleet.all()
    ]
    return place(request, candidates)


_REASONS: Final[Sequence[tuple[type[CorralError], LoadReason]]] = (
    (Conflict, LoadReason.BEING_REMOVED),
    (StagingFailed, LoadReason.FILES_NOT_SENT),
    (ModelFilesUnusable, LoadReason.FILES_UNUSABLE),
    (NodeRefused, LoadReason.ENGINE_NOT_STARTED),
    (NodeUnreachable, LoadReason.MACHINE_AWAY),
    (NodeBusy, LoadReason.TIMED_OUT),
    (LoadFailed, LoadReason.REFUSED_BY_ENGINE),
    (BackendBusy, LoadReason.TIMED_OUT),
    (BackendError, LoadReason.ENGINE_ENDED),
)


def staging_report(count: StagingCount) -> InstallProgress:
    return InstallProgress(
        phase=STAGING,
        current=size_text(count.present_bytes),
        total=size_text(count.total_bytes),
        percentage=100.0 * count.present_bytes / count.total_bytes if count.total_bytes else 0.0,
        corral=InstallBytes(
            sequence=1,
            current=count.present_bytes,
            total=count.total_bytes,
            file_index=min(count.present_files + 1, count.total_files),
            total_files=count.total_files,
        ),
    )


def reason_of(error: CorralError) -> LoadReason:
    """Why a load failed, in a word that every client may read."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), LoadReason.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStores:
    jobs: LoadJobs
    replicas: ReplicaStore
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job that this process holds the lease of."""

    job: LoadJob
    token: LeaseToken
    spec: ModelSpec


class LoadWork:
    """Works on a job that this process holds: places the model, reserves the place, installs and loads."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        stores: LoadStores,
        models: Models,
        fleet: Fleet,
        loader: ModelLoader,
        feed: Feed,
        clock: Clock,
        *,
        policy: LoadPolicy,
        board: ProgressBoard,
        logs: NodeLogs,
    ) -> None:
        self._stores = stores
        self._models = models
        self._fleet = fleet
        self._loader = loader
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._board = board
        self._logs = logs
        self.phases: dict[str, str] = {}
        """What is being done, by the models that this process works on."""
        self.stagings: dict[str, StagingWatch] = {}
        """How far the files of these models are, while they are brought to a node."""

    async def bring_up(self, held: HeldJob) -> None:
        """Try node after node, until one serves or it makes no sense to go on."""
        tried: dict[NodeId, str] = {}
        for _ in range(self._policy.attempts):
            placed = await self.place(held, tried)
            if placed is None:
                return
            replica, node = placed
            try:
                if replica.state is not ReplicaState.LOADING and not await self._stores.jobs.begin(
                    held.job, held.token, replica, at=self._clock.now()
                ):
                    return
                loaded = await self._load(held, replica, node)
            except CorralError as error:
                tried[node.id] = f"{node.name}: {error.message}"
                lines = await self._failed_on(held, replica, error)
                held = replace(held, job=replace(held.job, reason=reason_of(error), engine_lines=lines))
                if isinstance(error, LoadFailed | ModelFilesUnusable):
                    break  # no other node would do better
            else:
                await self._finish(held, loaded, node)
                return
        await self._give_up(held, "; ".join(tried.values()))

    async def _load(self, held: HeldJob, replica: Replica, node: Node) -> Replica:
        self.phases[held.job.model] = INSTALLING
        policy, spec, job = self._policy, held.spec, held.job.id
        async with self._board.followed(OperationId(job)):
            now = self._clock.now()
            installed = await self._loader.install(replica, node, spec, timeout=policy.install, job=job, now=now)
        models, has_sent = await self._stage(held, node)
        # Bytes take their time: the worker, and with it the process, may have been started anew meanwhile.
        if has_sent or self._loader.needs_telling(installed, spec, models):
            now = self._clock.now()
            installed = await self._loader.install(
                replica, node, spec, timeout=policy.install, job=job, now=now, models=models
            )
        self.phases[held.job.model] = ReplicaState.LOADING
        await self._tell(held, node, InstallProgress(phase=ReplicaState.LOADING))
        return await self._loader.load(replica, node, spec, installed, models=models, policy=policy, clock=self._clock)

    async def _stage(self, held: HeldJob, node: Node) -> tuple[PurePath | None, bool]:
        """Bring the files, which may take as long as bytes move; whether any were sent."""
        watch = StagingWatch(self._clock)
        self.phases[held.job.model], self.stagings[held.job.model] = STAGING, watch
        try:
            async with running(self._tell_staging(held, node, watch), name=f"progress of {held.job.model}"):
                models = await self._loader.stage(node, held.spec, watch)
        finally:
            del self.stagings[held.job.model]
        if sent := watch.count.sent_bytes:
            shown = {"event": "model.staged", "model": held.job.model, "node": node.name, "bytes": sent}
            log.info("model files sent", extra=shown)
        return models, sent > 0

    async def _tell_staging(self, held: HeldJob, node: Node, watch: StagingWatch) -> None:
        while True:
            await self._clock.sleep(_TOLD_EVERY)
            await self._tell(held, node, staging_report(watch.count))

    async def _tell(self, held: HeldJob, node: Node, report: InstallProgress) -> None:
        """Tell all frontends how far it is, in the words in which the node told of the install."""
        job = OperationId(held.job.id)
        known = self._board.of(job).get(node.id, NO_PROGRESS)
        numbers = InstallBytes(sequence=1, current=0, total=0) if report.corral is None else report.corral
        numbers.attempt = known.attempt + (known.phase != report.phase)
        numbers.sequence = 1 if known.phase != report.phase else known.sequence + 1
        report.op_id, report.node_id, report.backend = held.job.id, node.id, held.spec.backend
        report.corral = numbers
        await self._board.report(job, node.id, report)

    async def place(self, held: HeldJob, tried: Mapping[NodeId, str]) -> tuple[Replica, Node] | None:
        """A reserved place; None when the job was given back or lost."""
        if not tried and (taken_over := await self._taken_over(held)) is not None:
            return taken_over
        request = PlacementRequest(
            model=held.job.model,
            size_bytes=self._models.size_of(held.spec),
            exclude=frozenset(tried),
            prefer=held.job.preferred_node_id,
        )
        for _ in range(self._policy.attempts):
            choice = await choose_node(request, self._fleet, self._stores.replicas)
            if isinstance(choice, PlacementRefusal):
                if tried:
                    await self._give_up(held, "; ".join(tried.values()))
                else:
                    await self._wait(held, choice)
                return None
            replica = self._reservation(held, choice)
            if await self._stores.jobs.reserve(held.job, held.token, replica):
                return replica, choice.node
        await self._wait(held, PlacementRefusal(reasons={"the fleet": "changes faster than a place can be reserved"}))
        return None

    async def _taken_over(self, held: HeldJob) -> tuple[Replica, Node] | None:
        """The place that whoever held the job before had reserved, if it is still there."""
        if held.job.replica_id is None:
            return None
        replica = await self._stores.replicas.get(held.job.replica_id)
        node = None if replica is None else await self._stores.nodes.get(replica.node_id)
        if replica is None or node is None or replica.state not in LIVE:
            return None
        return replica, node

    def _reservation(self, held: HeldJob, choice: Placement) -> Replica:
        now = self._clock.now()
        return Replica(
            id=new_replica_id(),
            node_id=choice.node.id,
            model=held.spec.name,
            index=choice.index,
            revision=held.spec.revision,
            backend=held.spec.backend,
            state=ReplicaState.RESERVED,
            created_at=now,
            changed_at=now,
        )

    async def _failed_on(self, held: HeldJob, replica: Replica, error: CorralError) -> tuple[str, ...]:
        """Give the place up; returns what the engine wrote last, if it ran at all."""
        shown = {"event": "load.failed_on_node", "model": held.job.model, "node": replica.node_id}
        log.warning("a load failed: %s", error, extra=shown)
        await self._loader.stop(replica)
        failed = replace(replica, reason=error.message)
        await self._stores.jobs.abandon(held.job, held.token, failed, at=self._clock.now())
        if not isinstance(error, BackendError):
            return ()
        return await self._logs.last_errors(replica.node_id, replica.process_key)

    async def _finish(self, held: HeldJob, replica: Replica, node: Node) -> None:
        data = {"model": replica.model, "replica": replica.id, "node": node.name, "backend": replica.backend}
        event = Event(kind=EventKind.MODEL_LOADED, at=replica.changed_at, actor=_BY, node_id=node.id, data=data)
        if await self._stores.jobs.finish(held.job, held.token, replica, events=[event]):
            log.info("model loaded", extra={"event": "model.loaded", "model": replica.model, "node": node.name})
            await self._feed.announce()

    async def _wait(self, held: HeldJob, refusal: PlacementRefusal) -> None:
        """No node can take it now: look again soon."""
        now = self._clock.now()
        waiting = replace(
            held.job,
            state=LoadState.PENDING,
            message=refusal.message,
            reason=LoadReason.NO_PLACE,
            engine_lines=(),
            retry_at=now + self._policy.look_again,
            replica_id=None,
        )
        await self._stores.jobs.give_back(waiting, held.token, at=now, events=[])

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
