"""One worker that exists only as its messages, and what may happen to it."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Final

from corral.base.clock import SystemClock
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.tasks import task_group
from corral.bus.port import Bus
from tests.kit.simulated_backends import Faults, SimulatedBackends
from tests.kit.simulated_node import SimulatedNode

_CLOCK: Final = SystemClock()
_WORK_SECONDS: Final = (0.02, 0.5)
_MISHAPS_PER_SECOND: Final = 2.0
_AGAIN_SECONDS: Final = 0.1


class Worker:
    """One of them."""

    def __init__(self, node: SimulatedNode, urls: Sequence[str], bus: Bus, *, is_corral: bool) -> None:
        self.name = node.name
        self.is_corral = is_corral
        self.is_afflicted = False
        self.returned_at: datetime | None = None
        self._node = node
        self._urls = urls
        self._bus = bus
        self._is_away = False
        self._backends: SimulatedBackends | None = None

    @property
    def backends(self) -> SimulatedBackends:
        if self._backends is None:
            raise RuntimeError(f"{self.name} has not joined")
        return self._backends

    async def join(self) -> None:
        await self._insist(self._node.register)
        if self._backends is None:
            self._backends = SimulatedBackends(self._node.node_id, _CLOCK, self.is_corral)
        await self._backends.listen(self._bus)
        self._is_away = False

    async def live(self, interval_seconds: float) -> None:
        """Beat, and go to another frontend when this one does not answer."""
        while True:
            if not self._is_away:
                await self._beat()
            await asyncio.sleep(interval_seconds)

    async def leave(self) -> None:
        """Off in the middle of whatever it does."""
        self._is_away = True
        self._node.restart()
        self.backends.die()
        await self.backends.stop()

    async def come_back(self) -> None:
        await self.join()
        await self._insist(self._node.beat)
        self.returned_at = _CLOCK.now()

    def freeze(self) -> None:
        self._is_away = True
        self.backends.gate.clear()

    def thaw(self) -> None:
        self._is_away = False
        self.backends.gate.set()

    async def behave(self, faults: Faults, *, work_seconds: float) -> None:
        self.backends.faults = faults
        self.backends.work_seconds = work_seconds

    async def lose_nats(self) -> None:
        """Lose NATS: heartbeats continue, but no message on the bus arrives."""
        await self.backends.stop()

    async def regain_nats(self) -> None:
        await self.backends.listen(self._bus)

    async def _beat(self) -> None:
        try:
            await self._node.beat()
        except PeerUnavailable:
            self._go_elsewhere()
        except PeerRefused:
            await self._insist(self._node.register)

    async def _insist(self, say: Callable[[], Coroutine[None, None, object]]) -> None:
        while True:
            try:
                await say()
                return
            except PeerUnavailable:
                self._go_elsewhere()
                await asyncio.sleep(_AGAIN_SECONDS)

    def _go_elsewhere(self) -> None:
        self._node.url = self._urls[(self._urls.index(self._node.url) + 1) % len(self._urls)]


class Mishaps:
    """Random failures of workers, one at a time for each.

    Unless answers are lost, there is always an answer, or a restart that shows that there will be none.
    """

    def __init__(self, workers: Sequence[Worker], *, seed: int, late_seconds: float, loses_answers: bool) -> None:
        self._workers = workers
        self._random = random.Random(seed)
        self._late_seconds = late_seconds
        self._loses_answers = loses_answers
        self._over = asyncio.Event()

    def end(self) -> None:
        """Nothing new begins; `run` returns when what has begun is over too."""
        self._over.set()

    async def run(self) -> None:
        for worker in self._workers:
            worker.backends.work_seconds = self._random.uniform(*_WORK_SECONDS)
        async with task_group() as group:
            while not await self._is_over_within(self._random.expovariate(_MISHAPS_PER_SECOND)):
                worker = self._random.choice(self._workers)
                if not worker.is_afflicted:
                    worker.is_afflicted = True
                    group.create_task(self._afflict(worker), name=f"trouble of {worker.name}")

    async def _is_over_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._over.wait()
        except TimeoutError:
            return False

    async def _afflict(self, worker: Worker) -> None:
        troubles = {self._freeze: 3, self._lie: 4, self._delay: 2}
        if worker.is_corral or self._loses_answers:
            troubles[self._restart] = 4
        if self._loses_answers:
            troubles[self._deafen] = 2
        await self._random.choices(list(troubles), list(troubles.values()))[0](worker)
        worker.backends.work_seconds = self._random.uniform(*_WORK_SECONDS)
        worker.is_afflicted = False

    async def _restart(self, worker: Worker) -> None:
        await worker.leave()
        await asyncio.sleep(self._random.choice([0.1, 0.5, 2.0, 6.0]))
        await worker.come_back()

    async def _freeze(self, worker: Worker) -> None:
        worker.freeze()
        await asyncio.sleep(self._random.uniform(0.2, 2.5))
        worker.thaw()

    async def _deafen(self, worker: Worker) -> None:
        await worker.lose_nats()
        await asyncio.sleep(self._random.uniform(0.2, 2.0))
        await worker.regain_nats()

    async def _lie(self, worker: Worker) -> None:
        lies = [Faults(boasts=True), Faults(modest=True), Faults(twice=True), Faults(refusal="disk full")]
        worker.backends.faults = self._random.choice([*lies, Faults(silent=True)] if self._loses_answers else lies)
        await asyncio.sleep(self._random.uniform(0.2, 2.0))
        worker.backends.faults = Faults()

    async def _delay(self, worker: Worker) -> None:
        worker.backends.work_seconds = self._late_seconds
        await asyncio.sleep(0.5)
