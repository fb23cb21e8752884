"""The adapter of this node: one process that gives a URL to every replica which only speaks gRPC."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from corral.base.errors import ChildFailed
from corral.base.processes import Child, ChildCommand, describe_exit, start_process, until_ready
from corral.rpc.adapter_keeper import ADAPTER, AdapterConfig, LiveAdapter
from corral.rpc.adapter_link import AdapterLink
from corral.worker.membership.addresses import HostPort
from corral.worker.processes.ports import Ports

log = logging.getLogger(__name__)

AdapterCommand = Callable[[int, HostPort], ChildCommand]
"""Makes the command from the descriptor that the adapter inherits and the address it listens on."""


class AdapterProcesses:
    """Starts an adapter as a child of this worker, on a port of the worker's range."""

    def __init__(self, *, bind_host: str, command: AdapterCommand, ports: Ports, config: AdapterConfig) -> None:
        self._bind_host = bind_host
        self._command = command
        self._ports = ports
        self._config = config
        self._port: int | None = None

    async def open(self, stack: AsyncExitStack) -> LiveAdapter:
        place = HostPort(self._bind_host, self._take_port())
        link = await stack.enter_async_context(AdapterLink.open())

        async def listening() -> None:
            try:
                await link.listening()
            except ChildFailed:
                await process.wait()
                await asyncio.sleep(0)  # the watcher of the process knows more about the failure, and comes first
                raise

        adapter = Child(
            name="the adapter",
            command=lambda: self._command(link.descriptor, place),
            ready=listening,
            ready_within=self._config.ready_within,
        )
        process = await stack.enter_async_context(start_process(adapter.command()))
        await until_ready(adapter, process)

        async def end() -> None:
            code = await process.wait()
            raise ChildFailed(f"the adapter ended ({describe_exit(code)})", child=ADAPTER)

        async def dismiss() -> None:
            await process.stop(self._config.stop_grace)

        return LiveAdapter(link=link, place=await link.listening(), end=end, dismiss=dismiss)

    def rest(self) -> None:
        """Release the adapter's port: no replica needs the adapter now."""
        if self._port is not None:
            self._ports.release(self._port)
            self._port = None

    def _take_port(self) -> int:
        """Return the port of the last adapter, so that URLs stay valid.

        Another port is taken only if that one is in use.
        """
        if self._port is not None and not self._ports.is_free(self._port):
            self.rest()
        if self._port is None:
            self._port = self._ports.take(ADAPTER)
        return self._port
