"""Simulated nodes in a process of their own, so that what they cost is not counted as the frontend's.

The bench that starts it (`Simulation`) writes one command per line to its standard input and reads one answer per line.
It ends with its input, so it never outlives the bench. Each node has a connection of its own, as each worker has.
"""

import asyncio
import itertools
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import msgspec
import uvloop

from bench import ROOT
from bench.client import Answer, Connection, request
from bench.report import percentile
from corral import __version__
from corral.base.ids import NodeId, new_incarnation, new_secret
from corral.wire.registration import (
    FEATURES,
    CorralBeat,
    CorralHello,
    HeartbeatRequest,
    RegisterRequest,
    RegisterResponse,
)
from tests.kit.stdin_commands import MAX_LINE_BYTES, InputEnded, ending_with_input, open_input, write_line

ANSWER_WITHIN_SECONDS: Final = 15.0
_JOINING_AT_ONCE: Final = 8
_GIBIBYTE: Final = 1024**3


class Frontend(msgspec.Struct, kw_only=True):
    """Where the nodes go; the first line of the input."""

    host: str
    port: int
    registration_token: str
    admin_key: str


class Join(msgspec.Struct, kw_only=True, tag="join"):
    """Register so many nodes, which say that they will beat at this interval. Answer: one sample per registration."""

    count: int
    interval_seconds: float


class Beat(msgspec.Struct, kw_only=True, tag="beat"):
    """Let all nodes that joined so far beat from now on, spread evenly over their interval. Answer: nothing much."""


class Observe(msgspec.Struct, kw_only=True, tag="observe"):
    """Let time pass. Answer: one sample per heartbeat that was answered meanwhile."""

    seconds: float


class Read(msgspec.Struct, kw_only=True, tag="read"):
    """Ask for the same page again and again, at a steady pace. Answer: one sample per request."""

    path: str
    count: int
    per_second: float


class Walk(msgspec.Struct, kw_only=True, tag="walk"):
    """Follow `next_cursor` from the first page to the last. Answer: one sample per page."""

    path: str


Command: TypeAlias = Join | Beat | Observe | Read | Walk


class Samples(msgspec.Struct, kw_only=True):
    """How long answers took, and how many were not what they should be."""

    milliseconds: list[float]
    errors: int
    first_error: str
    seconds: float
    """How long all of it took."""
    largest: int
    """The longest body in bytes."""

    @property
    def per_second(self) -> float:
        return len(self.milliseconds) / self.seconds

    @property
    def p50(self) -> float:
        return percentile(self.milliseconds, 0.5)

    @property
    def p99(self) -> float:
        return percentile(self.milliseconds, 0.99)


class _Tally:
    """Collects samples until it is asked for them."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._milliseconds: list[float] = []
        self._errors: list[str] = []
        self._largest = 0

    async def timed(self, connection: Connection, request: bytes, *, expected: int = 200) -> Answer | None:
        """The answer; None for anything but the expected one, which is counted."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                answer = await connection.ask(request)
        except (OSError, TimeoutError) as error:
            connection.close()
            self._errors.append(repr(error))
            return None
        self._milliseconds.append(1000 * (time.perf_counter() - began))
        self._largest = max(self._largest, len(answer.body))
        if answer.status != expected:
            self._errors.append(f"{answer.status} {answer.body[:200].decode(errors='replace')}")
            return None
        return answer

    def samples(self) -> Samples:
        return Samples(
            milliseconds=self._milliseconds,
            errors=len(self._errors),
            first_error=self._errors[0] if self._errors else "",
            seconds=time.perf_counter() - self._began,
            largest=self._largest,
        )


