"""Assigns requests to replicas: immediately if one has room, from a fair queue if not, after a load if none exists."""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from corral.base.errors import CorralError
from corral.base.tasks import end_tasks, start_task
from corral.gateway.answers import GatewayRefusal
from corral.gateway.config import GatewayConfig
from corral.gateway.prefixes import PrefixMemory
from corral.gateway.upstream import Origin
from corral.gateway.view import Directory, UpstreamReplica
from corral.wire.view import Loading

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """A request that needs a replica of a model."""

    model: str
    owner: str
    """The key that the fair queue takes turns by."""
    excluded: frozenset[str]
    """Ids of replicas that must not be asked again for this request."""

    @property
    def scopes(self) -> Collection[str]:
        """Scopes of the API key, which decide how much of a load's status the client may see."""

    def prompt_chain(self) -> Sequence[int]:
        """The links of its prompt; none where nothing of it is worth remembering."""

    def assign(self, replica: UpstreamReplica) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def refuse(self, refusal: GatewayRefusal) -> None: ...


class Ensurer(Protocol):
    """Port to control for loading a model."""

    async def ensure(self, model: str) -> Loading: ...


class Tasks:
    """Owns short tasks of requests. Each ends by itself or with its request; those still running are cancelled with the
    process."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = start_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        await end_tasks(*self._running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task failed", exc_info=error, extra={"event": "task.failed", "task": task.get_name()})


W = TypeVar("W")


class FairQueue(Generic[W]):
    """Waiters in order of arrival, with owners taking turns: an owner with many requests does not delay the others."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[W]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, owner: str, waiter: W) -> None:
        self._lines.setdefault(owner, deque()).append(waiter)

    def first(self) -> W | None:
        return next(iter(self._lines.values()))[0] if self._lines else None

    def pop(self) -> W:
        """Remove and return the first waiter. Its owner moves to the end of the line."""
        owner, line = next(iter(self._lines.items()))
        waiter = line.popleft()
        del self._lines[owner]
        if line:
            self._lines[owner] = line
        return waiter

    def remove(self, owner: str, waiter: W) -> None:
        """Remove a waiter; do nothing when it is not in the queue."""
        line = self._lines.get(owner)
        if line is not None and waiter in line:
            line.remove(waiter)
            if not line:
                del self._lines[owner]

    def all(self) -> list[W]:
        return [waiter for line in self._lines.values() for waiter in line]


