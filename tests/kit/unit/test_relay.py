"""The wire passes bytes, can be cut, mended, frozen and thawed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.kit.ports import lasting_port
from tests.kit.relay import Relay


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1024):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    port = lasting_port()
    server = await asyncio.start_server(_echo, "127.0.0.1", port)
    async with Relay(port) as relay:
        yield relay
    server.close()
    await server.wait_closed()


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    async with asyncio.timeout(60):
        return await reader.readexactly(len(text))


async def test_it_passes_bytes_both_ways(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    assert await say(reader, writer, b"hello") == b"hello"
    writer.close()
    assert await reader.read() == b""


async def test_a_cut_breaks_connections_and_refuses_new_ones_until_mended(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    await say(reader, writer, b"hello")

    await relay.cut()

    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", relay.port)

    await relay.mend()
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    assert await say(reader, writer, b"again") == b"again"
    writer.close()


async def test_what_is_said_into_a_frozen_wire_arrives_when_it_thaws(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    await say(reader, writer, b"hello")
    relay.freeze()
    answer = asyncio.ensure_future(say(reader, writer, b"late"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not answer.done()

    relay.thaw()

    assert await answer == b"late"
    writer.close()


async def test_it_freezes_once_so_many_bytes_have_passed(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    relay.freeze_after(10)
    await say(reader, writer, b"hello")  # and back
    answer = asyncio.ensure_future(say(reader, writer, b"late"))

    await relay.until_frozen()
    assert not answer.done()
    assert len(relay.passed) == 10
    relay.thaw()

    assert await answer == b"late"
    assert await say(reader, writer, b"on") == b"on"
    writer.close()
