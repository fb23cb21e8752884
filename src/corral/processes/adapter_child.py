"""The adapter process as its parents start it: a worker for its own replicas, the launcher of a frontend for control.

The launcher holds a socket on which nobody answers. Control connects when a replica needs an adapter, and only then is
one started; it inherits the socket and finds control waiting there. So the adapter outlives control, as the gateways
do, and a frontend that needs none has none.
"""

import asyncio
import logging
import select
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.logs import LogOutput
from corral.base.processes import ChildCommand, describe_exit, start_process
from corral.base.tasks import first_done, running
from corral.rpc.adapter_keeper import ADAPTER, AdapterConfig

log = logging.getLogger(__name__)

_LOOK: Final = timedelta(seconds=5)
_IGNORED: Final = 3
"""Looks in a row that find control waiting, before the adapter is taken for hung."""


def adapter_argv(orders: Sequence[str], *, listen: str, logs: LogOutput, log_name: str) -> list[str]:
    """Return the command line of an adapter, which logs where its parent does. `orders` say where those come from."""
    return child_argv("corral.processes.adapter", [*orders, "--listen", listen, "--log-name", log_name], logs)


def child_argv(module: str, words: Sequence[str], logs: LogOutput) -> list[str]:
    """Return the command line of a child of ours, which logs where its parent does."""
    words = [*words, "--log-format", logs.format]
    if logs.directory is not None:
        words += ["--log-directory", str(logs.directory)]
    if logs.is_verbose:
        words += ["--verbose"]
    return [sys.executable, "-P", "-m", module, *words]


@dataclass(kw_only=True)
class FrontendAdapter:
    """Starts an adapter when a connection waits at the listener, and again after it died if one waits then."""

    listener: socket.socket
    command: Callable[[socket.socket], ChildCommand]
    clock: Clock
    config: AdapterConfig = field(default_factory=AdapterConfig)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the adapter running until the end of the block, then let its requests finish and end it."""
        async with running(self._keep(), name=ADAPTER):
            yield

    async def _keep(self) -> None:
        failures = 0
        while True:
            await _until_readable(self.listener)
            began = self.clock.monotonic()
            try:
                code = await self._life()
            except CorralError as error:
                log.warning("%s", error, extra={"event": "child.start_failed", "child": ADAPTER})
            else:
                if code == 0:  # nobody needs it
                    failures = 0
                    continue
                ending = {"ending": describe_exit(code)}
                log.warning("child died", extra={"event": "child.died", "child": ADAPTER, **ending})
            is_stable = self.clock.monotonic() - began >= self.config.stable_after.total_seconds()
            failures = 1 if is_stable else failures + 1
            await self.clock.sleep(self.config.backoff.delay(failures).total_seconds())

    async def _life(self) -> int:
        process = start_process(self.command(self.listener))
        log.info("child ready", extra={"event": "child.ready", "child": ADAPTER, "pid": process.pid})
        try:
            if await first_done(process.wait(), self._until_it_ignores()) == 1:
                log.warning("an adapter hangs", extra={"event": "adapter.hung", "pid": process.pid})
                process.kill()
            return await process.wait()
        finally:
            if process.returncode is None:
                await process.stop(self.config.stop_grace)

    async def _until_it_ignores(self) -> None:
        """Wait until the adapter stops accepting connections: normally a waiting client is accepted at once."""
        looks = 0
        while looks < _IGNORED:
            await self.clock.sleep(_LOOK.total_seconds())
            looks = looks + 1 if _is_readable(self.listener) else 0


def _is_readable(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


async def _until_readable(listener: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(listener)