class RequestDispatcher:
    """Assigns waiters to replicas. All decisions are synchronous: between two awaits no slot is free while a waiter
    could use it."""

    def __init__(self, config: GatewayConfig, directory: Directory, ensurer: Ensurer, tasks: Tasks) -> None:
        self._config = config
        self._directory = directory
        self._ensurer = ensurer
        self._tasks = tasks
        self._prefixes = PrefixMemory()
        self._queues: dict[str, FairQueue[Waiter]] = {}
        self._stranded: dict[Waiter, GatewayRefusal] = {}
        self._failed_at: dict[Waiter, Mapping[str, Origin | None]] = {}
        """Where the replicas were that must not be asked again, for those who are stranded."""
        self._awaiting_fleet: set[Waiter] = set()
        """Stranded requests that an external engine did not answer."""
        self._loading: dict[str, Loading] = {}
        self._ensuring: dict[str, asyncio.Task[None]] = {}
        self._waking: dict[str, asyncio.Task[None]] = {}
        directory.on_change.append(self._view_changed)

    def submit(self, waiter: Waiter) -> None:
        """Assign the request to a replica, or queue it. Raise `GatewayRefusal` when the queue is full."""
        model = waiter.model
        queue = self._queues.get(model)
        if not queue:
            replica = self._pick(waiter)
            if replica is not None:
                waiter.assign(replica)
                return
        if queue is None:
            queue = self._queues[model] = FairQueue()
        if len(queue) >= self._config.limits.queue:
            raise GatewayRefusal.busy(429, f"too many requests wait for the model {model}", code="queue_full")
        queue.add(waiter.owner, waiter)
        if self._directory.serves(model):
            waiter.wait(self._config.time_outs.queue)
        else:
            waiter.wait(self._config.time_outs.load)
            self._ensure(model)

    def strand(self, waiter: Waiter, refusal: GatewayRefusal) -> None:
        """Keep a request whose only replica closed the connection.

        The replica is probably gone; control has been notified and will load another. The request waits outside the
        queue, because the replica may still work for others.
        """
        self._stranded[waiter] = refusal
        self._failed_at[waiter] = {id: self._directory.origin_of(id) for id in waiter.excluded}
        waiter.wait(self._config.time_outs.replacement)
        if not self._directory.serves(waiter.model):
            self._submit_stranded(waiter)

    def await_fleet(self, waiter: Waiter, refusal: GatewayRefusal) -> None:
        """Keep a request that no engine elsewhere answered until the fleet has loaded the model itself."""
        self._stranded[waiter] = refusal
        self._awaiting_fleet.add(waiter)
        waiter.wait(self._config.time_outs.load)
        self.wake_fleet(waiter.model)

    def wake_fleet(self, model: str) -> None:
        """Have the fleet load a model that an engine elsewhere answers for meanwhile. Control is asked now and then."""
        if model not in self._waking and not self._directory.has_fleet_replica(model):
            self._waking[model] = self._tasks.start(self._keep_waking(model), name=f"wake {model}")

    def withdraw(self, waiter: Waiter) -> None:
        """Remove a request that no longer waits, for any reason."""
        self._unstrand(waiter)
        queue = self._queues.get(waiter.model)
        if queue is not None:
            queue.remove(waiter.owner, waiter)
            if not queue:
                del self._queues[waiter.model]

    def freed(self, model: str) -> None:
        """A slot at a replica of this model became free: assign the next waiter."""
        if model in self._queues:
            self._pump(model)

    def waiting(self) -> dict[str, int]:
        counts = Counter(waiter.model for waiter in self._stranded)
        counts.update({model: len(queue) for model, queue in self._queues.items()})
        return dict(counts)

    def why_waited(self, waiter: Waiter) -> GatewayRefusal:
        """Return the refusal for a request whose waiting time is over."""
        if waiter in self._stranded:
            return self._stranded[waiter]
        model = waiter.model
        if self._directory.serves(model):
            return GatewayRefusal.busy(
                503, f"all replicas of the model {model} are busy", code="model_busy", retry_after=5
            )
        loading = self._loading.get(model)
        if loading is None:
            text = f"the model {model} is not loaded, and control did not answer"
            return GatewayRefusal.busy(503, text, code="control_unavailable")
        return GatewayRefusal.loading(loading, waiter.scopes)

    def _view_changed(self) -> None:
        serves = self._directory.serves
        for waiter in list(self._stranded):
            self._forgive(waiter)
            # Submit it again when another replica exists, or when none is left and a load is needed.
            if serves(waiter.model, waiter.excluded) or not serves(waiter.model):
                self._submit_stranded(waiter)
        for model in list(self._queues):
            self._pump(model)
            if model in self._queues and not serves(model):
                self._ensure(model)

    def _forgive(self, waiter: Waiter) -> None:
        """A replica that is elsewhere by now, as behind an adapter that was started again, may be asked again."""
        for id, origin in self._failed_at.get(waiter, {}).items():
            if self._directory.origin_of(id) not in (None, origin):
                waiter.excluded -= {id}

    def _submit_stranded(self, waiter: Waiter) -> None:
        """Where no replica is left, the next one is new, or the same with a URL that works again: none is excluded."""
        self._unstrand(waiter)
        if not self._directory.serves(waiter.model):
            waiter.excluded = frozenset()
        try:
            self.submit(waiter)
        except GatewayRefusal as refusal:
            waiter.refuse(refusal)

    def _unstrand(self, waiter: Waiter) -> None:
        self._stranded.pop(waiter, None)
        self._failed_at.pop(waiter, None)
        self._awaiting_fleet.discard(waiter)

    def _pump(self, model: str) -> None:
        queue = self._queues.get(model)
        while queue and (first := queue.first()) is not None:
            replica = self._pick(first)
            if replica is None:
                return
            queue.pop()
            if not queue:
                self._queues.pop(model, None)
            first.assign(replica)
            queue = self._queues.get(model)

    def _pick(self, waiter: Waiter) -> UpstreamReplica | None:
        """The replica that knows the beginning of the prompt if it is not much busier, else the least busy one."""
        model, directory = waiter.model, self._directory
        affinity = directory.affinities.get(model)
        if affinity is None or not (chain := waiter.prompt_chain()):
            return directory.pick(model, waiter.excluded)
        now = asyncio.get_running_loop().time()
        match = self._prefixes.find(model, chain, since=now - affinity.seconds)
        replica = None
        if match is not None and match.share >= affinity.min_match:
            replica = directory.pick_known(model, match.replica, waiter.excluded)
        if replica is None:
            replica = directory.pick(model, waiter.excluded)
        if replica is not None:
            self._prefixes.keep(model, chain, replica.id, now=now)
        return replica

    # Loading models that have no replica.

    def _ensure(self, model: str) -> None:
        """Ask control for the model until nobody waits for it. One loop per model, however many requests wait."""
        if model not in self._ensuring:
            self._ensuring[model] = self._tasks.start(self._keep_asking(model), name=f"ensure {model}")

    async def _keep_asking(self, model: str) -> None:
        try:
            while model in self._queues and not self._directory.serves(model):
                try:
                    loading = self._loading[model] = await self._ensurer.ensure(model)
                except CorralError as error:
                    self._loading.pop(model, None)
                    log.info(
                        "control was not asked: %s", error, extra={"event": "gateway.ensure_failed", "model": model}
                    )
                else:
                    if loading.state == "failed":
                        self._refuse_all(model, loading)
                if model in self._queues:
                    await asyncio.sleep(self._config.ensure_period.total_seconds())
        finally:
            self._ensuring.pop(model, None)
            self._loading.pop(model, None)

    async def _keep_waking(self, model: str) -> None:
        """Ask control for the model once, and again as long as requests wait for the fleet that no engine answered."""
        try:
            is_needed = True
            while is_needed:
                with contextlib.suppress(CorralError):  # a waiting client asks again
                    loading = await self._ensurer.ensure(model)
                    if loading.state == "failed":
                        self._refuse_awaiting(model, loading)
                await asyncio.sleep(self._config.ensure_period.total_seconds())
                is_needed = bool(self._awaiting(model)) and not self._directory.has_fleet_replica(model)
        finally:
            self._waking.pop(model, None)

    def _awaiting(self, model: str) -> list[Waiter]:
        return [waiter for waiter in self._stranded if waiter.model == model and waiter in self._awaiting_fleet]

    def _refuse_awaiting(self, model: str, loading: Loading) -> None:
        for waiter in self._awaiting(model):
            self._unstrand(waiter)
            waiter.refuse(GatewayRefusal.loading(loading, waiter.scopes))

    def _refuse_all(self, model: str, loading: Loading) -> None:
        queue = self._queues.pop(model, None)
        for waiter in [] if queue is None else queue.all():
            waiter.refuse(GatewayRefusal.loading(loading, waiter.scopes))
