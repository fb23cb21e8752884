"""Faults against a whole fleet in one event loop, where policy time is ours: hours of life in seconds.

Frontends, workers, NATS, database and clocks are broken and mended in random order, people act meanwhile at several
frontends at once, and simulated nodes say everything twice and in the wrong order. After each step the invariants must
hold; at the end everything is mended, and everybody must be seen as what they are.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from chaos import invariants
from chaos.databases import mortal_postgres
from chaos.round import Workshop
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.record.decide import EventKind
from corral.wire.nodes import NodeDetail
from tests.kit.admin_api import open_session
from tests.kit.cluster import REGISTRATION_TOKEN, Cluster
from tests.kit.members import ClusterFrontend, ClusterWorker
from tests.kit.postgres import PostgresServer
from tests.kit.simulated_node import SimulatedNode

WORKERS: Final = ("w1", "w2", "w3")
SIMULATED: Final = ("s1", "s2")
INTERVAL: Final = timedelta(seconds=4)
"""Interval of heartbeats: short, because each second of policy time is a step for every member."""
_PEACEFUL: Final = frozenset({200, 201, 204, 404, 409, 503})
"""What a frontend may answer to a person who acts in the middle of all this."""

Act = Callable[[], Awaitable[str]]


async def on_sqlite(workshop: Workshop) -> None:
    """One frontend."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(workshop.databases.fresh_url("sqlite"))
        cluster = await stack.enter_async_context(Cluster(workshop.directory, database_url=url, interval=INTERVAL))
        await _live(workshop, cluster, stack, postgres=None)


async def on_postgres(workshop: Workshop) -> None:
    """Three frontends, whose database server dies as well."""
    async with AsyncExitStack() as stack:
        url, postgres = await stack.enter_async_context(mortal_postgres(workshop.databases))
        cluster = await stack.enter_async_context(
            Cluster(workshop.directory, database_url=url, frontends=3, interval=INTERVAL)
        )
        await _live(workshop, cluster, stack, postgres=postgres)


async def _live(
    workshop: Workshop, cluster: Cluster, stack: AsyncExitStack, *, postgres: PostgresServer | None
) -> None:
    session = await stack.enter_async_context(open_session())
    simulated = [
        SimulatedNode(session, cluster.frontend().url, REGISTRATION_TOKEN, name, cluster.interval) for name in SIMULATED
    ]
    fleet = Fleet(workshop, cluster, simulated, postgres)
    for _ in range(workshop.steps):
        await fleet.step()
    await fleet.mend_and_judge()


