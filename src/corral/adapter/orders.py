"""Executes the orders that the parent process sends over an inherited descriptor: see `wire/adapter.py`."""

import asyncio
import logging
import socket

import msgspec

from corral.adapter.replicas import ServedReplicas
from corral.wire.adapter import ORDER_BYTES, AdapterOrder, Done, Forget, Listening, Serve, Word

log = logging.getLogger(__name__)


class Orders:
    """The adapter's end of the descriptor."""

    def __init__(self, descriptor: int, replicas: ServedReplicas) -> None:
        self._descriptor = descriptor
        self._replicas = replicas
        self._decoder = msgspec.json.Decoder(AdapterOrder)

    async def run(self, listening: Listening) -> None:
        """Report the listening address, then execute orders until the parent closes its end or dies."""
        ours = socket.socket(fileno=self._descriptor)
        reader, writer = await asyncio.open_connection(sock=ours, limit=ORDER_BYTES)
        try:
            _say(writer, listening)
            while line := await reader.readline():
                _say(writer, await self._obey(self._decoder.decode(line)))
        except ConnectionError:
            log.info("the parent is gone", extra={"event": "adapter.orphaned"})
        finally:
            writer.close()

    async def _obey(self, order: AdapterOrder) -> Done:
        match order:
            case Serve(number=number, replica=replica):
                await self._replicas.serve(replica)
            case Forget(number=number, key=key):
                await self._replicas.forget(key)
        return Done(number=number)


def _say(writer: asyncio.StreamWriter, word: Word) -> None:
    writer.write(msgspec.json.encode(word) + b"\n")
