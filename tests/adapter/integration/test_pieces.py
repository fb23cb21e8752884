"""In how many pieces the adapter passes a stream on: each costs a write here, and a wake-up of everybody behind it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import h2.config
import h2.connection
import h2.events
import pytest

from corral.rpc.messages import Reply
from corral.wire.adapter import AdapterModel, AdapterReplica
from tests.kit.adapters import running_adapter
from tests.kit.http2_peer import OPENING, SUCCESS, message

ROUTES: Final = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
WORDS: Final = [f"word{number} " for number in range(26)]
REQUEST: Final = {
    "model": "m",
    "stream": True,
    "max_tokens": 100,
    "prompt": "go",
    "messages": [{"role": "user", "content": "go"}],
}


class Backend:
    """Answers each call with a message for every word. `bursts` says how many of them are written together."""

    def __init__(self, *bursts: int) -> None:
        self.bursts = bursts
        self.go_on = asyncio.Event()
        """Waited for between two bursts."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http.initiate_connection()
        while True:
            writer.write(http.data_to_send())
            data = await reader.read(65_536)
            if not data:
                break
            for event in http.receive_data(data):
                if isinstance(event, h2.events.StreamEnded):
                    await self._answer(http, writer, event.stream_id)
        writer.close()

    async def _answer(self, http: h2.connection.H2Connection, writer: asyncio.StreamWriter, stream: int) -> None:
        words = iter(WORDS)
        http.send_headers(stream, OPENING)
        for number, size in enumerate(self.bursts):
            if number:
                writer.write(http.data_to_send())
                await self.go_on.wait()
            for _ in range(size):
                http.send_data(stream, message(Reply(message=next(words).encode()).SerializeToString()))
        http.send_headers(stream, SUCCESS, end_stream=True)


@asynccontextmanager
async def served(backend: Backend) -> AsyncIterator[str]:
    """The adapter's URL; the key is `k1`."""
    server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with running_adapter() as adapter:
        model = AdapterModel(name="m", identity="m", use_tokenizer_template=True)
        await adapter.link.serve(AdapterReplica(key="k1", address=f"127.0.0.1:{port}", token="", model=model))
        yield adapter.url
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def asked(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"Authorization": "Bearer k1"}
    async with aiohttp.ClientSession() as session, session.post(url, json=REQUEST, headers=headers) as answer:
        assert answer.status == 200
        yield answer


@pytest.mark.parametrize("route", ROUTES)
async def test_events_that_are_ready_together_are_one_piece(route: str) -> None:
    async with served(Backend(len(WORDS))) as url, asked(url + route) as answer:
        pieces, piece = list[bytes](), b""
        async for data, is_end in answer.content.iter_chunks():
            piece += data
            if is_end:
                pieces.append(piece)
                piece = b""
    assert all(word.strip().encode() in pieces[0] for word in WORDS)
    assert len(pieces) == 2, "all words, and then the end"


@pytest.mark.parametrize("route", ROUTES)
async def test_an_event_does_not_wait_for_the_next_one(route: str) -> None:
    backend = Backend(1, 2)
    async with served(backend) as url, asked(url + route) as answer:
        text = b""
        while b"word0" not in text:
            text += await answer.content.readany()
        assert b"word1" not in text
        backend.go_on.set()
        rest = await answer.content.read()
    assert b"word1" in rest
    assert b"word2" in rest
