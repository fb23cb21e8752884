"""Frontends are killed, again and again, while people install, upgrade and delete backends on twenty wild workers.

Each step is a SIGKILL: a third of them on SQLite, which serves one, the rest on PostgreSQL with three. One of those is
a whole frontend; of the others only control runs, which alone has a part in operations and is back in half the time.
NATS and PostgreSQL die as well. Then all is mended, and what is on the disks is compared with what people were told.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Final

from chaos import verdict
from chaos.databases import mortal_postgres
from chaos.operation_fleet import BACKENDS, Fleet, Plan, history_of, open_fleet, operation_at
from chaos.people import Ledger, Person
from chaos.round import Workshop
from chaos.workers import Join, Look, Tame, Wild
from corral.base.tasks import task_group
from corral.frontend.operations.decide.operation import OperationState
from corral.wire.operation_views import OperationView
from tests.kit.postgres import PostgresServer
from tests.kit.processes import HttpProcess
from tests.kit.waiting import eventually

CORRAL: Final = [f"c{number:02}" for number in range(12)]
LOCALAI: Final = [f"l{number:02}" for number in range(8)]
_REST_SECONDS: Final = 300.0
"""What it may take to come to rest: leases, doubts and lost messages end one after the other."""
_LOOK_SECONDS: Final = 0.5
_ACCEPT_SECONDS: Final = 120.0
_OVER: Final = frozenset({OperationState.DONE.value, OperationState.CANCELLED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long what takes."""

    timeout_seconds: float
    """Timeout of all requests to workers."""
    late_seconds: float
    """What a slow worker takes; after twice the time-out it would be asked again."""
    loses_answers: bool
    """Whether servers die, and workers forget to answer."""


HASTY: Final = Pace(timeout_seconds=6.0, late_seconds=7.5, loses_answers=True)
CALM: Final = Pace(timeout_seconds=30.0, late_seconds=1.0, loses_answers=False)
"""Nothing takes longer than is waited for, on the slowest machine, and few things have to be waited for."""


async def killed(workshop: Workshop) -> None:
    on_sqlite = workshop.steps // 3
    async with workshop.databases.fresh_url("sqlite") as url:
        await _round(workshop, "sqlite", _plan(url, None, HASTY), HASTY, kills=on_sqlite)
    async with mortal_postgres(workshop.databases) as (url, postgres):
        await _round(workshop, "postgres", _plan(url, postgres, HASTY), HASTY, kills=workshop.steps - on_sqlite)


async def killed_calmly(workshop: Workshop) -> None:
    """Kill at moments without time pressure. On PostgreSQL only."""
    async with mortal_postgres(workshop.databases) as (url, postgres):
        await _round(workshop, "postgres", _plan(url, postgres, CALM), CALM, kills=workshop.steps)


def _plan(url: str, postgres: PostgresServer | None, pace: Pace) -> Plan:
    return Plan(
        database_url=url,
        postgres=postgres,
        frontends=() if postgres is None else ("f1",),
        controls=("c1",) if postgres is None else ("c1", "c2"),
        corral=CORRAL,
        localai=LOCALAI,
        interval_seconds=1.0,
        timeout_seconds=pace.timeout_seconds,
    )


async def _round(workshop: Workshop, name: str, plan: Plan, pace: Pace, *, kills: int) -> None:
    async with open_fleet(workshop.directory / name, plan) as fleet:
        ledger = Ledger()
        breaker = Breaker(workshop, fleet, ledger, kills_servers=pace.loses_answers)
        await fleet.workers.do(Join())
        seed = workshop.random.randrange(1_000_000)
        await fleet.workers.do(Wild(seed=seed, late_seconds=pace.late_seconds, loses_answers=pace.loses_answers))
        await _live(workshop, fleet, ledger, breaker, kills=kills)
        await fleet.workers.do(Tame())
        began = time.monotonic()
        await _rest(fleet)
        rested = time.monotonic() - began
        workshop.story.measure(f"{name}: {await _judge(fleet, ledger)}; {breaker.told}; at rest after {rested:.0f} s")


async def _live(workshop: Workshop, fleet: Fleet, ledger: Ledger, breaker: "Breaker", *, kills: int) -> None:
    """People act for as long as something is broken."""
    nodes = [one.node_id for one in (await fleet.workers.do(Look())).values()]
    people = [
        Person(name, workshop.random.randrange(1_000_000), ledger, frontends=fleet.frontends, backends=backends)
        for name, backends in (("ann", BACKENDS[:2]), ("bob", BACKENDS[2:]))
    ]
    over = asyncio.Event()
    async with task_group() as group:
        for person in people:
            group.create_task(person.act_until(over, nodes))
        await breaker.kill(kills)
        over.set()


