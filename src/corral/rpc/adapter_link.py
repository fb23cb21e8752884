"""A parent's end of the socket to its adapter: see `wire/adapter.py`.

    link = AdapterLink.open()
    process = start_process(Command(argv=[…, str(link.descriptor)], handed_over=[link.descriptor], …))
    async with link:
        listening = await link.listening()
        await link.serve(replica)

One link lasts as long as one adapter process; the next process gets a new one and every replica again.
"""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Self

import msgspec

from corral.base.errors import ChildFailed, InvalidInput
from corral.base.tasks import end_tasks, start_task
from corral.wire.adapter import (
    ORDER_BYTES,
    AdapterReplica,
    Done,
    FilePassed,
    FileWish,
    Forget,
    Listening,
    Retain,
    Serve,
    Word,
)

PassFile = Callable[[FileWish], Awaitable[FilePassed]]
"""Passes a file of a request; failures are in the answer."""


class AdapterLink:
    """Sends orders, which the adapter executes one after the other. Raises ChildFailed when the adapter is gone."""

    def __init__(self, connection: socket.socket, descriptor: int = -1, on_file: PassFile | None = None) -> None:
        """`on_file` passes a file that the adapter asks for."""
        self._socket = connection
        self._on_file = on_file
        self._passing: set[asyncio.Task[None]] = set()
        self.descriptor = descriptor
        """The adapter's end, which its process inherits; -1 when the adapter runs already."""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._listening: asyncio.Future[Listening] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    def open(cls, on_file: PassFile | None = None) -> Self:
        parent_end, adapter_end = socket.socketpair()
        return cls(parent_end, adapter_end.detach(), on_file)

    @classmethod
    def dial(cls, path: Path, on_file: PassFile | None = None) -> Self:
        """A link to the adapter that accepts at this path, now or later. Raise ChildFailed when nobody listens."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)  # a Unix socket is connected at once, or not at all
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise ChildFailed(f"nobody starts an adapter at {path}: {error.strerror}", child="adapter") from error
        return cls(connection, on_file=on_file)

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=ORDER_BYTES)
        self._listening = asyncio.get_running_loop().create_future()
        self._hearing = start_task(self._hear(reader), name="hear the adapter")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the link, which ends the adapter. It is closed even if this is cancelled meanwhile."""
        try:
            if self._hearing is not None:
                await end_tasks(self._hearing, *self._passing)
        finally:
            if self._writer is not None:
                self._writer.close()
            self._fail_waiters()

    async def listening(self) -> Listening:
        """Return the address where the adapter serves HTTP, once it does."""
        if self._listening is None:
            raise RuntimeError("the link is not open")
        return await asyncio.shield(self._listening)  # cancelling one waiter must not affect the others

    async def ended(self) -> None:
        """Return when the adapter has closed its end."""
        if self._hearing is not None:
            await asyncio.wait([self._hearing])

    async def serve(self, replica: AdapterReplica) -> None:
        """Return when requests under this key are served. Raise InvalidInput when the order would be too long."""
        number = next(self._numbers)
        line = msgspec.json.encode(Serve(number=number, replica=replica))
        if len(line) >= ORDER_BYTES:
            raise InvalidInput("model", f"its configuration takes {len(line)} bytes, and {ORDER_BYTES} is too many")
        await self._order(number, line)

    async def forget(self, key: str) -> None:
        number = next(self._numbers)
        await self._order(number, msgspec.json.encode(Forget(number=number, key=key)))

    async def retain(self, keys: Iterable[str]) -> None:
        """Have all but these forgotten."""
        number = next(self._numbers)
        await self._order(number, msgspec.json.encode(Retain(number=number, keys=tuple(keys))))

    async def _order(self, number: int, line: bytes) -> None:
        if self._writer is None or self._hearing is None or self._hearing.done():
            raise ChildFailed("the adapter is gone", child="adapter")
        done = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(line + b"\n")
            await done
        finally:
            self._waiting.pop(number, None)

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        decoder = msgspec.json.Decoder(Word)
        try:
            while line := await reader.readline():
                match decoder.decode(line):
                    case Listening() as listening:
                        if self._listening is not None and not self._listening.done():
                            self._listening.set_result(listening)
                    case Done(number=number):
                        if (done := self._waiting.get(number)) is not None and not done.done():
                            done.set_result(None)
                    case FileWish() as wish:
                        task = start_task(self._pass(wish), name=f"file of a request {wish.number}")
                        self._passing.add(task)
                        task.add_done_callback(self._passing.discard)
        except ConnectionError:
            pass  # the adapter has ended
        finally:
            self._fail_waiters()

    async def _pass(self, wish: FileWish) -> None:
        if self._on_file is None:
            answer = FilePassed(number=wish.number, error="nobody passes files here")
        else:
            answer = await self._on_file(wish)
        if self._writer is not None:
            self._writer.write(msgspec.json.encode(answer) + b"\n")

    def _fail_waiters(self) -> None:
        futures: list[asyncio.Future[None] | asyncio.Future[Listening]] = [*self._waiting.values()]
        if self._listening is not None:
            futures.append(self._listening)
        for future in futures:
            if not future.done():
                future.set_exception(ChildFailed("the adapter is gone", child="adapter"))
                future.exception()  # mark it as retrieved: nobody may be waiting any more
