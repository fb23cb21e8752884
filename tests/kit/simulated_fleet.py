"""Many simulated workers in a process of their own, so that what they cost is not counted as the frontend's and they
outlive it. Each has its disk, answers truthfully what is on it, and beats over HTTP.

`SimulatedFleet` starts the process, writes one command per line to its standard input and reads one answer per line.
The process ends with its input, so it never outlives the process that started it.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self, TypeAlias

import aiohttp
import msgspec
import uvloop

from corral.base.clock import SystemClock
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.simulated_node import SimulatedIdentity, SimulatedMachine, SimulatedNode
from tests.kit.stdin_commands import MAX_LINE_BYTES, InputEnded, ending_with_input, open_input, write_line

_JOINING_AT_ONCE: Final = 8
_CLOCK: Final = SystemClock()


class FleetTarget(msgspec.Struct, kw_only=True):
    """Where the nodes go; the first line of the input."""

    frontend_url: str
    registration_token: str
    nats_url: str


class Join(msgspec.Struct, kw_only=True, tag="join"):
    """Register so many nodes more, listen for requests, and beat from then on, spread evenly over the interval."""

    count: int
    interval_seconds: float = 10.0
    is_corral: bool = True
    prefix: str = "node"
    digits: int = 5
    first: int | None = None
    """Number of the first of them; none: that after all nodes until now."""
    machine: SimulatedMachine = SimulatedMachine()
    varies: bool = False
    """Each heartbeat reports other free memory than the one before."""


class Behave(msgspec.Struct, kw_only=True, tag="behave"):
    """How nodes treat requests from now on; with no names, all of them. Those that they work on go on as they began."""

    names: list[str] = []
    work_seconds: tuple[float, float] = (0.0, 0.0)
    """Durations of requests on the first and the last of these nodes; the others are between."""
    hangs: bool = False
    """Does nothing and answers nothing, not even what it has."""
    listens: bool = True
    """False: NATS reports no responders."""
    digest: str = ""
    """Of what they download from now on; empty: as before."""
    version: str = ""
    """The same, of its version."""
    tells: float = 0.0
    """How far each request is when it begins to work, as a percentage; it is told once."""
    beats: bool = True
    """False: control hears nothing of them."""
    forgets: list[str] = []
    """Backends that are gone from their disks, which they tell."""
    lies: dict[str, object] = {}
    """Fields that replace the true ones in their heartbeats."""


class LookAtNodes(msgspec.Struct, kw_only=True, tag="look"):
    """Tell how the nodes are."""


FleetCommand: TypeAlias = Join | Behave | LookAtNodes


class NodeState(msgspec.Struct, kw_only=True):
    """What one node really has and did."""

    name: str
    node_id: str
    disk: list[str]
    """Names of the backends that are on it, sorted."""
    written: dict[str, int]
    """How often each was downloaded."""
    requests: int
    """How often something was asked of it, lists not counted."""


@dataclass(slots=True, kw_only=True)
class _Member:
    node: SimulatedNode
    backends: SimulatedBackends
    listens: bool = True


class _Crowd:
    """All nodes of one process."""

    def __init__(self, surroundings: FleetTarget, session: aiohttp.ClientSession, bus: NatsBus) -> None:
        self._surroundings = surroundings
        self._session = session
        self._bus = bus
        self._members: list[_Member] = []

    async def obey(self, command: FleetCommand, beating: asyncio.TaskGroup) -> list[NodeState]:
        match command:
            case Join():
                for place, node in enumerate(nodes := await self._join(command)):
                    beating.create_task(_beat(node, command.interval_seconds * place / len(nodes)))
            case Behave():
                await self._behave(command)
            case LookAtNodes():
                pass
        return [_state(member) for member in self._members]

    async def _join(self, command: Join) -> list[SimulatedNode]:
        first = len(self._members) if command.first is None else command.first
        nodes = [self._node(number, command) for number in range(first, first + command.count)]
        waiting = iter(nodes)
        joined: list[_Member] = []

        async def join_in_turn() -> None:
            for node in waiting:
                backends = SimulatedBackends(await node.register(), _CLOCK, command.is_corral)
                await backends.listen(self._bus)
                joined.append(_Member(node=node, backends=backends))

        async with asyncio.TaskGroup() as group:
            for _ in range(_JOINING_AT_ONCE):
                group.create_task(join_in_turn())
        self._members += sorted(joined, key=lambda member: member.node.name)
        return nodes

    def _node(self, number: int, command: Join) -> SimulatedNode:
        surroundings = self._surroundings
        node = SimulatedNode(
            self._session,
            surroundings.frontend_url,
            surroundings.registration_token,
            f"{command.prefix}-{number:0{command.digits}d}",
            timedelta(seconds=command.interval_seconds),
            identity=SimulatedIdentity() if command.is_corral else SimulatedIdentity(secret=""),
            machine=command.machine,
        )
        node.varies = command.varies
        return node

    async def _behave(self, command: Behave) -> None:
        names = frozenset(command.names)
        meant = [member for member in self._members if not names or member.node.name in names]
        shortest, longest = command.work_seconds
        for place, member in enumerate(meant):
            backends = member.backends
            backends.work_seconds = shortest + (longest - shortest) * place / max(len(meant) - 1, 1)
            backends.faults.mute = command.hangs
            member.node.silent = not command.beats
            member.node.lies = command.lies
            backends.digest = command.digest or backends.digest
            if command.forgets:
                await backends.forget(command.forgets)
            backends.version = command.version or backends.version
            backends.tells = command.tells
            if command.hangs:
                backends.gate.clear()
            else:
                backends.gate.set()
            if member.listens and not command.listens:
                await backends.stop()
            elif command.listens and not member.listens:
                await backends.listen(self._bus)
            member.listens = command.listens


async def _beat(node: SimulatedNode, first_after_seconds: float) -> None:
    await asyncio.sleep(first_after_seconds)
    await node.run()


def _state(member: _Member) -> NodeState:
    backends = member.backends
    return NodeState(
        name=member.node.name,
        node_id=backends.node_id,
        disk=sorted(backends.disk),
        written=dict(backends.written),
        requests=len(backends.requests),
    )


class SimulatedFleet:
    """The parent's side of the process. Use it as a context manager."""

    def __init__(self, surroundings: FleetTarget) -> None:
        self._surroundings = surroundings
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES, env=environment
        )
        self._write(self._surroundings)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        await self._process.wait()

    @property
    def pid(self) -> int:
        return self._running.pid

    async def do(self, command: FleetCommand) -> list[NodeState]:
        """Returns when it is done, with how all nodes are then. RuntimeError when the process has ended instead; it
        told why on standard error."""
        self._write(command)
        reader = self._running.stdout
        line = await reader.readline() if reader is not None else b""
        if not line:
            raise RuntimeError("the simulated fleet ended")
        return msgspec.json.decode(line, type=list[NodeState])

    def _write(self, line: msgspec.Struct) -> None:
        writer = self._running.stdin
        if writer is None:
            raise RuntimeError("the simulated fleet was started without pipes")
        writer.write(msgspec.json.encode(line) + b"\n")

    @property
    def _running(self) -> Process:
        if self._process is None:
            raise RuntimeError("the simulated fleet was not started")
        return self._process


def names_of(states: Sequence[NodeState]) -> list[str]:
    return [state.name for state in states]


async def simulate() -> None:
    """The life of the process: until its input ends."""
    reader = await open_input()
    surroundings = msgspec.json.decode(await reader.readline(), type=FleetTarget)
    with ending_with_input():
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            bus = await stack.enter_async_context(NatsBus(BusConfig(url=surroundings.nats_url)))
            crowd = _Crowd(surroundings, session, bus)
            async with asyncio.TaskGroup() as beating:
                while line := await reader.readline():
                    states = await crowd.obey(msgspec.json.decode(line, type=FleetCommand), beating)
                    write_line(msgspec.json.encode(states))
                raise InputEnded


if __name__ == "__main__":
    uvloop.run(simulate())
