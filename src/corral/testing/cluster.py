"""A whole fleet in one event loop: real frontends and real workers on a real nats-server and a real database.

    async with Cluster(tmp_path, database_url=url) as cluster:
        node = await cluster.worker("w1").joined()
        await cluster.frontend().approve(node)
        await cluster.worker("w1").kill()
        await cluster.advance(cluster.interval * 6)
        await cluster.until(NodeStatusChanged(node, NodeStatus.OFFLINE))

Nothing here waits for time to pass. `until` waits for the record of events, `settle` for everybody to be done, and
`advance` moves policy time second by second, each time until everybody is done: the living keep beating. Only I/O is
real, so every wait is bounded by `PATIENCE`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol, Self, TypeVar

import aiohttp
import msgspec

from corral.agent.addresses import AddressConfig
from corral.agent.config import FrontendConfig, NodeConfig, WorkerConfig
from corral.app.control import Control, open_control
from corral.app.exit_codes import ExitCode
from corral.app.worker import run_worker
from corral.base.clock import Clock, SystemClock
from corral.base.ids import NodeId
from corral.base.retry import Backoff
from corral.base.tasks import running
from corral.bus.config import BusConfig
from corral.bus.server import NatsServer
from corral.control.config import ControlConfig
from corral.domain.event import Event, EventKind, StoredEvent
from corral.domain.node import LivenessPolicy, NodeStatus
from corral.protocol.node_views import EventView, NodeDetail, NodePage
from corral.state.secrets_key import SecretsKey
from corral.testing.clock import ManualClock
from corral.testing.member_clock import MemberClock
from corral.testing.ports import lasting_port
from corral.testing.relay import Relay

PATIENCE: Final = timedelta(seconds=30)
"""How long any single wait may take on a busy machine before the test fails."""
STEP: Final = timedelta(seconds=1)
"""The period of control's loops."""
FRONTEND_LOOPS: Final = 7
"""Loops of a frontend that wait for its clock when there is nothing to do: hearing, health, models, loads, replicas,
view, housekeeping."""
WORKER_LOOPS: Final = 1
REGISTRATION_TOKEN: Final = "tok"
TRUSTED_TOKEN: Final = "trusted-token-of-this-cluster"
_LOOPBACK: Final = "127.0.0.1"
_REAL: Final = SystemClock()
_LOOK_AGAIN: Final = timedelta(milliseconds=250)
"""A lost doorbell costs latency, in tests too."""
_ROUNDS: Final = 20
"""Turns in which a loop that was poked meanwhile stops waiting for its clock."""
_SHOWN_EVENTS: Final = 15
_EVERY_SECOND: Final = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=1), spread=0)
_JOINED: Final = frozenset({EventKind.NODE_REGISTERED, EventKind.NODE_REREGISTERED})

T = TypeVar("T")


class Expected(Protocol):
    """Something that the record of events will show."""

    def matches(self, event: Event) -> bool: ...


@dataclass(frozen=True, slots=True)
class NodeStatusChanged:
    """Everyone was told that a node now has this status."""

    node_id: NodeId
    status: NodeStatus

    def matches(self, event: Event) -> bool:
        is_it = event.kind is EventKind.NODE_STATUS and event.node_id == self.node_id
        return is_it and event.data.get("after") == self.status.value


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of this kind; of any node unless one is named."""

    kind: EventKind
    node_id: NodeId | None = None

    def matches(self, event: Event) -> bool:
        return event.kind is self.kind and self.node_id in (None, event.node_id)


@dataclass(frozen=True, slots=True)
class _Joined:
    name: str

    def matches(self, event: Event) -> bool:
        return event.kind in _JOINED and event.data.get("name") == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a frontend answered over HTTP."""

    status: int
    body: bytes

    def json(self) -> object:
        return msgspec.json.decode(self.body)


async def within_patience(waiting: Awaitable[T], what: Callable[[], str]) -> T:
    """Await, and fail with a sentence instead of hanging."""
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            return await waiting
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE.total_seconds():g} s for {what()}") from None


class _Member:
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
        await within_patience(self._ended.wait(), lambda: f"{self.name} to end")

    async def stop(self) -> None:
        """Ask it to end in good order, and wait for that."""
        self._stop_asked.set()
        await self.until_ended()
        await self._stack.aclose()

    async def kill(self) -> None:
        """It ends in the middle of whatever it does, without a good-bye."""
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


