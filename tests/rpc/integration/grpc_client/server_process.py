"""A server of gRPC's own library, for tests that stop the whole process. Prints its port, and streams until killed."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio


async def tick(_: bytes, __: Any) -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Event().wait()


async def sink(_: AsyncIterator[bytes], __: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def main() -> None:
    server = aio.server()
    handlers: dict[str, Any] = {
        "Tick": grpc.unary_stream_rpc_method_handler(tick),  # type: ignore[arg-type]
        "Sink": grpc.stream_unary_rpc_method_handler(sink),  # type: ignore[arg-type]
        "Echo": grpc.unary_unary_rpc_method_handler(echo),  # type: ignore[arg-type]
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


asyncio.run(main())
