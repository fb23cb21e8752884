"""What `fanout` measures: a `corral frontend`, nats-server and a database as people run them, and simulated workers.

What is proven is read from the database beside the frontend, so that looking costs the frontend nothing.
"""

import re
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import asyncpg
import msgspec

from bench.readings import children_of, processor_seconds, words_of
from bench.say import say
from corral.wire.operation_views import OperationView
from tests.kit.admin_api import open_session
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.postgres import PostgresServer
from tests.kit.processes import FrontendProcess, ready_together
from tests.kit.simulated_fleet import Behave, FleetTarget, Join, SimulatedFleet
from tests.kit.waiting import eventually

INSTALL_TIMEOUT: Final = "15m"
_GIVE_UP_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.02
"""Between looks at the database, which are a part of what is measured."""
_STATEMENT: Final = re.compile(r"LOG:  (?:statement|execute [^:]*): (?=\S)")
_OURS: Final = re.compile(r"\b(?:intents|operation_targets|operations|backend_inventory)\b")


_PROVEN: Final = "SELECT count(*) FROM operation_targets WHERE status = 'success' AND operation_id = "
_UNTOLD: Final = "SELECT count(*) FROM nodes WHERE announced IS NULL"


class Eye(Protocol):
    """Looks at the database beside the frontend."""

    async def proven(self, operation: str) -> int:
        """How many targets are."""

    async def untold(self) -> int:
        """How many nodes were not announced yet."""


@dataclass(frozen=True, slots=True)
class PostgresEye:
    connection: "asyncpg.Connection[asyncpg.Record]"

    async def proven(self, operation: str) -> int:
        return int(await self.connection.fetchval(_PROVEN + "$1", operation))

    async def untold(self) -> int:
        return int(await self.connection.fetchval(_UNTOLD))


@dataclass(frozen=True, slots=True)
class SqliteEye:
    connection: sqlite3.Connection

    async def proven(self, operation: str) -> int:
        return int(self.connection.execute(_PROVEN + "?", (operation,)).fetchone()[0])

    async def untold(self) -> int:
        return int(self.connection.execute(_UNTOLD).fetchone()[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One operation from the sending of its request to the last proof."""

    accepted: float
    """Seconds until the frontend answered that it will be done."""
    proven: float
    """Seconds until so many were proven."""
    processor: float
    """Seconds that the control process used."""
    workers: float
    """Seconds that the simulated workers used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    frontend: FrontendProcess
    fleet: SimulatedFleet
    eye: Eye
    postgres: PostgresServer | None
    database_url: str

    @property
    def control(self) -> int:
        """The process id of the control process of this life."""
        return next(pid for pid in children_of(self.frontend.pid) if "control" in words_of(pid))

    async def start(self, verb: str, backend: str, *, nodes: list[str] | None = None) -> OperationView:
        body = {"verb": verb, "backend": backend, "nodes": nodes or []}
        answer = await self.frontend.call("POST", "/api/v1/operations", body)
        if answer.status != 202:
            raise RuntimeError(f"{verb} of {backend} was answered with {answer.status}: {answer.body!r}")
        return msgspec.json.decode(answer.body, type=OperationView)

    async def until_proven(self, operation: str, count: int) -> None:
        async def proven() -> bool:
            return await self.eye.proven(operation) >= count

        what = f"the proof of {count} targets"
        await eventually(proven, what, seconds=_GIVE_UP_SECONDS, longest_pause=_LOOK_SECONDS)

    async def join(self, count: int, work_seconds: float) -> None:
        """So many nodes more, all announced on return; requests take them so long."""
        await self.fleet.do(Join(count=count))
        await self.fleet.do(Behave(work_seconds=(work_seconds, work_seconds)))

        async def all_told() -> bool:
            return not await self.eye.untold()

        await eventually(all_told, "all nodes to be announced", seconds=_GIVE_UP_SECONDS)

    async def run(self, verb: str, backend: str, *, count: int, nodes: list[str] | None = None) -> tuple[Run, str]:
        """Until so many targets are proven; also the id of the operation."""
        control, workers = processor_seconds(self.control), processor_seconds(self.fleet.pid)
        began = time.monotonic()
        operation = await self.start(verb, backend, nodes=nodes)
        accepted = time.monotonic() - began
        await self.until_proven(operation.id, count)
        proven = time.monotonic() - began
        measured = Run(
            accepted=accepted,
            proven=proven,
            processor=processor_seconds(self.control) - control,
            workers=processor_seconds(self.fleet.pid) - workers,
        )
        say(f"  {verb} of {backend}: {count} proven after {proven:.2f} s, control used {measured.processor:.2f} s")
        return measured, operation.id

    async def cancel(self, operation: str) -> None:
        await self.frontend.call("POST", f"/api/v1/operations/{operation}/cancel", {})


@asynccontextmanager
async def open_site(kind: str, folder: Path) -> AsyncIterator[Site]:
    """`sqlite` or `postgres`, the latter with every commit written through to the disk."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(durable=True)) if kind == "postgres" else None
        file = folder / "corral.db"
        url = f"sqlite:///{file}" if postgres is None else postgres.url()
        nats = await stack.enter_async_context(PlainNats(folder / "nats", port=lasting_port()))
        session = await stack.enter_async_context(open_session())
        settings = {
            "CORRAL_DATA": str(folder / "frontend"),
            "CORRAL_DATABASE": url,
            "CORRAL_NATS_URL": nats.frontend_url,
            "CORRAL_AUTO_APPROVE": "true",
            "CORRAL_INSTALL_TIMEOUT": INSTALL_TIMEOUT,
            "CORRAL_SOURCE_REGISTRATIONS": "0",  # all simulated nodes come from here
        }
        frontend = await stack.enter_async_context(FrontendProcess("frontend", session, settings))
        token = await ready_together([frontend])
        surroundings = FleetTarget(
            frontend_url=frontend.url,
            registration_token=token,
            nats_url=nats.worker_url,
        )
        fleet = await stack.enter_async_context(SimulatedFleet(surroundings))
        eye = await stack.enter_async_context(_open_eye(file, postgres))
        yield Site(frontend=frontend, fleet=fleet, eye=eye, postgres=postgres, database_url=url)


@asynccontextmanager
async def _open_eye(file: Path, postgres: PostgresServer | None) -> AsyncIterator[Eye]:
    if postgres is None:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            yield SqliteEye(connection)
        return
    session = await asyncpg.connect(postgres.url())
    try:
        await session.execute("SET log_statement = 'none'")  # its own looks are not counted
        yield PostgresEye(session)
    finally:
        await session.close()


class StatementLog:
    """Counts what the frontend says to PostgreSQL. Many rows in one statement are one."""

    def __init__(self, postgres: PostgresServer) -> None:
        self._log = postgres.log
        self._begin = self._log.stat().st_size

    def counts(self) -> Mapping[str, int]:
        """By `all`, and by `intents`: those about operations, intents and inventories."""
        with self._log.open(errors="replace") as log:
            log.seek(self._begin)
            statements = _STATEMENT.split(log.read())[1:]
        ours = [one for one in statements if _OURS.search(one)]
        return Counter(all=len(statements), intents=len(ours))