class _Node:
    """One worker as the frontend sees it: it joins, and then beats for ever."""

    def __init__(self, frontend: Frontend, number: int, interval_seconds: float) -> None:
        self._frontend = frontend
        self._name = f"node-{number:06d}"
        self._number = number
        self._secret = new_secret()
        self._incarnation = new_incarnation()
        self._id = NodeId("")
        self.interval_seconds = interval_seconds

    async def join(self, tally: _Tally, connection: Connection) -> None:
        token = self._frontend.registration_token
        body = RegisterRequest(
            name=self._name,
            address=f"10.0.{self._number // 250}.{self._number % 250}:50051",
            http_address=f"10.0.{self._number // 250}.{self._number % 250}:50050",
            token=token,
            total_vram=24 * _GIBIBYTE,
            available_vram=20 * _GIBIBYTE,
            gpu_vendor="nvidia",
            gpu_compute_capability="8.9",
            capability="nvidia-cuda-12",
            total_ram=64 * _GIBIBYTE,
            available_ram=48 * _GIBIBYTE,
            total_disk=1000 * _GIBIBYTE,
            available_disk=700 * _GIBIBYTE,
            max_replicas_per_model=1,
            labels={"zone": f"zone-{self._number % 3}", "rack": f"rack-{self._number % 40}"},
            corral=CorralHello(
                version=__version__,
                features=list(FEATURES),
                secret=self._secret,
                incarnation=self._incarnation,
                heartbeat_seconds=self.interval_seconds,
            ),
        )
        message = request("POST", "/api/node/register", bearer=token, body=msgspec.json.encode(body))
        answer = await tally.timed(connection, message, expected=201)
        if answer is not None:
            self._id = NodeId(msgspec.json.decode(answer.body, type=RegisterResponse).id)

    async def beat_for_ever(self, crowd: "_Crowd", first_after_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        connection = await Connection.open(self._frontend.host, self._frontend.port)
        due = loop.time() + first_after_seconds
        for beats in itertools.count(1):
            await asyncio.sleep(due - loop.time())
            due += self.interval_seconds
            if not connection.is_open:
                connection = await Connection.open(self._frontend.host, self._frontend.port)
            await crowd.beats.timed(connection, self._heartbeat(beats))

    def _heartbeat(self, beats: int) -> bytes:
        body = HeartbeatRequest(
            available_vram=20 * _GIBIBYTE - beats * 4096,
            total_vram=24 * _GIBIBYTE,
            available_ram=48 * _GIBIBYTE - beats * 4096,
            total_disk=1000 * _GIBIBYTE,
            available_disk=700 * _GIBIBYTE - beats * 4096,
            gpu_vendor="nvidia",
            corral=CorralBeat(incarnation=self._incarnation),
        )
        path = f"/api/node/{self._id}/heartbeat"
        return request("POST", path, bearer=self._secret, body=msgspec.json.encode(body))


class _Crowd:
    """All nodes of one simulation, and an administrator who looks at them."""

    def __init__(self, frontend: Frontend, group: asyncio.TaskGroup) -> None:
        self._frontend = frontend
        self._group = group
        self._nodes: list[_Node] = []
        self._beating = 0
        self.beats = _Tally()

    async def obey(self, command: Command) -> Samples:
        match command:
            case Join():
                return await self._join(command)
            case Beat():
                return self._beat()
            case Observe():
                return await self._observe(command.seconds)
            case Read():
                return await self._read(command)
            case Walk():
                return await self._walk(command.path)

    async def _join(self, command: Join) -> Samples:
        tally = _Tally()
        first = len(self._nodes)
        joining = [
            _Node(self._frontend, number, command.interval_seconds) for number in range(first, first + command.count)
        ]
        waiting = iter(joining)

        async def join_in_turn() -> None:
            connection = await self._connect()
            for node in waiting:
                await node.join(tally, connection)
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(_JOINING_AT_ONCE):
                group.create_task(join_in_turn())
        self._nodes += joining
        return tally.samples()

    def _beat(self) -> Samples:
        starting = self._nodes[self._beating :]
        self._beating = len(self._nodes)
        for place, node in enumerate(starting):
            self._group.create_task(node.beat_for_ever(self, node.interval_seconds * place / len(starting)))
        return _Tally().samples()

    async def _observe(self, seconds: float) -> Samples:
        self.beats = _Tally()
        await asyncio.sleep(seconds)
        return self.beats.samples()

    async def _read(self, command: Read) -> Samples:
        loop = asyncio.get_running_loop()
        tally, message = _Tally(), self._administrators(command.path)
        connection = await self._connect()
        due = loop.time()
        for _ in range(command.count):
            await asyncio.sleep(due - loop.time())
            due = max(due + 1 / command.per_second, loop.time())
            if await tally.timed(connection, message) is None:
                break
        connection.close()
        return tally.samples()

    async def _walk(self, path: str) -> Samples:
        tally = _Tally()
        connection = await self._connect()
        cursor: str | None = ""
        while cursor is not None:
            place = f"&cursor={cursor}" if cursor else ""
            answer = await tally.timed(connection, self._administrators(path + place))
            cursor = None if answer is None else msgspec.json.decode(answer.body, type=_Page).next_cursor
        connection.close()
        return tally.samples()

    def _administrators(self, path: str) -> bytes:
        return request("GET", path, bearer=self._frontend.admin_key)

    async def _connect(self) -> Connection:
        return await Connection.open(self._frontend.host, self._frontend.port)


class _Page(msgspec.Struct):
    next_cursor: str | None


class Simulation:
    """The bench's end: commands go out, samples come back."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def do(self, command: Command) -> Samples:
        """Send a command and wait for the answer. Raise RuntimeError when the simulation has ended; standard error
        says why."""
        writer, reader = self._process.stdin, self._process.stdout
        if writer is None or reader is None:
            raise RuntimeError("the simulation was started without pipes")
        writer.write(msgspec.json.encode(command) + b"\n")
        line = await reader.readline()
        if not line:
            raise RuntimeError("the simulation ended")
        return msgspec.json.decode(line, type=Samples)


@asynccontextmanager
async def simulation(frontend: Frontend) -> AsyncIterator[Simulation]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.simulation", stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES, cwd=ROOT
    )
    if process.stdin is None:
        raise RuntimeError("the simulation was started without pipes")
    try:
        process.stdin.write(msgspec.json.encode(frontend) + b"\n")
        yield Simulation(process)
    finally:
        process.stdin.close()
        await process.wait()


async def simulate() -> None:
    """The life of the process: until its input ends."""
    reader = await open_input()
    frontend = msgspec.json.decode(await reader.readline(), type=Frontend)
    with ending_with_input():
        async with asyncio.TaskGroup() as group:
            crowd = _Crowd(frontend, group)
            while line := await reader.readline():
                samples = await crowd.obey(msgspec.json.decode(line, type=Command))
                write_line(msgspec.json.encode(samples))
            raise InputEnded


if __name__ == "__main__":
    uvloop.run(simulate())