class EventStream:
    """Server-sent events as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> EventView:
        """The next event, whatever comment or keep-alive is in between."""
        while True:
            line = await within_patience(self._response.content.readline(), lambda: "an event on the stream")
            if not line:
                raise AssertionError("the stream ended")
            if line.startswith(b"data: "):
                return msgspec.json.decode(line[len(b"data: ") :], type=EventView)


class ClusterFrontend(_Member):
    """A control process: the composition of `app/control.py`, talked to over HTTP."""

    def __init__(
        self, name: str, config: ControlConfig, *, clock: MemberClock, session: aiohttp.ClientSession, wire: Relay
    ) -> None:
        super().__init__(name, clock, FRONTEND_LOOPS)
        self.config = config
        self.url = f"http://{_LOOPBACK}:{config.port}"
        self.admin_key = ""
        self.nats_wire = wire
        """Between this frontend and NATS."""
        self._session = session
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
        await within_patience(ready, lambda: f"{self.name} to start")
        await self.call("GET", "/healthz")
        await within_patience(self.until_at_rest(), lambda: f"the loops of {self.name}")

    async def restart(self) -> None:
        """Die and come back on the same port."""
        await self.kill()
        await self.start()

    async def call(
        self, method: str, path: str, body: object = None, *, key: str | None = None, accept: str = "*/*"
    ) -> Answer:
        """`key` is the bearer, the administrator's by default."""
        headers = {"Authorization": f"Bearer {key or self.admin_key}", "Accept": accept}
        request = self._session.request(method, self.url + path, json=body, headers=headers)
        async with await within_patience(request, lambda: f"an answer to {method} {path}") as response:
            return Answer(status=response.status, body=await response.read())

    async def nodes(self) -> dict[NodeId, NodeDetail]:
        """Every node as this frontend sees it now."""
        answer = await self._good("GET", "/api/v1/nodes?limit=1000")
        page = msgspec.json.decode(answer.body, type=NodePage)
        return {NodeId(node.id): node for node in page.items}

    async def node(self, node_id: NodeId) -> NodeDetail:
        return msgspec.json.decode((await self._good("GET", f"/api/v1/nodes/{node_id}")).body, type=NodeDetail)

    async def status(self, node_id: NodeId) -> NodeStatus:
        return NodeStatus((await self.node(node_id)).status)

    async def approve(self, node_id: NodeId) -> None:
        await self._good("POST", f"/api/v1/nodes/{node_id}/approve")

    async def drain(self, node_id: NodeId) -> None:
        await self._good("POST", f"/api/v1/nodes/{node_id}/drain")

    async def resume(self, node_id: NodeId) -> None:
        await self._good("POST", f"/api/v1/nodes/{node_id}/resume")

    async def label(self, node_id: NodeId, labels: Mapping[str, str]) -> None:
        await self._good("PATCH", f"/api/v1/nodes/{node_id}/labels", labels)

    async def remove(self, node_id: NodeId) -> None:
        await self._good("DELETE", f"/api/v1/nodes/{node_id}")

    async def events(self) -> list[StoredEvent]:
        """The whole record, oldest first."""
        return await self.control.context.events.after(0, limit=100_000)

    @asynccontextmanager
    async def stream(self, *, after: int | None = None) -> AsyncIterator[EventStream]:
        """Server-sent events from now on, or after one already seen. Listening has begun when the block begins."""
        headers = {"Authorization": f"Bearer {self.admin_key}", "Accept": "text/event-stream"}
        headers |= {} if after is None else {"Last-Event-ID": str(after)}
        async with self._session.get(f"{self.url}/api/v1/events", headers=headers) as response:
            await within_patience(response.content.readline(), lambda: "the stream to begin")
            self._loops += 1
            try:
                yield EventStream(response)
            finally:
                self._loops -= 1

    async def _good(self, method: str, path: str, body: object = None) -> Answer:
        answer = await self.call(method, path, body)
        if answer.status >= 400:
            raise AssertionError(f"{method} {path} on {self.name}: {answer.status} {answer.body!r}")
        return answer

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


