"""llama.cpp's second port, as far as no engine is needed."""

import asyncio
import importlib
import socket
from typing import Any

import pytest


@pytest.mark.parametrize("authorization", [b"", b"Authorization: Bearer other\r\n", b"Authorization: \xff\r\n"])
async def test_a_stranger_is_refused_before_its_body_is_read(authorization: bytes) -> None:
    module: Any = importlib.import_module("llama_front")
    front = module.Front(None, key="secret")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    await front.listen(f"127.0.0.1:{port}")
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 60000000\r\n%b\r\n" % authorization
        writer.write(head + b"{")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
    finally:
        await front.close()
