"""Open streams in a process of their own, so that nothing delays the clock that events are held against.

    python -m bench.gaps_process --order DESCRIPTOR

Says `ready` once every stream has begun, or fails with what one was told instead. At SIGTERM it says how many streams
broke, then for each event when it came and how long after the one before: doubles, in seconds of the monotonic clock.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from array import array
from typing import cast

import msgspec
import uvloop

from bench.client import request

_EVENT = b"data: "


class GapsOrder(msgspec.Struct, kw_only=True):
    host: str
    port: int
    key: str
    model: str
    streams: int


class Notes:
    """Measurements of all streams."""

    def __init__(self, streams: int) -> None:
        self._waiting = streams
        self.begun = asyncio.Event()
        self.refusal = b""
        self.broken = 0
        self.events = array("d")

    def has_begun(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.begun.set()


class Stream(asyncio.Protocol):
    """One answer that does not end by itself."""

    def __init__(self, notes: Notes, question: bytes) -> None:
        self._notes = notes
        self._question = question
        self._last = 0.0
        self._told = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._question)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        count = data.count(_EVENT)
        if not count:
            self._told += b"" if self._last else data
            return
        if not self._last:
            self._notes.has_begun()
        else:
            self._notes.events.extend((now, now - self._last))
        for _ in range(count - 1):  # came at once
            self._notes.events.extend((now, 0.0))
        self._last = now

    def connection_lost(self, _: Exception | None) -> None:
        self._notes.broken += 1
        if not self._last:
            self._notes.refusal = self._told or b"nothing at all"
            self._notes.begun.set()


async def hold(order: GapsOrder) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    body = {"model": order.model, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    question = request("POST", "/v1/chat/completions", bearer=order.key, body=msgspec.json.encode(body))
    notes = Notes(order.streams)
    for _ in range(order.streams):
        await loop.create_connection(lambda: Stream(notes, question), order.host, order.port)
    await notes.begun.wait()
    if notes.refusal:
        sys.exit(f"a stream was told: {notes.refusal.decode(errors='replace')}")
    _say(b"ready\n")
    await stop.wait()
    _say(b"%d\n" % notes.broken + notes.events.tobytes())


def _say(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", type=int, required=True)
    with os.fdopen(parser.parse_args().order, "rb") as file:
        uvloop.run(hold(msgspec.json.decode(file.read(), type=GapsOrder)))
