"""A wire that a test can cut: passes bytes between clients and one server on loopback, until told otherwise."""

import asyncio
import contextlib
import math
from typing import Final, Self

from corral.base.tasks import task_group
from tests.kit.ports import lasting_port
from tests.kit.waiting import within_timeout

_LOOPBACK: Final = "127.0.0.1"
_CHUNK: Final = 65536


class Relay:
    """`async with Relay(port) as relay:` dial `relay.port` instead of `port`."""

    def __init__(self, target: int) -> None:
        self.port = lasting_port()
        self._target = target
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._ending = b""
        self._freezing = b""
        self._most = math.inf
        self._is_frozen = asyncio.Event()
        self.passed = bytearray()
        """All bytes of both directions, for tests that look at what passes."""

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.thaw()
        await self.cut()

    def cut_after(self, word: bytes) -> None:
        """Break the next connection over which a client sends this, once it was passed on."""
        self._ending = word

    async def cut(self) -> None:
        """Connections break, new ones are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for end in self._ends:
            end.transport.abort()
        self.thaw()
        while self._serving:
            await asyncio.wait(self._serving)

    async def mend(self) -> None:
        """Accept connections again after `cut`."""
        if self._server is None:
            await self._listen()

    def freeze(self) -> None:
        """Drop all data without closing connections, like a network that loses packets."""
        self._flowing.clear()
        self._is_frozen.set()

    def freeze_before(self, word: bytes) -> None:
        """Freeze as soon as a client sends this, which is held back with all that follows."""
        self._freezing = word

    def freeze_after(self, count: int) -> None:
        """Freeze as soon as so many bytes have passed, of both directions and since the beginning."""
        self._most = count

    async def until_frozen(self) -> None:
        await within_timeout(self._is_frozen.wait(), lambda: f"a frozen wire; {len(self.passed)} bytes have passed")

    def thaw(self) -> None:
        """Let the data pass that was held back."""
        self._is_frozen.clear()
        self._flowing.set()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, _LOOPBACK, self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            await self._connect(reader, writer)
        finally:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(_LOOPBACK, self._target)
        except OSError:
            return
        both = {writer, there_writer}
        self._ends |= both
        try:
            async with task_group() as group:
                group.create_task(self._pump(reader, there_writer), name="relay out")
                group.create_task(self._pump(there_reader, writer), name="relay in")
        finally:
            self._ends -= both
            there_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy one direction. At its end close the other side, which ends the other direction too."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._freezing and self._freezing in data:
                    self._freezing = b""
                    self.freeze()
                if len(self.passed) >= self._most:
                    self._most = math.inf
                    self.freeze()
                await self._flowing.wait()
                self.passed += data
                writer.write(data)
                await writer.drain()
                if self._ending and self._ending in data:
                    self._ending = b""
                    break
        writer.close()
