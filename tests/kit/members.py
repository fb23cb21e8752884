"""The processes of a fleet in a test, each as a task: the real frontend and the real worker, to be killed at will."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp

from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.frontend.config import ControlConfig
from corral.frontend.record.decide import Event, EventKind, StoredEvent
from corral.processes.control import Control, open_control
from corral.processes.exit_codes import ExitCode
from corral.processes.worker import run_worker
from corral.worker.config import WorkerConfig
from tests.kit.admin_api import AdminAnswer, AdminApi, EventStream
from tests.kit.member_clock import MemberClock
from tests.kit.relay import Relay
from tests.kit.waiting import within_timeout

FRONTEND_LOOPS: Final = 36
"""Loops of a frontend that wait for its clock when there is nothing to do: lost rings, hearing, health, brake,
revocations, models, their catalogue, galleries of them, their stores, removed models, engines elsewhere, loads,
news for loads, dispatcher, leases of intents, returning nodes, fleet rules, what they notice, inventory, reports of it,
upgrades, progress, broadcasts, replicas, restored replicas, unloading, scaling, drains, orphans, shared models, view,
housekeeping, disk, secrets key, uses of keys, live. One too few, and `settle` returns while a loop still works."""
WORKER_LOOPS: Final = 1
LOOPBACK: Final = "127.0.0.1"
_JOINED: Final = frozenset({EventKind.NODE_REGISTERED, EventKind.NODE_REREGISTERED})


class Expected(Protocol):
    """An event that is expected in the record."""

    def matches(self, event: Event) -> bool: ...


class Record(Protocol):
    """The record of events, which is the same for all frontends."""

    async def find(self, expected: Expected, *, after: int) -> StoredEvent: ...

    async def events_after(self, sequence: int) -> list[StoredEvent]: ...

    async def newest_event(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Joined:
    name: str

    def matches(self, event: Event) -> bool:
        return event.kind in _JOINED and event.data.get("name") == self.name


class FleetMember:
    """One process of the fleet, as a task. It can be started again after it ended."""

    def __init__(self, name: str, clock: MemberClock, loops: int) -> None:
        self.name = name
        self.clock = clock
        self._loops = loops
        self._stack = AsyncExitStack()
        self._stop_asked = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    @property
    def is_at_rest(self) -> bool:
        """Whether all that it does now is wait for its clock."""
        return not self.is_running or self.clock.sleeping >= self._loops

    async def until_at_rest(self) -> None:
        while not self.is_at_rest:
            await self.clock.until_changed()

    async def until_ended(self) -> None:
        await within_timeout(self._ended.wait(), lambda: f"{self.name} to end")

    async def stop(self) -> None:
        """Ask it to end in good order, and wait for that."""
        self._stop_asked.set()
        await self.until_ended()
        await self._stack.aclose()

    async def kill(self) -> None:
        """Kill it: it ends at once, and deregisters nothing."""
        await self._stack.aclose()

    async def _launch(self, life: Coroutine[None, None, None]) -> None:
        await self._stack.aclose()
        self._stop_asked = asyncio.Event()
        self._ended.clear()
        await self._stack.enter_async_context(running(self._until_its_end(life), name=self.name))

    async def _until_its_end(self, life: Coroutine[None, None, None]) -> None:
        try:
            await life
        finally:
            self._ended.set()
            self.clock.notify()


class ClusterFrontend(FleetMember, AdminApi):
    """A control process: the composition of `processes/control.py`, talked to over HTTP."""

    def __init__(
        self, name: str, config: ControlConfig, *, clock: MemberClock, session: aiohttp.ClientSession, wire: Relay
    ) -> None:
        FleetMember.__init__(self, name, clock, FRONTEND_LOOPS)
        AdminApi.__init__(self, session, f"http://{LOOPBACK}:{config.port}")
        self.config = config
        self.nats_wire = wire
        """The relay between this frontend and NATS."""
        self._control: Control | None = None

    @property
    def control(self) -> Control:
        if self._control is None or not self.is_running:
            raise RuntimeError(f"{self.name} is not running")
        return self._control

    async def start(self) -> None:
        """Return when it serves and its loops have run once; raises what kept it from that."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._launch(self._live(ready))
        await within_timeout(ready, lambda: f"{self.name} to start")
        await self.call("GET", "/healthz")
        await within_timeout(self.until_at_rest(), lambda: f"the loops of {self.name}")

    async def restart(self) -> None:
        """Die and come back on the same port."""
        await self.kill()
        await self.start()

    async def events(self) -> list[StoredEvent]:
        """The whole record, oldest first."""
        return await self.control.context.record.events.after(0, limit=100_000)

    async def until_nats_is_back(self) -> None:
        await within_timeout(self.control.context.bus.wait_connected(), lambda: f"NATS to be back at {self.name}")

    async def until_nats_is_lost(self) -> None:
        """Wait until it has noticed that NATS is gone."""
        await within_timeout(self._until_disconnected(), lambda: f"NATS to be missed at {self.name}")

    async def _until_disconnected(self) -> None:
        bus = self.control.context.bus
        changed = asyncio.Event()
        forget = bus.on_connection(lambda _: changed.set())
        try:
            while bus.connected:
                await changed.wait()
                changed.clear()
        finally:
            forget()

    @asynccontextmanager
    async def stream(self, *, after: int | None = None) -> AsyncIterator[EventStream]:
        """As the API has it. A stream waits for the clock of its frontend too."""
        async with super().stream(after=after) as stream:
            self._loops += 1
            try:
                yield stream
            finally:
                self._loops -= 1

    async def _live(self, ready: "asyncio.Future[None]") -> None:
        try:
            async with open_control(self.config, clock=self.clock) as (control, server):
                self._control = control
                self.admin_key = control.credentials.new_admin_key or self.admin_key
                ready.set_result(None)
                await control.run(self._stop_asked, server)
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


class ClusterWorker(FleetMember):
    """A worker process: the composition of `processes/worker.py`."""

    def __init__(
        self, name: str, config: WorkerConfig, *, clock: MemberClock, session: aiohttp.ClientSession, record: Record
    ) -> None:
        super().__init__(name, clock, WORKER_LOOPS)
        self.config = config
        self.exit_code: ExitCode | None = None
        self._record = record
        self._session = session
        self._born_after = 0

    async def start(self) -> None:
        """Does not wait for anything: see `joined`."""
        self._born_after = await self._record.newest_event()
        self.exit_code = None
        await self._launch(self._live())

    async def joined(self) -> NodeId:
        """The id under which it is registered in this life; starts it when it does not run."""
        if not self.is_running:
            await self.start()
        await self._record.find(_Joined(self.name), after=self._born_after)
        await within_timeout(self.until_at_rest(), lambda: f"{self.name} to take in its registration")
        events = [stored.event for stored in await self._record.events_after(self._born_after)]
        ids = [event.node_id for event in events if _Joined(self.name).matches(event) and event.node_id is not None]
        return ids[-1]

    def pause(self) -> None:
        """Suspend it as SIGSTOP would: it exists, and answers nothing."""
        self.clock.freeze()

    def go_on(self) -> None:
        self.clock.thaw()

    async def ask(self, path: str) -> AdminAnswer:
        """Call the worker's own HTTP server."""
        async with self._session.get(f"http://{self.config.addresses.http_addr}{path}") as response:
            return AdminAnswer(status=response.status, body=await response.read())

    async def _live(self) -> None:
        self.exit_code = await run_worker(self.config, self._stop_asked, clock=self.clock)
