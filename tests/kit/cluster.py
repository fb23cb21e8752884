"""A whole fleet in one event loop: real frontends and real workers on a real nats-server and a real database.

    async with Cluster(tmp_path, database_url=url) as cluster:
        node = await cluster.worker("w1").joined()
        await cluster.frontend().approve(node)
        await cluster.worker("w1").kill()
        await cluster.advance(cluster.interval * 6)
        await cluster.until(NodeStatusChanged(node, NodeStatus.OFFLINE))

Nothing here waits for time to pass. `until` waits for the record of events, `settle` for everybody to be done, and
`advance` moves policy time second by second, each time until everybody is done: the living keep beating. Only I/O is
real, so every wait is bounded by `WAIT_TIMEOUT`.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

import aiohttp

from corral.base.clock import Clock, SystemClock
from corral.base.ids import NodeId
from corral.base.retry import Backoff
from corral.bus.config import BusConfig
from corral.frontend.config import ControlConfig
from corral.frontend.nodes.decide.liveness import LivenessPolicy
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.record.decide import Event, EventKind, StoredEvent
from corral.frontend.store.secrets import SecretsKey
from corral.worker.config import FrontendConfig, NodeConfig, WorkerConfig
from corral.worker.membership.addresses import AddressConfig
from tests.kit.admin_api import open_session
from tests.kit.clock import ManualClock
from tests.kit.member_clock import MemberClock
from tests.kit.members import LOOPBACK, ClusterFrontend, ClusterWorker, Expected, FleetMember
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.relay import Relay
from tests.kit.waiting import within_timeout

STEP: Final = timedelta(seconds=1)
"""The period of control's loops."""
REGISTRATION_TOKEN: Final = "tok"
TRUSTED_TOKEN: Final = "trusted-token-of-this-cluster"
_REAL: Final = SystemClock()
_LOOK_AGAIN: Final = timedelta(milliseconds=250)
"""A lost poke costs latency, in tests too."""
_ROUNDS: Final = 20
"""Turns in which a loop that was poked meanwhile stops waiting for its clock."""
_SHOWN_EVENTS: Final = 15
_EVERY_SECOND: Final = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=1), spread=0)


@dataclass(frozen=True, slots=True)
class NodeStatusChanged:
    """Everyone was told that a node now has this status."""

    node_id: NodeId
    status: NodeStatus

    def matches(self, event: Event) -> bool:
        is_it = event.kind is EventKind.NODE_STATUS and event.node_id == self.node_id
        return is_it and event.data.get("after") == self.status.value


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event of this kind; of any node unless one is named."""

    kind: EventKind
    node_id: NodeId | None = None

    def matches(self, event: Event) -> bool:
        return event.kind is self.kind and self.node_id in (None, event.node_id)


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
        """Interval of the workers' heartbeats."""
        self.clock = clock or ManualClock()
        self.nats = PlainNats(directory / "nats", port=lasting_port())
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
            self._session = await stack.enter_async_context(open_session())
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
    def members(self) -> Iterable[FleetMember]:
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
            self.workers[name] = ClusterWorker(
                name,
                self._worker_config(name, urls),
                clock=MemberClock(self.clock),
                session=self._open_session,
                record=self,
            )
        return self.workers[name]

    async def healthy(self, name: str, *, through: int = 1) -> NodeId:
        """A new worker that joined, was announced as pending, and was approved."""
        node_id = await self.worker(name, through=through).joined()
        await self.until(NodeStatusChanged(node_id, NodeStatus.PENDING))
        await self.running_frontend.approve(node_id)
        await self.until(NodeStatusChanged(node_id, NodeStatus.HEALTHY))
        return node_id

    # Time.

    async def advance(self, duration: timedelta) -> None:
        """Let policy time pass, a second at a time, and wait after each until every process is idle."""
        await self.settle()
        left = duration
        while left > timedelta(0):
            step = min(STEP, left)
            await self._manual.advance(step)
            await self.settle()
            left -= step

    async def settle(self) -> None:
        """Wait until every process is idle: it has done its work, and waits for the clock."""
        await within_timeout(self._until_all_rest(), self._who_is_busy)

    def jump(self, by: timedelta) -> None:
        """Set the wall clocks of all machines without passing time."""
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
        last = max(
            [await self.find(event, after=self._cursor) for event in expected], key=lambda stored: stored.sequence
        )
        self._cursor = last.sequence
        return last

    async def find(self, expected: Expected, *, after: int) -> StoredEvent:
        """Wait for the first event after a sequence number that is what we expect."""
        seen: list[StoredEvent] = []
        return await within_timeout(self._find(expected, after, seen), lambda: _story(expected, seen))

    async def _find(self, expected: Expected, after: int, seen: list[StoredEvent]) -> StoredEvent:
        frontend = self.running_frontend
        with frontend.control.context.record.feed.listener() as doorbell:
            while True:
                for stored in await self.events_after(seen[-1].sequence if seen else after):
                    seen.append(stored)
                    if expected.matches(stored.event):
                        return stored
                await doorbell.wait(_REAL, _LOOK_AGAIN)

    async def events_after(self, sequence: int) -> list[StoredEvent]:
        return await self.running_frontend.control.context.record.events.after(sequence, limit=10_000)

    async def newest_event(self) -> int:
        return await self.running_frontend.control.context.record.events.last_sequence()

    # Wires.

    async def until_nats_is_back(self) -> None:
        """Every frontend that runs is connected to NATS."""
        for frontend in self.frontends:
            if frontend.is_running:
                await frontend.until_nats_is_back()

    async def until_nats_is_lost(self) -> None:
        """Every frontend has noticed that NATS is gone."""
        for frontend in self.frontends:
            await frontend.until_nats_is_lost()

    # Making.

    async def _add_frontend(self, name: str, wire: Relay) -> None:
        config = self._frontend_config(name, wire)
        clock = MemberClock(self.clock)
        frontend = ClusterFrontend(name, config, clock=clock, session=self._open_session, wire=wire)
        frontend.admin_key = self.frontends[0].admin_key if self.frontends else ""
        self.frontends.append(frontend)
        await frontend.start()

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the cluster is not running")
        return self._session

    def _frontend_config(self, name: str, wire: Relay) -> ControlConfig:
        data = self._directory / name
        config = ControlConfig(
            data=data,
            bus=BusConfig(url=self.nats.frontend_url.replace(f":{self.nats.port}", f":{wire.port}")),
            database_url=self._database_url,
            models_path=data / "models",
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
            backends_path=data / "backends",
            node=NodeConfig(name=name, capability_run_file=data / "capability"),
            addresses=AddressConfig(addr=f"{LOOPBACK}:{port}", http_addr=f"{LOOPBACK}:{port - 1}"),
            heartbeat_interval=self.interval,
        )

    async def _end_members(self) -> None:
        for member in reversed([*self.members]):
            await member.kill()


def _story(expected: Expected, seen: list[StoredEvent]) -> str:
    lines = [f"  {stored.sequence} {stored.event.kind} {dict(stored.event.data)}" for stored in seen[-_SHOWN_EVENTS:]]
    return "\n".join([f"{expected}; the record since then ends with", *lines])
