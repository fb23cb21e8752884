"""Control, NATS and PostgreSQL, one after another and all at once: killed, kept down under load, started again.

Nothing restarts them, as each was started singly. Loaded models must answer all the time, by the same processes:
nothing is loaded again, and no replica forgotten because of the gap. Heartbeats are so short that every outage is
longer than the silence after which a node counts as offline.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from chaos.databases import mortal_postgres
from chaos.round import Workshop
from corral.base.tasks import running
from corral.frontend.record.decide import EventKind
from corral.frontend.serving import replica_health
from tests.kit.admin_api import AdminAnswer
from tests.kit.load_clients import StreamRequest, counted, under_load
from tests.kit.postgres import PostgresServer
from tests.kit.serving import WORKERS, ServingFleet, serving_fleet

CLIENTS: Final = 4
_LOOK_SECONDS: Final = 0.25
"""Between two questions to the admin API while something is down."""
_AFTERMATH_SECONDS: Final = (replica_health.REPORTS + 0.5) * replica_health.PERIOD.total_seconds()
"""By then control has compared all replicas with their nodes' reports as often as it takes to lose one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Something that can be away."""

    name: str
    kill: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]


async def one_after_another(workshop: Workshop) -> None:
    """Each step is one outage."""
    async with AsyncExitStack() as stack:
        url, postgres = await stack.enter_async_context(mortal_postgres(workshop.databases))
        fleet = await stack.enter_async_context(serving_fleet(workshop.directory, database=url))
        question = fleet.question()
        first = await question.ask()
        assert first.is_served, first
        before = await _what_serves(fleet)
        for server in itertools.islice(itertools.cycle(_servers(fleet, postgres)), workshop.steps):
            await _outage(workshop, fleet, question, server)
        async with under_load(question, clients=CLIENTS) as load:
            await asyncio.sleep(_AFTERMATH_SECONDS)
        assert all(answer.is_served for answer in load.answers), counted(load.answers)
        after = await _what_serves(fleet)
        assert after == before, f"before {before}, after {after}"
        workshop.story.measure(f"the same {len(after[1])} processes serve, nothing was loaded again, nothing was lost")


def _servers(fleet: ServingFleet, postgres: PostgresServer) -> list[Server]:
    async def kill_postgres() -> None:
        await asyncio.to_thread(postgres.kill)

    async def start_postgres() -> None:
        postgres.start()  # in this thread: the kernel ends the server with the thread that started it

    async def start_control() -> None:
        fleet.control.start()

    single = [
        Server(name="control", kill=fleet.control.kill, start=start_control),
        Server(name="NATS", kill=fleet.nats.kill, start=fleet.nats.start),
        Server(name="PostgreSQL", kill=kill_postgres, start=start_postgres),
    ]

    async def kill_all() -> None:
        for server in single:
            await server.kill()

    async def start_all() -> None:
        for server in reversed(single):
            await server.start()

    return [*single, Server(name="control, NATS and PostgreSQL together", kill=kill_all, start=start_all)]


async def _outage(workshop: Workshop, fleet: ServingFleet, question: StreamRequest, server: Server) -> None:
    """The load begins before it and ends when everything is well again."""
    async with under_load(question, clients=CLIENTS) as load:
        await load.until_answered(CLIENTS)
        admin: Counter[str] = Counter()
        await load.until_under_way(CLIENTS)
        await server.kill()
        down = time.monotonic()
        async with running(_look(fleet, admin), name="the admin API"):
            await asyncio.sleep(workshop.seconds)
        up = time.monotonic()
        await server.start()
        await fleet.control.until_ready()
        await fleet.until_healthy(*WORKERS)
        back = time.monotonic()
        await load.until_answered(len(load.answers) + CLIENTS)
    served = sum(answer.is_served for answer in load.answers)
    said = " and ".join(f"{answer} {times} times" for answer, times in admin.most_common())
    workshop.story.measure(
        f"{server.name} away for {up - down:.0f} s: {served} of {len(load.answers)} requests served "
        f"({100 * served / len(load.answers):.1f} %); the admin API said {said}; "
        f"all healthy {back - up:.1f} s after its start"
    )
    assert served == len(load.answers), counted(load.answers)


async def _look(fleet: ServingFleet, said: Counter[str]) -> None:
    """Return what an administrator sees at the public port."""
    while True:
        try:
            answer = await fleet.gateway.call("GET", "/api/v1/nodes")
            said[f"{answer.status} {_message(answer)!r}" if answer.status >= 400 else str(answer.status)] += 1
        except (aiohttp.ClientError, OSError):
            said["nothing"] += 1
        await asyncio.sleep(_LOOK_SECONDS)


def _message(answer: AdminAnswer) -> str:
    return str(msgspec.json.decode(answer.body)["error"]["message"])


async def _what_serves(fleet: ServingFleet) -> tuple[list[str], dict[int, str], int, int]:
    """Replicas, processes, and how often anything was loaded or lost."""
    replicas = [f"{replica.id} {replica.url}" for replica in await fleet.loaded()]
    loads, losses = await fleet.events(EventKind.MODEL_LOADED), await fleet.events(EventKind.REPLICA_LOST)
    return replicas, fleet.backend_processes(), len(loads), len(losses)
