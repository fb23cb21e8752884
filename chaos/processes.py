"""Faults against real processes: kill -9, SIGSTOP, and servers that go away, while people act and workers beat.

Time is real here, so rounds are short and few things are judged by the clock. What must hold after each step is what
the record and the list say; at the end everything is mended, and everybody must be healthy again under its own id.
"""

import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from chaos import invariants
from chaos.databases import mortal_postgres
from chaos.round import Workshop
from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.store.secrets import SecretsKey
from tests.kit.admin_api import open_session
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.postgres import PostgresServer
from tests.kit.processes import FrontendProcess, WorkerProcess, ready_together
from tests.kit.waiting import eventually

FRONTENDS: Final = 2
WORKERS: Final = ("w1", "w2")
INTERVAL: Final = "500ms"

Act = Callable[[], Awaitable[str]]


@dataclass(kw_only=True)
class Machines:
    """Everything that can be broken."""

    frontends: list[FrontendProcess]
    workers: list[WorkerProcess]
    nats: PlainNats
    postgres: PostgresServer
    suspended: set[str] = field(default_factory=set)
    has_nats: bool = True
    has_database: bool = True


async def killed(workshop: Workshop) -> None:
    """Two frontends on PostgreSQL, two workers, one NATS server."""
    async with AsyncExitStack() as stack:
        machines = await _start(workshop, stack)
        fleet = Fleet(workshop, machines)
        await fleet.begin()
        for _ in range(workshop.steps):
            await fleet.step()
        await fleet.mend_and_judge()


async def _start(workshop: Workshop, stack: AsyncExitStack) -> Machines:
    url, postgres = await stack.enter_async_context(mortal_postgres(workshop.databases))
    nats = await stack.enter_async_context(PlainNats(workshop.directory / "nats", port=lasting_port()))
    session = await stack.enter_async_context(open_session())
    frontends = [
        await stack.enter_async_context(process)
        for process in _frontends(workshop, session, {"CORRAL_DATABASE": url, "CORRAL_NATS_URL": nats.frontend_url})
    ]
    token = await ready_together(frontends)
    of_workers = {
        "CORRAL_REGISTER_TO": ",".join(frontend.url for frontend in frontends),
        "CORRAL_REGISTRATION_TOKEN": token,
        "CORRAL_NATS_URL": nats.worker_url,
        "CORRAL_HEARTBEAT_INTERVAL": INTERVAL,
        "CORRAL_REGISTRATION_RETRY": "1s",
    }
    workers = [
        await stack.enter_async_context(WorkerProcess(name, workshop.directory / name, of_workers)) for name in WORKERS
    ]
    return Machines(frontends=frontends, workers=workers, nats=nats, postgres=postgres)


def _frontends(workshop: Workshop, session: aiohttp.ClientSession, shared: dict[str, str]) -> list[FrontendProcess]:
    key = SecretsKey.generate().to_text()
    return [
        FrontendProcess(
            f"f{number}",
            session,
            {**shared, "CORRAL_SECRETS_KEY": key, "CORRAL_DATA": str(workshop.directory / f"f{number}")},
        )
        for number in range(1, FRONTENDS + 1)
    ]