class Breaker:
    """Kills frontends, and now and then a server that they need."""

    def __init__(self, workshop: Workshop, fleet: Fleet, ledger: Ledger, *, kills_servers: bool) -> None:
        self._random = random.Random(workshop.random.randrange(1_000_000))
        self._tell = workshop.story.tell
        self._fleet = fleet
        self._ledger = ledger
        self._kills_servers = kills_servers
        self._kills = 0
        self._nats = 0
        self._postgres = 0

    @property
    def told(self) -> str:
        return f"killed: {self._kills} frontends, {self._nats} times NATS, {self._postgres} times PostgreSQL"

    async def kill(self, times: int) -> None:
        """One frontend after the other; each is started again at once."""
        for number in range(times):
            frontend = self._fleet.frontends[number % len(self._fleet.frontends)]
            await self._choose_moment(frontend)
            await frontend.kill()
            frontend.start()
            self._kills += 1
            self._tell(f"{frontend.name} is killed and started again")
            if self._kills_servers:
                await self._maybe_kill_a_server()

    async def _choose_moment(self, frontend: HttpProcess) -> None:
        """Most often soon after something was accepted, sometimes while it starts."""
        if self._random.random() < 0.15:
            await asyncio.sleep(self._random.uniform(0.0, 1.5))
            return
        known = len(self._ledger.wishes)

        async def is_something_new() -> bool:
            return len(self._ledger.wishes) > known

        await frontend.until_ready()
        await eventually(is_something_new, "an operation to be accepted", seconds=_ACCEPT_SECONDS)
        longest = self._random.choices([0.3, 1.0, 8.0], [12, 7, 1])[0]
        await asyncio.sleep(self._random.uniform(0.0, longest))

    async def _maybe_kill_a_server(self) -> None:
        what = self._random.random()
        if what < 0.06:
            self._tell("NATS is killed and started again")
            self._nats += 1
            await self._fleet.nats.kill()
            await asyncio.sleep(self._random.uniform(0.0, 1.0))
            await self._fleet.nats.start()
        elif what < 0.12 and (postgres := self._fleet.postgres) is not None:
            self._tell("PostgreSQL is killed and started again")
            self._postgres += 1
            await asyncio.to_thread(postgres.kill)
            await asyncio.sleep(self._random.uniform(0.0, 1.0))
            postgres.start()  # in this thread: the kernel ends the server with the thread that started it


async def _rest(fleet: Fleet) -> None:
    """Wait until every operation is over. What failed is retried, as a person would."""
    for frontend in fleet.frontends:
        await frontend.until_ready()
    asked = fleet.frontends[-1]
    left = [one.id for one in await history_of(asked)]
    deadline = time.monotonic() + _REST_SECONDS
    while True:
        unfinished = [one for one in [await operation_at(asked, id) for id in left] if one.state not in _OVER]
        if not unfinished:
            return
        assert time.monotonic() < deadline, "does not come to rest: " + "; ".join(map(_left_over, unfinished))
        for one in unfinished:
            if one.state == OperationState.FAILED:
                await asked.call("POST", f"/api/v1/operations/{one.id}/retry")
        left = [one.id for one in unfinished]
        await asyncio.sleep(_LOOK_SECONDS)


def _left_over(operation: OperationView) -> str:
    targets = [
        f"{one.node_name} {one.status} {one.attempts} {one.message!r}"
        for one in operation.targets
        if one.status not in ("success", "superseded", "cancelled")
    ]
    return f"{operation.id} {operation.verb} {operation.backend}: {targets}"


async def _judge(fleet: Fleet, ledger: Ledger) -> str:
    workers = list((await fleet.workers.do(Look())).values())
    histories = [await history_of(frontend) for frontend in fleet.frontends]
    for history in histories:
        verdict.nothing_was_lost_or_invented(ledger, history)
        assert [_shown(one) for one in history] == [_shown(one) for one in histories[0]], "frontends disagree"
    verdict.nothing_proven_was_downloaded_again(workers)
    successes = verdict.no_success_without_proof(ledger, histories[0], workers)
    places = verdict.all_is_as_it_was_last_wished(ledger, workers)
    downloads = sum(bool(one.uri) for worker in workers for one in worker.journal)
    return (
        f"{len(ledger.wishes)} operations accepted, {ledger.asked_again} times asked again, 0 lost; {places} places "
        f"are as last wished; {successes} successes proven; {downloads} downloads, none of what was proven"
    )


def _shown(operation: OperationView) -> object:
    """What every frontend must show alike."""
    targets = [(one.node_id, one.status, one.message, one.attempts) for one in operation.targets]
    return operation.id, operation.state, targets
