"""Replicas that the adapter serves, and the orders by which its parent adds and removes them."""

import asyncio
import hashlib
import itertools
import logging
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from corral.base.errors import CorralError
from corral.rpc.backend import Backend
from corral.wire.adapter import (
    ORDER_BYTES,
    AdapterModel,
    AdapterOrder,
    AdapterReplica,
    Done,
    FilePassed,
    FileVerb,
    FileWish,
    Forget,
    Listening,
    Retain,
    Serve,
)

log = logging.getLogger(__name__)


class KeyUnknown(CorralError):
    """No replica is served under this key."""

    code = "invalid_api_key"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A replica and the gRPC channel to it."""

    replica: AdapterReplica
    backend: Backend
    parent: "ParentFiles"

    @property
    def model(self) -> AdapterModel:
        return self.replica.model


class ParentAway(CorralError):
    """Whoever passes files to the model's machine is away."""

    code = "parent_away"


class ParentFiles:
    """Has the parent pass files, while there is one."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[FilePassed]] = {}

    async def ask(self, key: str, verb: FileVerb, path: str = "", target: str = "") -> str:
        """The path that the parent answers. ParentAway when it cannot be asked, or says why not."""
        if self._writer is None:
            raise ParentAway
        number = next(self._numbers)
        passed: asyncio.Future[FilePassed] = asyncio.get_running_loop().create_future()
        self._waiting[number] = passed
        try:
            wish = FileWish(number=number, key=key, verb=verb, path=path, target=target)
            self._writer.write(msgspec.json.encode(wish) + b"\n")
            answer = await passed
        finally:
            del self._waiting[number]
        if answer.error:
            raise ParentAway(answer.error)
        return answer.path

    def passed(self, answer: FilePassed) -> None:
        if (waiting := self._waiting.get(answer.number)) is not None and not waiting.done():
            waiting.set_result(answer)

    @contextmanager
    def through(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """The parent is there as long as the block lasts."""
        self._writer = writer
        try:
            yield
        finally:
            self._writer = None
            for number in self._waiting:
                self.passed(FilePassed(number=number, error=ParentAway().message))


class ServedReplicas:
    """Owns one gRPC channel for each replica."""

    def __init__(self) -> None:
        self._served: dict[bytes, Served] = {}
        self.parent = ParentFiles()

    def __len__(self) -> int:
        return len(self._served)

    async def serve(self, replica: AdapterReplica) -> None:
        """Add or replace a replica. Requests in progress continue if it is still the same process."""
        digest = _digest(replica.key)
        address, token = replica.address, replica.token
        before = self._served.get(digest)
        if before is not None and (before.replica.address, before.replica.token) == (address, token):
            self._served[digest] = Served(replica=replica, backend=before.backend, parent=self.parent)
            return
        self._served[digest] = Served(replica=replica, backend=Backend(address, token=token), parent=self.parent)
        if before is not None:
            await before.backend.close()

    async def forget(self, key: str) -> None:
        """Remove a replica and end its requests in progress. Idempotent."""
        await self._forget(_digest(key))

    async def retain(self, keys: Iterable[str]) -> None:
        """Remove all replicas but these, as `forget` does."""
        for digest in self._served.keys() - set(map(_digest, keys)):
            await self._forget(digest)

    async def _forget(self, digest: bytes) -> None:
        served = self._served.pop(digest, None)
        if served is not None:
            await served.backend.close()

    def find(self, key: str) -> Served:
        served = self._served.get(_digest(key))
        if served is None:
            raise KeyUnknown
        return served

    async def close(self) -> None:
        while self._served:
            _, served = self._served.popitem()
            await served.backend.close()


def _digest(key: str) -> bytes:
    """Return the hash of a key: looking up by hash reveals nothing about keys through timing."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


async def obey_controls(listener: socket.socket, replicas: ServedReplicas, listening: Listening) -> None:
    """Obey whoever connects, one after the other. Return when one leaves that needs no replica any more.

    Replicas are served on while nobody is there: whoever comes next says which of them it still wants.
    """
    while True:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        await obey_orders(connection, replicas, listening)
        if not len(replicas):
            return


async def obey_orders(connection: socket.socket, replicas: ServedReplicas, listening: Listening) -> None:
    """Report the listening address, then execute orders until the parent closes its end or dies."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=ORDER_BYTES)
    try:
        writer.write(msgspec.json.encode(listening) + b"\n")
        with replicas.parent.through(writer):
            await _obey(reader, writer, replicas)
    except ConnectionError:
        log.info("the parent is gone", extra={"event": "adapter.orphaned"})
    finally:
        writer.close()


async def _obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replicas: ServedReplicas) -> None:
    decoder = msgspec.json.Decoder(AdapterOrder)
    while line := await reader.readline():
        match decoder.decode(line):
            case FilePassed() as answer:
                replicas.parent.passed(answer)
                continue
            case Serve(number=number, replica=replica):
                await replicas.serve(replica)
            case Forget(number=number, key=key):
                await replicas.forget(key)
            case Retain(number=number, keys=keys):
                await replicas.retain(keys)
        writer.write(msgspec.json.encode(Done(number=number)) + b"\n")