class ClusterWorker(_Member):
    """A worker process: the composition of `app/worker.py`."""

    def __init__(self, name: str, config: WorkerConfig, *, clock: MemberClock, cluster: "Cluster") -> None:
        super().__init__(name, clock, WORKER_LOOPS)
        self.config = config
        self.exit_code: ExitCode | None = None
        self._cluster = cluster
        self._born_after = 0

    async def start(self) -> None:
        """Does not wait for anything: see `joined`."""
        self._born_after = await self._cluster.newest_event()
        self.exit_code = None
        await self._launch(self._live())

    async def joined(self) -> NodeId:
        """The id under which it is registered in this life; starts it when it does not run."""
        if not self.is_running:
            await self.start()
        await self._cluster.find(_Joined(self.name), after=self._born_after)
        await within_patience(self.until_at_rest(), lambda: f"{self.name} to take in its registration")
        found = [stored.event for stored in await self._cluster.events_after(self._born_after)]
        ids = [event.node_id for event in found if _Joined(self.name).matches(event) and event.node_id is not None]
        return ids[-1]

    def pause(self) -> None:
        """As SIGSTOP would: it is there, and says nothing."""
        self.clock.freeze()

    def go_on(self) -> None:
        self.clock.thaw()

    async def ask(self, path: str) -> Answer:
        """Call the worker's own HTTP server."""
        return await self._cluster.get(f"http://{self.config.addresses.http_addr}{path}")

    async def _live(self) -> None:
        self.exit_code = await run_worker(self.config, self._stop_asked, clock=self.clock)


