"""The door process: ends TLS in front of everything that a worker serves.

    python -m corral.processes.door --orders DESCRIPTOR --listener DESCRIPTOR

It ends when the worker closes the descriptor of the orders, and at SIGTERM. The listener is the worker's own: while a
door is started again, callers wait in the kernel's queue.
"""

import argparse
import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from corral.base.accepting import Acceptor
from corral.base.disclosure import refuse_inspection
from corral.base.logs import LogOutput, set_up_logs
from corral.base.processes import allow_descriptors, look_for_garbage_rarely
from corral.base.tasks import end_tasks, start_task, stop_on_signals
from corral.processes.exit_codes import ExitCode
from corral.wire.fleet_tls import DoorState
from corral.worker.callers import CallerLimits, fitting
from corral.worker.door.relay import DoorRelay

log = logging.getLogger(__name__)

_LONGEST_ORDER: Final = 4 * 1024 * 1024
_READY: Final = b"ready\n"
_DESCRIPTORS: Final = 65536
"""Files and sockets that it may open, where the machine allows so many: each caller takes two."""


def main(words: Sequence[str]) -> ExitCode:
    parser = argparse.ArgumentParser(prog="corral door")
    parser.add_argument("--orders", type=int, required=True, help="the inherited descriptor that orders come from")
    parser.add_argument("--listener", type=int, required=True, help="the inherited socket that callers connect to")
    parser.add_argument("--log-name", default="door")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-directory", type=Path, default=None)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(words)
    output = LogOutput(format=options.log_format, directory=options.log_directory, is_verbose=options.verbose)
    set_up_logs(options.log_name, output)
    refuse_inspection()  # it holds the node's private key
    look_for_garbage_rarely()
    limits = fitting(CallerLimits(), allow_descriptors(_DESCRIPTORS))
    return uvloop.run(run_door(socket.socket(fileno=options.orders), socket.socket(fileno=options.listener), limits))


async def run_door(orders: socket.socket, listener: socket.socket, limits: CallerLimits) -> ExitCode:
    """Serve until the worker leaves, or a signal."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        relay = DoorRelay(limits)
        acceptor = Acceptor(listener, relay.take, failed=_cannot_accept)
        obeying = start_task(obey(relay, orders), name="orders")
        stopping = start_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({obeying, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            acceptor.close()
            await end_tasks(obeying, stopping)
            await relay.close()
    return ExitCode.OK


async def obey(relay: DoorRelay, orders: socket.socket) -> None:
    """Do as the worker says, until it closes its end; acknowledge each order."""
    reader, writer = await asyncio.open_connection(sock=orders, limit=_LONGEST_ORDER)
    try:
        while line := await reader.readline():
            try:
                relay.learn(msgspec.json.decode(line, type=DoorState))
            except ssl.SSLError as error:
                log.error("the certificate is unusable: %s", error, extra={"event": "door.certificate"})  # noqa: TRY400 - it says it all
            writer.write(_READY)
    except ConnectionError:
        pass  # the worker has ended
    finally:
        writer.close()


def _cannot_accept(error: OSError) -> None:
    log.warning("cannot accept callers: %s", error, extra={"event": "door.accept_failed"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