class Fleet:
    """The fleet, what was done to it, and what must therefore be true of it."""

    def __init__(
        self,
        workshop: Workshop,
        cluster: Cluster,
        simulated: list[SimulatedNode],
        postgres: PostgresServer | None,
    ) -> None:
        self._random = workshop.random
        self._tell = workshop.story.tell
        self._cluster = cluster
        self._simulated = simulated
        self._postgres = postgres
        self._has_database = True
        self._has_nats = True
        self._numbers = itertools.count(1)
        self._labels: dict[NodeId, dict[str, str]] = {}
        self._ids: dict[str, NodeId] = {}
        self._late: list[tuple[SimulatedNode, str, bytes]] = []

    # What may happen.

    async def step(self) -> None:
        """One random thing, then time for everyone to take it in, then the invariants."""
        act = self._random.choice(self._possible())
        self._tell(await act())
        await self._cluster.settle()
        await self._check()

    def _possible(self) -> list[Act]:
        """Every act that makes sense now, some more than once because they are likelier."""
        acts: list[Act] = [self._let_time_pass] * 3
        acts += [self._people_act] * 4 + [self._say_it_twice, self._say_it_late, self._set_the_clock]
        acts += [self._kill_nats] if self._has_nats else [self._start_nats] * 2
        if self._idle_workers:
            acts += [self._start_worker] * 2
        if self._running_workers:
            acts += [self._kill_worker, self._stop_worker, self._pause_worker, self._wake_worker]
        if self._has_database and len(self._frontends) < len(self._cluster.frontends):
            acts += [self._start_frontend] * 2
        if self._has_database and len(self._frontends) > 1:
            acts += [self._kill_frontend]
        if self._has_database:
            acts += [self._restart_frontend]
        if self._postgres is not None:
            acts += [self._kill_database] if self._has_database else [self._start_database] * 4
        return acts

    @property
    def _frontends(self) -> list[ClusterFrontend]:
        return [frontend for frontend in self._cluster.frontends if frontend.is_running]

    @property
    def _running_workers(self) -> list[ClusterWorker]:
        return [worker for worker in self._cluster.workers.values() if worker.is_running]

    @property
    def _idle_workers(self) -> list[str]:
        running = {worker.name for worker in self._running_workers}
        return [name for name in WORKERS if name not in running]

    async def _let_time_pass(self) -> str:
        duration = timedelta(seconds=self._random.choice([1, 3, 6, 14, 26]))
        await self._cluster.advance(duration)
        return f"{duration.seconds} s pass"

    async def _start_worker(self) -> str:
        name = self._random.choice(self._idle_workers)
        if not self._has_database:
            return f"{name} stays off: the kit asks the record where its life begins"
        await self._cluster.worker(name, through=self._random.randint(1, len(self._cluster.frontends))).start()
        return f"{name} starts"

    async def _kill_worker(self) -> str:
        worker = self._random.choice(self._running_workers)
        await worker.kill()
        worker.go_on()
        return f"{worker.name} dies"

    async def _stop_worker(self) -> str:
        worker = self._random.choice(self._running_workers)
        worker.go_on()
        await worker.stop()
        return f"{worker.name} says good-bye"

    async def _pause_worker(self) -> str:
        worker = self._random.choice(self._running_workers)
        worker.pause()
        return f"{worker.name} is suspended"

    async def _wake_worker(self) -> str:
        for worker in self._running_workers:
            worker.go_on()
        return "whoever was suspended goes on"

    async def _kill_frontend(self) -> str:
        frontend = self._random.choice(self._frontends)
        await frontend.kill()
        return f"{frontend.name} dies"

    async def _start_frontend(self) -> str:
        dead = [frontend for frontend in self._cluster.frontends if not frontend.is_running]
        frontend = self._random.choice(dead)
        await frontend.start()
        return f"{frontend.name} starts"

    async def _restart_frontend(self) -> str:
        frontend = self._random.choice(self._frontends)
        await frontend.restart()
        return f"{frontend.name} is restarted"

    async def _kill_nats(self) -> str:
        await self._cluster.nats.kill()
        self._has_nats = False
        return "NATS dies"

    async def _start_nats(self) -> str:
        await self._cluster.nats.start()
        self._has_nats = True
        return "NATS starts"

    async def _kill_database(self) -> str:
        if self._postgres is not None:
            self._postgres.kill()
        self._has_database = False
        return "PostgreSQL dies"

    async def _start_database(self) -> str:
        if self._postgres is not None:
            self._postgres.start()
        self._has_database = True
        await self._cluster.advance(timedelta(seconds=3))
        return "PostgreSQL starts"

    async def _set_the_clock(self) -> str:
        by = timedelta(seconds=self._random.choice([-36_000, -90, -20, 20, 90, 36_000]))
        self._cluster.jump(by)
        await self._cluster.advance(timedelta(seconds=2))
        return f"all clocks are set by {by.total_seconds():.0f} s"

    async def _people_act(self) -> str:
        """Several at once, at any frontend, to any node."""
        nodes = sorted(await self._nodes()) if self._has_database else list(self._ids.values())
        if not nodes:
            return "people find nothing to do"
        orders = [self._order(self._random.choice(nodes)) for _ in range(self._random.randint(1, 4))]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._person(*order)) for order in orders]
        return "people " + ", ".join(task.result() for task in tasks)

    def _order(self, node_id: NodeId) -> tuple[ClusterFrontend, str, NodeId]:
        verb = self._random.choices(["approve", "drain", "resume", "label", "remove"], [4, 2, 3, 3, 1])[0]
        return self._random.choice(self._frontends), verb, node_id

    async def _person(self, frontend: ClusterFrontend, verb: str, node_id: NodeId) -> str:
        path, label = f"/api/v1/nodes/{node_id}", f"l{next(self._numbers)}"
        match verb:
            case "label":
                answer = await frontend.call("PATCH", f"{path}/labels", {label: "x"})
                if answer.status == 200:
                    self._labels.setdefault(node_id, {})[label] = "x"
            case "remove":
                answer = await frontend.call("DELETE", path)
            case _:
                answer = await frontend.call("POST", f"{path}/{verb}")
        assert answer.status in _PEACEFUL, f"{verb} at {frontend.name}: {answer.status} {answer.body!r}"
        return f"{verb} {node_id[:4]} at {frontend.name}: {answer.status}"

    async def _say_it_twice(self) -> str:
        """A simulated node registers at several frontends at once, and beats at all of them."""
        node = self._random.choice(self._simulated)
        if self._random.random() < 0.5:
            node.restart()
        ids = await self._at_all_frontends(node, "register", node.registration())
        if node.id is not None:
            await self._at_all_frontends(node, f"{node.id}/heartbeat", node.heartbeat())
            self._late.append((node, f"{node.id}/heartbeat", node.heartbeat()))
        self._late.append((node, "register", node.registration()))
        return f"{node.name} says everything {ids} times at once"

    async def _at_all_frontends(self, node: SimulatedNode, action: str, body: bytes) -> int:
        async def say(frontend: ClusterFrontend) -> bool:
            bearer = REGISTRATION_TOKEN if action == "register" else node.bearer
            headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
            answer = await frontend.send("POST", f"/api/node/{action}", body, headers)
            if action == "register" and answer.status == 201:
                node.take_in(answer.body)
            return answer.status < 300

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(say(frontend)) for frontend in self._frontends for _ in range(2)]
        return sum(task.result() for task in tasks)

    async def _say_it_late(self) -> str:
        """Messages of earlier arrive now, the newest first."""
        late, self._late = self._late[-6:], []
        heard = 0
        for node, action, body in reversed(late):
            node.url = self._random.choice(self._frontends).url
            try:
                await node.send(action, body, bearer=REGISTRATION_TOKEN if action == "register" else None)
                heard += 1
            except (PeerUnavailable, PeerRefused):
                continue
        return f"{heard} of {len(late)} old messages are taken in"

    # What must hold.

    async def _nodes(self) -> dict[NodeId, NodeDetail]:
        return await self._cluster.running_frontend.nodes()

    async def _check(self) -> None:
        if not self._has_database:
            return
        nodes = await self._nodes()
        record = await self._cluster.running_frontend.record()
        invariants.record_is_sound(record)
        invariants.approval_was_given(nodes, record)
        invariants.labels_are_kept(self._labels, nodes)
        self._ids = invariants.ids_are_kept(self._ids, nodes, record)
        for frontend in self._frontends:
            await invariants.statuses_follow_from_facts(frontend, await frontend.nodes())

    async def mend_and_judge(self) -> None:
        """Everything works again: then the living are healthy, and the dead are offline."""
        await self._mend()
        await self._cluster.advance(self._cluster.interval * 2)
        for node_id, node in (await self._nodes()).items():
            await self._cluster.running_frontend.resume(node_id)
            if not node.approved:
                await self._cluster.running_frontend.approve(node_id)
        await self._cluster.advance(self._cluster.interval * (self._cluster.policy.offline_after + 1))
        await self._check()
        living = {worker.name for worker in self._running_workers}
        for frontend in self._frontends:
            for node in (await frontend.nodes()).values():
                expected = NodeStatus.HEALTHY if node.name in living else NodeStatus.OFFLINE
                assert node.status == expected, f"{frontend.name} sees {node.name} as {node.status}, not {expected}"
        await self._told_everyone()

    async def _mend(self) -> None:
        if not self._has_database:
            await self._start_database()
        if not self._has_nats:
            await self._start_nats()
        for frontend in self._cluster.frontends:
            if not frontend.is_running:
                await frontend.start()
        await self._cluster.until_nats_is_back()
        await self._wake_worker()

    async def _told_everyone(self) -> None:
        """The last announcement of each node is what it is."""
        record = await self._cluster.running_frontend.record()
        told = {event.node_id: event.data["after"] for event in record if event.kind == EventKind.NODE_STATUS}
        for node_id, node in (await self._nodes()).items():
            assert told[node_id] == node.status, f"{node.name} is {node.status}, last announced as {told[node_id]}"
