"""Cold loads. Requests wait for a job and never own it: it goes on when they leave, and when this process dies.

`ensure` opens or joins a job of a model and returns at once. The loop claims what is due and works on it: place,
reserve, install, load. For a job that failed, `ensure` returns the reason until its cooldown is over.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import LoadJobId, NodeId, OperationId, new_lease_token, new_load_job_id
from corral.base.tasks import Poke, poke_or_period, running
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.operations.decide.operation import NO_PROGRESS, Progress, seconds_left, speed_of
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.load_job import (
    NO_LOAD_PROGRESS,
    HeldJob,
    LoadJob,
    LoadPolicy,
    LoadProgress,
    LoadState,
    LoadStatus,
    LoadWhy,
    due_at,
    furthest,
    is_late_for_news,
    may_claim,
    seconds_so_far,
)
from corral.frontend.serving.decide.replica import Replica, ReplicaState, barrier
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.loading.load_work import INSTALLING, LoadWork
from corral.frontend.serving.loading.placing import LoadStores
from corral.frontend.serving.staging.service import STAGING, StagingWatch
from corral.wire.models import LoadReason

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=5)
"""Without a ring, and with nothing due before: how long a job that a dying frontend just opened waits for another."""
_NOT_BEFORE: Final = timedelta(milliseconds=50)


class Loads:
    """`ensure` for those who wait, `run` for the work."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        stores: LoadStores,
        models: Models,
        work: LoadWork,
        clock: Clock,
        policy: LoadPolicy,
        board: ProgressBoard,
        feed: Feed,
        *,
        adapter_problem: Callable[[], str],
    ) -> None:
        self._stores = stores
        self._models = models
        self._work = work
        self._clock = clock
        self._policy = policy
        self._board = board
        self._feed = feed
        self._rings_heard = -1
        self._adapter_problem = adapter_problem
        self._working: set[LoadJobId] = set()
        self._next_due: datetime | None = None
        """When the first of the jobs that could not be claimed yet is due, as the last look found them."""
        self.meter = work.meter
        self.poke = Poke()

    async def ensure(self, name: str) -> LoadStatus:
        """Have the model loaded, by this name or an alias; tells how far that is. NotFound for an unknown one."""
        spec = self._models.find(name)
        # Not what was loaded from an earlier configuration: that is about to be ended.
        current = (spec.name, spec.revision, ReplicaState.LOADED)
        job = None
        while job is None:
            living = await self._stores.replicas.living()
            loaded = [replica for replica in living if (replica.model, replica.revision, replica.state) == current]
            if loaded:
                return await self._loaded(spec, loaded)
            job = await self._stores.jobs.open_unless_loaded(self._new_job(spec, LoadWhy.ASKED, None))
        self._work.placing.asked_for(job)
        self.poke.ring()
        return await self._status(job)

    async def restore(self, spec: ModelSpec, node_id: NodeId) -> None:
        """Have a replica of the model loaded on the node where it was, if that can take it; a load that is under way
        will do."""
        await self._stores.jobs.open(self._new_job(spec, LoadWhy.RESTORED, node_id))
        self.poke.ring()

    async def add(
        self,
        spec: ModelSpec,
        *,
        why: LoadWhy,
        count: int = 1,
        prefer: NodeId | None = None,
        seen: FleetSnapshot | None = None,
    ) -> int:
        """Have so many loads of the model under way, whatever is loaded already; how many were begun for it.

        With the fleet that this was decided on, none is begun if a replica of the model was loaded since.
        """
        loaded = None if seen is None else seen.loaded_of(spec.name)
        begun = await self._stores.jobs.add(self._new_job(spec, why, prefer), count=count, seen=loaded)
        if begun:
            self.poke.ring()
        return begun

    async def look_for_room(self) -> None:
        """Something ended: those who wait for room look again at once."""
        await self._stores.jobs.hurry(now=self._clock.now())
        self.poke.ring()

    async def withdraw(self, job: LoadJob) -> bool:
        """Forget a load that nobody works on and nobody wants any more."""
        return await self._stores.jobs.withdraw(job)

    def _new_job(self, spec: ModelSpec, why: LoadWhy, prefer: NodeId | None) -> LoadJob:
        now = self._clock.now()
        return LoadJob(
            id=new_load_job_id(),
            model=spec.name,
            revision=spec.revision,
            why=why,
            state=LoadState.PENDING,
            preferred_node_id=prefer,
            retry_at=now,
            created_at=now,
            changed_at=now,
        )

    async def jobs(self) -> list[LoadJob]:
        """All jobs, open or failed."""
        return await self._stores.jobs.all()

    async def furthest_jobs(self) -> dict[str, LoadJob]:
        """For each model, the job whose progress is shown to waiting requests."""
        by_model: defaultdict[str, list[LoadJob]] = defaultdict(list)
        for job in await self._stores.jobs.all():
            by_model[job.model].append(job)
        return {model: shown_job for model, jobs in by_model.items() if (shown_job := furthest(jobs)) is not None}

    async def status_of(self, name: str) -> LoadStatus | None:
        """How far the load of a model is; None when none is under way, and none failed."""
        job = (await self.furthest_jobs()).get(name)
        return None if job is None else await self._status(job)

    async def _loaded(self, spec: ModelSpec, loaded: list[Replica]) -> LoadStatus:
        """A replica that needs the adapter has a URL soon, unless something is wrong with the adapter."""
        if problem := barrier(loaded, self._adapter_problem()):
            reason = LoadReason.NOT_REACHABLE
            return LoadStatus(model=spec.name, state=LoadState.FAILED, message=problem, reason=reason)
        node = await self._node_name(loaded[0].node_id)
        return LoadStatus(model=spec.name, state=ReplicaState.LOADED, node=node)

    async def _status(self, job: LoadJob) -> LoadStatus:
        now = self._clock.now()
        wait = max(job.retry_at - now, timedelta(seconds=1))
        return LoadStatus(
            model=job.model,
            state=job.state,
            node="" if job.node_id is None else await self._node_name(job.node_id),
            message=job.message,
            reason=job.reason,
            engine_lines=job.engine_lines,
            progress=self.progress_of(job),
            step=job.step or "",
            step_seconds=seconds_so_far(job, now),
            is_permanent=job.is_permanent,
            retry_after=wait if job.state is LoadState.FAILED else timedelta(seconds=5),
        )

    def progress_of(self, job: LoadJob) -> LoadProgress:
        """How far the load is. Of one that another frontend works on, the last that was heard."""
        phase = self._work.phases.get(job.id, "")
        if (watch := self._work.stagings.get(job.id)) is not None:
            return _staging_progress(watch)
        if phase in ("", INSTALLING) and job.node_id is not None and job.state is LoadState.LOADING:
            operation = OperationId(job.id)
            progress_by_node = self._board.of(operation) if phase else self._board.watch(operation)
            return _told_progress(progress_by_node.get(job.node_id, NO_PROGRESS), phase, self._clock.monotonic())
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
        """Run until cancelled; loads under way are then left to the frontend that claims them next."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear_news(), name="news for load jobs")

            async def step() -> timedelta | None:
                await self._start_due(group)
                return None if self._next_due is None else max(self._next_due - self._clock.now(), _NOT_BEFORE)

            await poke_or_period(step, poke=self.poke, clock=self._clock, period=PERIOD, name="load jobs")

    async def _hear_news(self) -> None:
        with self._feed.listener() as news:
            while True:
                await news.wait(self._clock, PERIOD)
                if self._next_due is not None:
                    self.poke.ring()

    async def tick(self) -> None:
        """Work on all that is due, to its end."""
        async with asyncio.TaskGroup() as group:
            await self._start_due(group)

    async def _start_due(self, group: asyncio.TaskGroup) -> None:
        for held in await self.claim():
            group.create_task(self.work(held), name=f"load {held.job.model}")

    async def claim(self) -> list[HeldJob]:
        """Take what is due and nobody works on."""
        now = self._clock.now()
        held: list[HeldJob] = []
        waiting = await self._waiting(now)
        self._next_due = min((at for job in waiting if (at := due_at(job)) > now), default=None)
        for job in waiting:
            if job.id in self._working or not may_claim(job, now, self._policy):
                continue
            token = new_lease_token()
            if not await self._stores.jobs.claim(job, token, now=now, until=now + self._policy.lease):
                continue
            spec = self._models.catalogue.models.get(job.model)
            if spec is None or spec.alias_of:
                await self._stores.jobs.drop(job, token, at=now)
                continue
            self._working.add(job.id)
            held.append(HeldJob(job=job, token=token, spec=spec))
        return held

    async def _waiting(self, now: datetime) -> list[LoadJob]:
        """All that wait. After news of the fleet, such as a node that joined, those without a place look again soon."""
        jobs, rings = self._stores.jobs, self._feed.rings
        waiting = await jobs.waiting()
        if rings != self._rings_heard and any(is_late_for_news(job, now, self._policy) for job in waiting):
            await jobs.bring_forward(now=now, pause=self._policy.look_again)
            waiting = await jobs.waiting()
        self._rings_heard = rings
        return waiting

    async def work(self, held: HeldJob) -> None:
        """One job from claim to end. What it could not store is found again when its lease has ended."""
        try:
            async with running(self._renew(held), name=f"lease of {held.job.model}"):
                await self._work.bring_up(held)
        except Exception:
            log.exception("a load broke off", extra={"event": "load.broke_off", "model": held.job.model})
        finally:
            self._working.discard(held.job.id)
            self._work.phases.pop(held.job.id, None)
            self.poke.ring()

    async def _renew(self, held: HeldJob) -> None:
        while True:
            await self._clock.sleep(self._policy.lease.total_seconds() / 3)
            until = self._clock.now() + self._policy.lease
            try:
                if not await self._stores.jobs.extend(held.job, held.token, until=until):
                    return
            except CorralError as error:
                details = {"event": "load.lease_not_renewed", "model": held.job.model}
                log.warning("a lease was not renewed: %s", error, extra=details)


def _staging_progress(watch: StagingWatch) -> LoadProgress:
    count, speed = watch.count, watch.speed()
    remaining_bytes = count.total_bytes - count.present_bytes
    return LoadProgress(
        phase=STAGING,
        current_bytes=count.present_bytes if count.total_bytes else None,
        total_bytes=count.total_bytes or None,
        bytes_per_second=None if speed is None else round(speed, 1),
        eta_seconds=round(remaining_bytes / speed, 1) if speed and remaining_bytes > 0 else None,
        file_index=min(count.present_files + 1, count.total_files) or None,
        total_files=count.total_files or None,
        file=count.file,
    )


def _told_progress(progress: Progress, phase: str, now: float) -> LoadProgress:
    remaining_seconds, speed = seconds_left(progress, now), speed_of(progress, now)
    return LoadProgress(
        phase=progress.phase or phase,
        current_bytes=progress.current_bytes if progress.total_bytes else None,
        total_bytes=progress.total_bytes or None,
        bytes_per_second=round(speed, 1) if speed else None,
        eta_seconds=None if remaining_seconds is None else round(remaining_seconds, 1),
        file_index=progress.file_index or None,
        total_files=progress.total_files or None,
    )