class Fleet:
    """Breaks the machines, and knows what must be true of them nevertheless."""

    def __init__(self, workshop: Workshop, machines: Machines) -> None:
        self._random = workshop.random
        self._tell = workshop.story.tell
        self._machines = machines
        self._numbers = itertools.count(1)
        self._labels: dict[NodeId, dict[str, str]] = {}
        self._ids: dict[str, NodeId] = {}

    async def begin(self) -> None:
        """Everybody joined and was approved."""
        frontend = self._machines.frontends[0]

        async def all_joined() -> bool:
            return len(await frontend.nodes()) == len(WORKERS)

        await eventually(all_joined, "all workers to join")
        for node_id in await frontend.nodes():
            await frontend.approve(node_id)
        await self._check()

    async def step(self) -> None:
        act = self._random.choice(self._possible())
        self._tell(await act())
        if self._machines.has_database:
            await self._check()

    def _possible(self) -> list[Act]:
        machines = self._machines
        acts: list[Act] = [self._label_someone] * 3 if machines.has_database else []
        acts += [self._kill_worker, self._suspend_worker]
        acts += [self._wake_worker] * 2 if machines.suspended else []
        acts += [self._kill_nats] if machines.has_nats else [self._start_nats] * 2
        acts += [self._kill_frontend, self._kill_database] if machines.has_database else [self._start_database] * 4
        return acts

    async def _kill_worker(self) -> str:
        worker = self._random.choice(self._machines.workers)
        await worker.kill()
        self._machines.suspended.discard(worker.name)
        worker.start()
        return f"{worker.name} is killed and started again"

    async def _suspend_worker(self) -> str:
        worker = self._random.choice(self._machines.workers)
        worker.pause()
        self._machines.suspended.add(worker.name)
        return f"{worker.name} is suspended"

    async def _wake_worker(self) -> str:
        for worker in self._machines.workers:
            worker.go_on()
        self._machines.suspended.clear()
        return "whoever was suspended goes on"

    async def _kill_frontend(self) -> str:
        frontend, other = self._random.sample(self._machines.frontends, FRONTENDS)
        await other.until_serving()
        await frontend.kill()
        await other.nodes()
        frontend.start()
        return f"{frontend.name} is killed and started again"

    async def _kill_nats(self) -> str:
        await self._machines.nats.kill()
        self._machines.has_nats = False
        return "NATS dies"

    async def _start_nats(self) -> str:
        await self._machines.nats.start()
        self._machines.has_nats = True
        return "NATS starts"

    async def _kill_database(self) -> str:
        self._machines.postgres.kill()
        self._machines.has_database = False
        return "PostgreSQL dies"

    async def _start_database(self) -> str:
        self._machines.postgres.start()
        self._machines.has_database = True
        return "PostgreSQL starts"

    async def _label_someone(self) -> str:
        frontend = await self._serving()
        node_id = self._random.choice(sorted(await frontend.nodes()))
        label = f"l{next(self._numbers)}"
        await frontend.label(node_id, {label: "x"})
        self._labels.setdefault(node_id, {})[label] = "x"
        return f"somebody writes {label} on {node_id[:4]} at {frontend.name}"

    async def _serving(self) -> FrontendProcess:
        """Any frontend that answers; there is always one while the database is there."""

        async def find() -> FrontendProcess | None:
            for frontend in self._random.sample(self._machines.frontends, FRONTENDS):
                if await frontend.answers("/api/v1/version") == 200:
                    return frontend
            return None

        found = await eventually(find, "a frontend that serves", seconds=60)
        assert found is not None
        return found

    async def _check(self) -> None:
        frontend = await self._serving()
        nodes, record = await frontend.nodes(), await frontend.record()
        invariants.record_is_sound(record)
        invariants.approval_was_given(nodes, record)
        invariants.labels_are_kept(self._labels, nodes)
        self._ids = invariants.ids_are_kept(self._ids, nodes, record)

    async def mend_and_judge(self) -> None:
        """Everything works again: then everybody is healthy, whichever frontend one asks."""
        if not self._machines.has_database:
            await self._start_database()
        if not self._machines.has_nats:
            await self._start_nats()
        await self._wake_worker()
        for frontend in self._machines.frontends:
            await frontend.until_ready()
            await self._until_all_are_healthy(frontend)
        await self._check()

    async def _until_all_are_healthy(self, frontend: FrontendProcess) -> None:
        async def all_healthy() -> bool:
            return {node.status for node in (await frontend.nodes()).values()} == {NodeStatus.HEALTHY.value}

        await eventually(all_healthy, f"everybody to be healthy again at {frontend.name}", seconds=60)
