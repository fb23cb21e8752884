"""Asks one URL as fast as the server answers, for a few seconds, from a process of its own.

Takes an `Order` as JSON on standard input and writes a `Tale` to standard output. Bounded in time and in connections.
"""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE

import msgspec
import uvloop

from bench import ROOT
from bench.client import Connection, request


class Order(msgspec.Struct, kw_only=True):
    host: str
    port: int
    path: str
    seconds: float
    connections: int = 16
    bearer: str = ""


class Tale(msgspec.Struct, kw_only=True):
    requests: int
    errors: int
    seconds: float
    own_share: float
    """Processor use in percent of one core. Near 100 the figure is limited by the hammer, not by the server."""
    body_bytes: int


async def hammer(order: Order) -> Tale:
    """Hit it from this process."""
    message = request("GET", order.path, bearer=order.bearer)
    counts = {"requests": 0, "errors": 0, "body": 0}
    loop = asyncio.get_running_loop()
    end = loop.time() + order.seconds

    async def hit() -> None:
        connection = await Connection.open(order.host, order.port)
        while loop.time() < end:
            answer = await connection.ask(message)
            counts["requests"] += 1
            counts["errors"] += answer.status != 200
            counts["body"] = len(answer.body)
        connection.close()

    began, used = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(order.connections):
            group.create_task(hit())
    seconds = time.perf_counter() - began
    return Tale(
        requests=counts["requests"],
        errors=counts["errors"],
        seconds=seconds,
        own_share=100 * (time.process_time() - used) / seconds,
        body_bytes=counts["body"],
    )


async def hammer_from_outside(order: Order) -> Tale:
    """Run the hammer in a process of its own. Raise RuntimeError when it fails; standard error says why."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.hammer", stdin=PIPE, stdout=PIPE, cwd=ROOT
    )
    told, _ = await process.communicate(msgspec.json.encode(order))
    if process.returncode != 0:
        raise RuntimeError("the hammer broke")
    return msgspec.json.decode(told, type=Tale)


if __name__ == "__main__":
    _order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(hammer(_order))))
