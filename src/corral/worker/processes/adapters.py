"""The adapter of this node: one process that gives a URL to every replica which only speaks gRPC."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, Self

from corral.base.clock import Clock
from corral.base.errors import ChildFailed, Conflict, CorralError, InvalidInput
from corral.base.processes import Child, ChildCommand, ChildProcess, describe_exit, start_process, until_ready
from corral.base.tasks import end_tasks, first_done, start_task
from corral.rpc.adapter_link import AdapterLink
from corral.wire.adapter import AdapterReplica
from corral.worker.config import AdapterConfig
from corral.worker.membership.addresses import HostPort
from corral.worker.processes.ports import Ports

log = logging.getLogger(__name__)

_NAME: Final = "adapter"

AdapterCommand = Callable[[int, HostPort], ChildCommand]
"""Makes the command from the descriptor that the adapter inherits and the address it listens on."""


class Adapters:
    """Runs from the beginning to the end of the `async with` block. Replicas are known by their keys."""

    def __init__(
        self, *, bind_host: str, command: AdapterCommand, ports: Ports, clock: Clock, config: AdapterConfig
    ) -> None:
        self._bind_host = bind_host
        self._command = command
        self._ports = ports
        self._clock = clock
        self._config = config
        self._wanted: dict[str, AdapterReplica] = {}
        self._served: dict[str, AdapterReplica] = {}
        """What the adapter of this moment serves."""
        self._known: set[str] = set()
        """Keys of replicas that had a URL before: they get it again as soon as an adapter runs."""
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._port: int | None = None
        self._rung = asyncio.Event()
        self._occupied, self._vacant = asyncio.Event(), asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = start_task(self._keep(), name="adapter")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            await end_tasks(self._keeper)
        self._fail_all(Conflict("this worker is shutting down"))

    async def serve(self, replica: AdapterReplica) -> None:
        """Have a replica served, or served in another way; return when it is.

        Raise ChildFailed, or what else kept the adapter from it. A replica that had no URL before is forgotten then.
        """
        key = replica.key
        is_new = key not in self._wanted
        self._wanted[key] = replica
        self._ring()
        if self._served.get(key) == replica:
            return
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(outcome)
        try:
            await _within(outcome, self._config.url_within, "did not take the replica")
        except CorralError:
            if is_new and key not in self._known:
                self.forget(key)
            raise
        finally:
            self._waiting.get(key, set()).discard(outcome)

    def forget(self, key: str) -> None:
        """The process of this key is gone. Unknown keys are ignored."""
        if self._wanted.pop(key, None) is None:
            return
        self._known.discard(key)
        self._settle(key, Conflict("the backend ended before it had a URL"))
        self._ring()

    def port_of(self, key: str) -> int | None:
        """Where the replica of this key is served, also while the adapter is being started again."""
        return self._port if key in self._known else None

    # Waiting callers.

    def _settle(self, key: str, error: CorralError | None) -> None:
        for outcome in self._waiting.pop(key, set()):
            if outcome.done():
                continue
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

    def _fail_all(self, error: CorralError) -> None:
        for key in list(self._waiting):
            self._settle(key, error)

    def _ring(self) -> None:
        self._rung.set()
        now, other = (self._occupied, self._vacant) if self._wanted else (self._vacant, self._occupied)
        now.set()
        other.clear()

    # The process.

    async def _keep(self) -> None:
        """Run for ever: keep an adapter while replicas need one, and restart it after a crash."""
        failures = 0
        while True:
            if not self._wanted:
                self._give_up_port()
                await self._occupied.wait()
            began = self._clock.monotonic()
            try:
                await self._live()
                failures = 0
                continue
            except CorralError as error:
                log.warning("%s", error, extra={"event": "adapter.died", "replicas": len(self._wanted)})
            except Exception as error:
                log.exception("adapter failed", extra={"event": "adapter.failed"})
                self._fail_all(ChildFailed(f"the adapter failed: {error}", child=_NAME))
            stable = self._clock.monotonic() - began >= self._config.stable_after.total_seconds()
            failures = 1 if stable else failures + 1
            await self._clock.sleep(self._config.backoff.delay(failures).total_seconds())

    async def _live(self) -> None:
        """Run one adapter process until it is not needed. Raises what kept it from starting, or made it die."""
        async with AsyncExitStack() as stack:
            try:
                process, link = await self._start(stack)
            except CorralError as error:
                self._fail_all(error)
                raise
            try:
                if await first_done(process.wait(), self._obey(link), self._until_idle()) == 0:
                    raise ChildFailed(f"the adapter ended ({describe_exit(process.returncode or 0)})", child=_NAME)
            finally:
                self._served.clear()
            await process.stop(self._config.stop_grace)
            log.info("adapter stopped: nobody needs it", extra={"event": "adapter.stopped"})

    async def _start(self, stack: AsyncExitStack) -> tuple[ChildProcess, AdapterLink]:
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
        facts = {"port": place.port, "pid": process.pid, "replicas": len(self._wanted)}
        log.info("adapter ready", extra={"event": "adapter.ready", **facts})
        return process, link

    async def _until_idle(self) -> None:
        while True:
            await self._vacant.wait()
            sleep = self._clock.sleep(self._config.linger.total_seconds())
            if await first_done(sleep, self._occupied.wait()) == 0:
                return

    async def _obey(self, link: AdapterLink) -> None:
        """Keep what the adapter serves the same as what is wanted."""
        while True:
            self._rung.clear()
            for key in self._served.keys() - self._wanted.keys():
                await _within(link.forget(key), self._config.obey_within, "did not obey")
                del self._served[key]
            for key, replica in list(self._wanted.items()):
                if self._served.get(key) == replica:
                    continue
                try:
                    await _within(link.serve(replica), self._config.obey_within, "did not obey")
                except InvalidInput as error:  # of this replica alone: the others must not suffer for it
                    self._settle(key, error)
                    self.forget(key)
                    continue
                self._served[key] = replica
                if self._wanted.get(key) is replica:
                    self._known.add(key)
                    self._settle(key, None)
            await self._rung.wait()

    # The port.

    def _take_port(self) -> int:
        """The one it had, so that its URLs stay what they are; another one only when a stranger took that."""
        if self._port is not None and not self._ports.is_free(self._port):
            self._give_up_port()
        if self._port is None:
            self._port = self._ports.take(_NAME)
        return self._port

    def _give_up_port(self) -> None:
        if self._port is not None:
            self._ports.release(self._port)
            self._port = None


async def _within(work: Awaitable[None], limit: timedelta, failure: str) -> None:
    seconds = limit.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError as error:
        raise ChildFailed(f"the adapter {failure} within {seconds:g} s", child=_NAME) from error
