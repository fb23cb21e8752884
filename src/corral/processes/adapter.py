"""The adapter process: an OpenAI URL for its parent's gRPC-only replicas.

    python -m corral.processes.adapter --orders DESCRIPTOR [--listen HOST:PORT]
    python -m corral.processes.adapter --controls DESCRIPTOR [--listen HOST:PORT]

A worker's adapter ends when the worker closes the descriptor. That of a frontend accepts control at the descriptor, one
after the other, and ends when one leaves without replicas. Both end at SIGTERM and at SIGINT; requests in progress get
a short grace period.
"""

import argparse
import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop
from aiohttp import web

from corral.adapter.app import AdapterApp
from corral.adapter.replicas import ServedReplicas, obey_controls, obey_orders
from corral.adapter.scratch import Scratch
from corral.base.accepting import Acceptor
from corral.base.clock import SystemClock
from corral.base.disclosure import refuse_inspection
from corral.base.logs import LogOutput, set_up_logs
from corral.base.processes import look_for_garbage_rarely
from corral.base.tasks import end_tasks, start_task, stop_on_signals
from corral.processes.exit_codes import ExitCode
from corral.wire.adapter import Listening

log = logging.getLogger(__name__)

_DRAIN_SECONDS: Final = 5.0
_BACKLOG: Final = 1024

Obey = Callable[[ServedReplicas, Listening], Coroutine[Any, Any, None]]
"""Carries out orders until no more will come."""


def main(words: Sequence[str]) -> ExitCode:
    parser = argparse.ArgumentParser(prog="corral adapter")
    parent = parser.add_mutually_exclusive_group(required=True)
    parent.add_argument("--orders", type=int, help="the inherited descriptor that orders come from")
    parent.add_argument("--controls", type=int, help="the inherited descriptor at which those connect who give orders")
    parser.add_argument("--listen", default="127.0.0.1:0", help="where to serve HTTP, host:port")
    parser.add_argument("--log-name", default="adapter")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-directory", type=Path, default=None)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(words)
    set_up_logs(
        options.log_name,
        LogOutput(format=options.log_format, directory=options.log_directory, is_verbose=options.verbose),
    )
    look_for_garbage_rarely()
    refuse_inspection()
    host, _, port = options.listen.rpartition(":")
    if options.orders is None:
        listener = socket.socket(fileno=options.controls)
        listener.setblocking(False)
        obey: Obey = partial(obey_controls, listener)
    else:
        obey = partial(obey_orders, socket.socket(fileno=options.orders))
    return uvloop.run(run_adapter(obey, host=host.strip("[]"), port=int(port)))


class Clients:
    """Connections to the HTTP server. They belong to it once they are made."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._making: set[asyncio.Task[None]] = set()

    def accept(self, listener: socket.socket) -> Acceptor:
        return Acceptor(listener, self._take, failed=self._failed)

    def _take(self, accepted: socket.socket, _: object) -> None:
        task = start_task(self._make(accepted), name="connection")
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (server := self._runner.server) is None:
            accepted.close()  # it has just been shut down
            return
        with suppress(OSError):  # the client has left
            await asyncio.get_running_loop().connect_accepted_socket(server, accepted)

    def _failed(self, error: OSError) -> None:
        log.warning("cannot accept clients: %s", error, extra={"event": "adapter.accept_failed"})


async def run_adapter(obey: Obey, *, host: str, port: int) -> ExitCode:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with AsyncExitStack() as stack:
            replicas = ServedReplicas()
            stack.push_async_callback(replicas.close)
            scratch = await stack.enter_async_context(Scratch())
            app = AdapterApp(replicas, SystemClock(), scratch).build()
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_DRAIN_SECONDS)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
            except OSError as error:
                fields = {"event": "adapter.not_listening", "host": host, "port": port}
                log.error("cannot listen: %s", error.strerror, extra=fields)  # noqa: TRY400 - the reason says it all
                return ExitCode.IN_USE
            own_host, own_port = listener.getsockname()[:2]
            stack.callback(Clients(runner).accept(listener).close)
            listening = Listening(host=own_host, port=own_port)
            obeying = start_task(obey(replicas, listening), name="orders")
            stopping = start_task(stop.wait(), name="stop")
            stack.push_async_callback(end_tasks, obeying, stopping)
            await asyncio.wait({obeying, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if obeying.done():
                await obeying
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
