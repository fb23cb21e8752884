"""Cold loads. Requests wait for a job and never own it: it goes on when they leave, and when this process dies.

`ensure` opens or joins the one job of a model and returns at once. The loop claims what is due and works on it: place,
reserve, install, load. For a job that failed, `ensure` returns the reason until its cooldown is over.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import LeaseToken, NodeId, OperationId, new_lease_token, new_load_job_id, new_replica_id
from corral.base.tasks import Poke, poke_or_period, running
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.operation import NO_PROGRESS, seconds_left
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.load_job import (
    NO_LOAD_PROGRESS,
    LoadJob,
    LoadPolicy,
    LoadProgress,
    LoadState,
    LoadStatus,
    due_at,
    may_claim,
)
from corral.frontend.serving.decide.placement import Placement, PlacementRefusal, PlacementRequest
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState, unserved_reason
from corral.frontend.serving.loading import ModelLoader, choose_node, reason_of
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.rpc.errors import BackendError, LoadFailed
from corral.wire.models import LoadReason

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=5)
"""Without a ring, and with nothing due before: how long a job that a dying frontend just opened waits for another."""
_NOT_BEFORE: Final = timedelta(milliseconds=50)
_ACTOR: Final = "control"
INSTALLING: Final = "installing"


class LastErrors(Protocol):
    async def last_errors(self, node_id: NodeId, process_key: str) -> tuple[str, ...]:
        """What a process wrote to standard error last; empty when nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStores:
    jobs: LoadJobs
    replicas: ReplicaStore
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A job that this process holds the lease of."""

    job: LoadJob
    token: LeaseToken
    spec: ModelSpec


class Loads:
    """`ensure` for those who wait, `run` for the work."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        stores: LoadStores,
        models: Models,
        fleet: Fleet,
        loading: ModelLoader,
        feed: Feed,
        clock: Clock,
        *,
        policy: LoadPolicy,
        board: ProgressBoard,
        engines: LastErrors,
    ) -> None:
        self._stores = stores
        self._models = models
        self._fleet = fleet
        self._loading = loading
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._board = board
        self._engines = engines
        self._working: set[str] = set()
        self._phases: dict[str, str] = {}
        """What is being done, by the models that this process works on."""
        self._next_due: datetime | None = None
        """When the first of the jobs that could not be claimed yet is due, as the last look found them."""
        self.poke = Poke()

    async def ensure(self, name: str) -> LoadStatus:
        """Have the model loaded, by this name or an alias; tells how far that is. NotFound for an unknown one."""
        spec = self._models.find(name)
        # Not what was loaded from an earlier configuration: that is about to be ended.
        current = (spec.name, spec.revision, ReplicaState.LOADED)
        living = await self._stores.replicas.living()
        loaded = [replica for replica in living if (replica.model, replica.revision, replica.state) == current]
        if loaded:
            return await self._loaded(spec, loaded)
        return await self._status(await self._open(spec))

    async def restore(self, spec: ModelSpec, node_id: NodeId) -> None:
        """Have one replica more of the model, on the node where it was if that can take it."""
        await self._open(spec, prefer=node_id)

    async def _open(self, spec: ModelSpec, *, prefer: NodeId | None = None) -> LoadJob:
        now = self._clock.now()
        job = LoadJob(
            id=new_load_job_id(),
            model=spec.name,
            revision=spec.revision,
            state=LoadState.PENDING,
            preferred_node_id=prefer,
            retry_at=now,
            created_at=now,
            changed_at=now,
        )
        stored = await self._stores.jobs.open(job)
        self.poke.ring()
        return stored

    async def jobs(self) -> dict[str, LoadJob]:
        """All jobs, open or failed, by model."""
        return {job.model: job for job in await self._stores.jobs.all()}

    async def _loaded(self, spec: ModelSpec, loaded: list[Replica]) -> LoadStatus:
        reachable = [replica for replica in loaded if replica.url]
        if not reachable:
            why, reason = unserved_reason(spec.backend), LoadReason.NOT_REACHABLE
            return LoadStatus(model=spec.name, state=LoadState.FAILED, message=why, reason=reason)
        node = await self._node_name(reachable[0].node_id)
        return LoadStatus(model=spec.name, state=ReplicaState.LOADED, node=node)

    async def _status(self, job: LoadJob) -> LoadStatus:
        wait = max(job.retry_at - self._clock.now(), timedelta(seconds=1))
        return LoadStatus(
            model=job.model,
            state=job.state,
            node="" if job.node_id is None else await self._node_name(job.node_id),
            message=job.message,
            reason=job.reason,
            engine_lines=job.engine_lines,
            progress=self.progress_of(job),
            retry_after=wait if job.state is LoadState.FAILED else timedelta(seconds=5),
        )

    def progress_of(self, job: LoadJob) -> LoadProgress:
        """How far the load is, if this process works on it: other frontends know only that somebody does."""
        phase = self._phases.get(job.model, "")
        if phase == INSTALLING and job.node_id is not None:
            install = self._board.of(OperationId(job.id)).get(job.node_id, NO_PROGRESS)
            left = seconds_left(install, self._clock.monotonic())
            return LoadProgress(
                phase=install.phase or INSTALLING,
                current_bytes=install.current_bytes if install.total_bytes else None,
                total_bytes=install.total_bytes or None,
                eta_seconds=None if left is None else round(left, 1),
            )
        spec = self._models.catalogue.models.get(job.model)
        if phase != ReplicaState.LOADING or spec is None:
            return NO_LOAD_PROGRESS
        return LoadProgress(phase=phase, total_bytes=self._models.size_of(spec) or None)

    async def _node_name(self, id: NodeId) -> str:
        """Empty for a node that is gone."""
        node = await self._stores.nodes.get(id)
        return "" if node is None else node.name

    # The work.

    async def run(self) -> None:
        """Until cancelled: then every load under way is left to whoever comes next."""
        async with asyncio.TaskGroup() as group:

            async def step() -> timedelta | None:
                await self._start_due(group)
                return None if self._next_due is None else max(self._next_due - self._clock.now(), _NOT_BEFORE)

            await poke_or_period(step, poke=self.poke, clock=self._clock, period=PERIOD, name="load jobs")

    async def tick(self) -> None:
        """Work on all that is due, to its end."""
        async with asyncio.TaskGroup() as group:
            await self._start_due(group)

    async def _start_due(self, group: asyncio.TaskGroup) -> None:
        for held in await self.claim():
            group.create_task(self.work(held), name=f"load {held.job.model}")

    async def claim(self) -> list[_Held]:
        """Take what is due and nobody works on."""
        now = self._clock.now()
        held: list[_Held] = []
        waiting = await self._stores.jobs.waiting()
        self._next_due = min((at for job in waiting if (at := due_at(job)) > now), default=None)
        for job in waiting:
            if job.model in self._working or not may_claim(job, now):
                continue
            token = new_lease_token()
            if not await self._stores.jobs.claim(job, token, now=now, until=now + self._policy.lease):
                continue
            spec = self._models.catalogue.models.get(job.model)
            if spec is None or spec.alias_of:
                await self._stores.jobs.drop(job, token, at=now)
                continue
            self._working.add(job.model)
            held.append(_Held(job=job, token=token, spec=spec))
        return held

    async def work(self, held: _Held) -> None:
        """One job from claim to end. What it could not store is found again when its lease has ended."""
        try:
            async with running(self._renew(held), name=f"lease of {held.job.model}"):
                await self._bring_up(held)
        except Exception:
            log.exception("a load broke off", extra={"event": "load.broke_off", "model": held.job.model})
        finally:
            self._working.discard(held.job.model)
            self._phases.pop(held.job.model, None)
            self.poke.ring()

    async def _renew(self, held: _Held) -> None:
        while True:
            await self._clock.sleep(self._policy.lease.total_seconds() / 3)
            until = self._clock.now() + self._policy.lease
            try:
                if not await self._stores.jobs.extend(held.job, held.token, until=until):
                    return
            except CorralError as error:
                shown = {"event": "load.lease_not_renewed", "model": held.job.model}
                log.warning("a lease was not renewed: %s", error, extra=shown)

    async def _bring_up(self, held: _Held) -> None:
        """Try node after node, until one serves or it makes no sense to go on."""
        tried: dict[NodeId, str] = {}
        for _ in range(self._policy.attempts):
            placed = await self._place(held, tried)
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
                if isinstance(error, LoadFailed):
                    break
            else:
                await self._finish(held, loaded, node)
                return
        await self._give_up(held, "; ".join(tried.values()))

    async def _load(self, held: _Held, replica: Replica, node: Node) -> Replica:
        self._phases[held.job.model] = INSTALLING
        policy, now = self._policy, self._clock.now()
        async with self._board.followed(OperationId(held.job.id)):
            installed = await self._loading.install(
                replica, node, held.spec, timeout=policy.install, job=held.job.id, now=now
            )
        self._phases[held.job.model] = ReplicaState.LOADING
        return await self._loading.load(replica, node, held.spec, installed, policy=policy, clock=self._clock)

    async def _place(self, held: _Held, tried: Mapping[NodeId, str]) -> tuple[Replica, Node] | None:
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

    async def _taken_over(self, held: _Held) -> tuple[Replica, Node] | None:
        """The place that whoever held the job before had reserved, if it is still there."""
        if held.job.replica_id is None:
            return None
        replica = await self._stores.replicas.get(held.job.replica_id)
        node = None if replica is None else await self._stores.nodes.get(replica.node_id)
        if replica is None or node is None or replica.state not in LIVE:
            return None
        return replica, node

    def _reservation(self, held: _Held, choice: Placement) -> Replica:
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

    async def _failed_on(self, held: _Held, replica: Replica, error: CorralError) -> tuple[str, ...]:
        """Give the place up; returns what the engine wrote last, if it ran at all."""
        shown = {"event": "load.failed_on_node", "model": held.job.model, "node": replica.node_id}
        log.warning("a load failed: %s", error, extra=shown)
        await self._loading.stop(replica)
        failed = replace(replica, reason=error.message)
        await self._stores.jobs.abandon(held.job, held.token, failed, at=self._clock.now())
        if not isinstance(error, BackendError):
            return ()
        return await self._engines.last_errors(replica.node_id, replica.process_key)

    async def _finish(self, held: _Held, replica: Replica, node: Node) -> None:
        data = {"model": replica.model, "replica": replica.id, "node": node.name, "backend": replica.backend}
        event = Event(kind=EventKind.MODEL_LOADED, at=replica.changed_at, actor=_ACTOR, node_id=node.id, data=data)
        if await self._stores.jobs.finish(held.job, held.token, replica, events=[event]):
            log.info("model loaded", extra={"event": "model.loaded", "model": replica.model, "node": node.name})
            await self._feed.announce()

    async def _wait(self, held: _Held, refusal: PlacementRefusal) -> None:
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

    async def _give_up(self, held: _Held, why: str) -> None:
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
        event = Event(kind=EventKind.MODEL_LOAD_FAILED, at=now, actor=_ACTOR, data=data)
        if await self._stores.jobs.give_back(failed, held.token, at=now, events=[event]):
            log.warning("model not loaded: %s", why, extra={"event": "model.load_failed", "model": held.job.model})
            await self._feed.announce()
