"""gRPC's own server in the event loop of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from grpc import aio

_TASKS: Final = ("rpc_task", "HandleExceptions[")
"""How gRPC names the tasks of its server."""
_SECONDS: Final = 60.0


@asynccontextmanager
async def grpc_server(
    service: str, handlers: dict[str, Any], *options: tuple[str, Any], host: str = "127.0.0.1"
) -> AsyncIterator[tuple[aio.Server, str]]:
    """Yield a server of this service and its address. Afterwards nothing of it runs any more."""
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    try:
        yield server, f"{host}:{port}"
    finally:
        await server.stop(None)
        await _handlers_ended()


async def _handlers_ended() -> None:
    """A server has stopped before its handlers have: they still wait for events from a thread of gRPC's."""
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith(_TASKS)]
    if tasks:
        await asyncio.wait(tasks, timeout=_SECONDS)