class Cluster:
    """Use as a context: frontends and NATS run at its beginning, nothing at its end. Several frontends need PostgreSQL.

    `settings` replaces values of every frontend's configuration.
    """

    def __init__(
        self,
        directory: Path,
        *,
        database_url: str,
        frontends: int = 1,
        clock: Clock | None = None,
        interval: timedelta = timedelta(seconds=10),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.interval = interval
        """Of the workers' heartbeats."""
        self.clock = clock or ManualClock()
        self.nats = NatsServer(directory / "nats", port=lasting_port())
        self.frontends: list[ClusterFrontend] = []
        self.workers: dict[str, ClusterWorker] = {}
        self._directory = directory
        self._database_url = database_url
        self._size = frontends
        self._settings = dict(settings or {})
        self._secrets_key = SecretsKey.generate().to_text()
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._cursor = 0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.nats)
            connector = aiohttp.TCPConnector(force_close=True)  # a frontend that came back is a new one
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
            stack.push_async_callback(self._end_members)
            for number in range(1, self._size + 1):
                wire = await stack.enter_async_context(Relay(self.nats.port))
                await self._add_frontend(f"frontend-{number}", wire)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def policy(self) -> LivenessPolicy:
        return self.frontends[0].config.liveness

    @property
    def members(self) -> Iterable[_Member]:
        return [*self.frontends, *self.workers.values()]

    def frontend(self, number: int = 1) -> ClusterFrontend:
        """Counted from 1."""
        return self.frontends[number - 1]

    @property
    def running_frontend(self) -> ClusterFrontend:
        return next(frontend for frontend in self.frontends if frontend.is_running)

    def worker(self, name: str, *, through: int = 1) -> ClusterWorker:
        """The worker of this name, not yet started when it is new. It prefers the frontend that it goes `through`."""
        if name not in self.workers:
            first = through - 1
            urls = [frontend.url for frontend in [*self.frontends[first:], *self.frontends[:first]]]
            clock = MemberClock(self.clock)
            self.workers[name] = ClusterWorker(name, self._worker_config(name, urls), clock=clock, cluster=self)
        return self.workers[name]

    async def healthy(self, name: str, *, through: int = 1) -> NodeId:
        """A worker that joined and was approved."""
        node_id = await self.worker(name, through=through).joined()
        await self.running_frontend.approve(node_id)
        await self.until(NodeStatusChanged(node_id, NodeStatus.HEALTHY))
        return node_id

    # Time.

    async def advance(self, duration: timedelta) -> None:
        """Let policy time pass, a second at a time, with everybody at rest after each."""
        await self.settle()
        left = duration
        while left > timedelta(0):
            step = min(STEP, left)
            await self._manual.advance(step)
            await self.settle()
            left -= step

    async def settle(self) -> None:
        """Wait until every process has done what there was to do, and waits for the clock."""
        await within_patience(self._until_all_rest(), self._who_is_busy)

    def jump(self, by: timedelta) -> None:
        """Somebody sets the wall clocks of all machines; no time has passed."""
        self._manual.jump(by)

    @property
    def _manual(self) -> ManualClock:
        if not isinstance(self.clock, ManualClock):
            raise TypeError("time can be moved only in a cluster with a ManualClock")
        return self.clock

    async def _until_all_rest(self) -> None:
        while True:
            for member in self.members:
                await member.until_at_rest()
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            if all(member.is_at_rest for member in self.members):
                return

    def _who_is_busy(self) -> str:
        busy = [member.name for member in self.members if not member.is_at_rest]
        return f"{', '.join(busy) or 'nobody'} to come to rest"

    # The record of events.

    async def until(self, *expected: Expected) -> StoredEvent:
        """Wait until the record shows all of these, in any order; returns the last one.

        Looks only at events after those that earlier calls have found, so that calls follow the story.
        """
        last = max([await self.find(one, after=self._cursor) for one in expected], key=lambda stored: stored.sequence)
        self._cursor = last.sequence
        return last

    async def find(self, expected: Expected, *, after: int) -> StoredEvent:
        """Wait for the first event after a sequence number that is what we expect."""
        seen: list[StoredEvent] = []
        return await within_patience(self._find(expected, after, seen), lambda: _story(expected, seen))

    async def _find(self, expected: Expected, after: int, seen: list[StoredEvent]) -> StoredEvent:
        frontend = self.running_frontend
        with frontend.control.context.feed.listener() as doorbell:
            while True:
                for stored in await self.events_after(seen[-1].sequence if seen else after):
                    seen.append(stored)
                    if expected.matches(stored.event):
                        return stored
                await doorbell.wait(_REAL, _LOOK_AGAIN)

    async def events_after(self, sequence: int) -> list[StoredEvent]:
        return await self.running_frontend.control.context.events.after(sequence, limit=10_000)

    async def newest_event(self) -> int:
        return await self.running_frontend.control.context.events.last_sequence()

    # Wires.

    async def until_nats_is_back(self) -> None:
        """Every frontend is connected to NATS."""
        for frontend in self.frontends:
            if frontend.is_running:
                bus = frontend.control.context.bus
                await within_patience(bus.wait_connected(), lambda: "NATS to be back")

    async def until_nats_is_lost(self, *frontends: ClusterFrontend) -> None:
        """These frontends, or all, have noticed that NATS is gone."""
        for frontend in frontends or self.frontends:
            await within_patience(_until_disconnected(frontend), lambda: "NATS to be missed")

    async def get(self, url: str) -> Answer:
        if self._session is None:
            raise RuntimeError("the cluster is not running")
        async with self._session.get(url) as response:
            return Answer(status=response.status, body=await response.read())

    # Making.

    async def _add_frontend(self, name: str, wire: Relay) -> None:
        if self._session is None:
            raise RuntimeError("the cluster is not running")
        clock = MemberClock(self.clock)
        frontend = ClusterFrontend(
            name, self._frontend_config(name, wire), clock=clock, session=self._session, wire=wire
        )
        frontend.admin_key = self.frontends[0].admin_key if self.frontends else ""
        self.frontends.append(frontend)
        await frontend.start()

    def _frontend_config(self, name: str, wire: Relay) -> ControlConfig:
        data = self._directory / name
        config = ControlConfig(
            data=data,
            bus=BusConfig(url=self.nats.frontend_url.replace(f":{self.nats.port}", f":{wire.port}")),
            database_url=self._database_url,
            port=lasting_port(),
            instance_id=name,
            secrets_key=self._secrets_key,
            secrets_key_file=data / "unused.key",
            registration_token=REGISTRATION_TOKEN,
            trusted_registration_token=TRUSTED_TOKEN,
        )
        return replace(config, **self._settings)  # type: ignore[arg-type]

    def _worker_config(self, name: str, urls: Iterable[str]) -> WorkerConfig:
        data, port = self._directory / name, lasting_port()
        return WorkerConfig(
            frontend=FrontendConfig(urls=tuple(urls), registration_token=REGISTRATION_TOKEN, backoff=_EVERY_SECOND),
            bus=BusConfig(url=self.nats.worker_url),
            data_path=data,
            models_path=data / "models",
            node=NodeConfig(name=name, capability_run_file=data / "capability"),
            addresses=AddressConfig(addr=f"{_LOOPBACK}:{port}", http_addr=f"{_LOOPBACK}:{port - 1}"),
            heartbeat_interval=self.interval,
        )

    async def _end_members(self) -> None:
        for member in reversed([*self.members]):
            await member.kill()


async def _until_disconnected(frontend: ClusterFrontend) -> None:
    bus = frontend.control.context.bus
    changed = asyncio.Event()
    forget = bus.on_connection(lambda _: changed.set())
    try:
        while bus.connected:
            await changed.wait()
            changed.clear()
    finally:
        forget()


def _story(expected: Expected, seen: list[StoredEvent]) -> str:
    lines = [f"  {stored.sequence} {stored.event.kind} {dict(stored.event.data)}" for stored in seen[-_SHOWN_EVENTS:]]
    return "\n".join([f"{expected}; the record since then ends with", *lines])
