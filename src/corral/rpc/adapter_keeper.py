"""Keeps an adapter while replicas need one: a process that gives a URL to every replica which only speaks gRPC.

Worker and frontend share it. They differ in where their adapter comes from, which an `AdapterSource` tells: a worker
starts a process of its own, control connects to the one that the launcher of its frontend starts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from corral.base.clock import Clock
from corral.base.errors import ChildFailed, Conflict, CorralError, InvalidInput
from corral.base.retry import Backoff
from corral.base.tasks import end_tasks, first_done, start_task
from corral.rpc.adapter_link import AdapterLink
from corral.wire.adapter import AdapterReplica, Listening

log = logging.getLogger(__name__)

ADAPTER: Final = "adapter"
_WORTH_TELLING: Final = 3
"""Failures in a row before a problem is reported: a single crash is repaired sooner than that."""
T = TypeVar("T")


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How long an adapter may take, how long it stays, and when it is started again."""

    ready_within: timedelta = timedelta(seconds=30)
    """Time from the start of its process until it listens. Usually less than a second; more on a machine that swaps."""
    obey_within: timedelta = timedelta(seconds=10)
    """For one order, which only changes a table. An adapter that takes longer hangs, and is started again."""
    url_within: timedelta = timedelta(seconds=60)
    """How long an install waits for its URL, a start again after a failure included."""
    linger: timedelta = timedelta(seconds=30)
    """How long the adapter stays without a replica, so that a reloaded model finds it running."""
    stop_grace: timedelta = timedelta(seconds=7)
    """Between the request to end and the end by force: a little more than it gives requests under way."""
    backoff: Backoff = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=10))
    """Between a death and the next start. Requests wait for it, so it begins short."""
    stable_after: timedelta = timedelta(seconds=60)
    """A life of this length makes earlier deaths forgotten."""


class LiveAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that takes orders."""

    link: AdapterLink
    place: Listening
    end: Callable[[], Coroutine[Any, Any, None]]
    """Waits for its end, which is always a failure: raises ChildFailed."""
    dismiss: Callable[[], Awaitable[None]]
    """Called when nobody needs it any more."""


class AdapterSource(Protocol):
    """Where adapters come from, one at a time."""

    async def open(self, stack: AsyncExitStack) -> LiveAdapter:
        """Return one that listens. It lasts until the stack is closed. Raise CorralError when there is none."""

    def rest(self) -> None:
        """Nobody needs an adapter until the next `open`."""


class Adapters:
    """Runs from the beginning to the end of the `async with` block. Replicas are known by their keys.

    `on_change` is called after replicas began or ceased to be served.
    """

    def __init__(
        self,
        source: AdapterSource,
        clock: Clock,
        config: AdapterConfig,
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._config = config
        self._on_change = on_change
        self._demanded: dict[str, AdapterReplica] = {}
        self._served: dict[str, AdapterReplica] = {}
        """What the adapter of this moment serves."""
        self._served_once: set[str] = set()
        """Keys of replicas that had a URL before: they get it again as soon as an adapter runs."""
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._place: Listening | None = None
        self._failures = 0
        """In a row, without a life of some length between them."""
        self._problem = ""
        self._rung = asyncio.Event()
        self._occupied, self._vacant = asyncio.Event(), asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = start_task(self._keep(), name=ADAPTER)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            await end_tasks(self._keeper)
        self._fail_all(Conflict("this process is shutting down"))

    @property
    def problem(self) -> str:
        """Why there is no adapter, although one is needed; empty while there is one, or may soon be."""
        return self._problem if self._failures >= _WORTH_TELLING else ""

    def want(self, replica: AdapterReplica) -> None:
        """Have a replica served, or served in another way, as soon as that is possible."""
        self._demanded[replica.key] = replica
        self._ring()

    async def serve(self, replica: AdapterReplica) -> None:
        """Have a replica served, or served in another way; return when it is.

        Raise ChildFailed, or what else kept the adapter from it. A replica that had no URL before is forgotten then.
        """
        key = replica.key
        is_new = key not in self._demanded
        self.want(replica)
        if self._served.get(key) == replica:
            return
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(outcome)
        try:
            await within(outcome, self._config.url_within, "did not take the replica")
        except CorralError:
            if is_new and key not in self._served_once:
                self.forget(key)
            raise
        finally:
            self._waiting.get(key, set()).discard(outcome)

    def forget(self, key: str) -> None:
        """The process of this key is gone. Unknown keys are ignored."""
        if self._demanded.pop(key, None) is None:
            return
        self._served_once.discard(key)
        self._settle(key, Conflict("the backend ended before it had a URL"))
        self._ring()

    def retain(self, keys: Collection[str]) -> None:
        """Stop serving all replicas whose keys are not among these."""
        for key in self._demanded.keys() - set(keys):
            self.forget(key)

    def port_of(self, key: str) -> int | None:
        """Where the replica of this key is served, also while the adapter is being started again."""
        return self._place.port if self._place is not None and key in self._served_once else None

    def place_of(self, key: str) -> Listening | None:
        """Where the replica of this key is served at this moment."""
        return self._place if key in self._served else None

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
        now, other = (self._occupied, self._vacant) if self._demanded else (self._vacant, self._occupied)
        now.set()
        other.clear()

    # The process.

    async def _keep(self) -> None:
        """Run for ever: keep an adapter while replicas need one, and get another one after a crash."""
        while True:
            if not self._demanded:
                self._source.rest()
                await self._occupied.wait()
            began = self._clock.monotonic()
            try:
                await self._live()
                self._failures = 0
                continue
            except CorralError as error:
                self._problem = error.message
                log.warning("%s", error, extra={"event": "adapter.died", "replicas": len(self._demanded)})
            except Exception as error:
                self._problem = f"the adapter failed: {error}"
                log.exception("adapter failed", extra={"event": "adapter.failed"})
                self._fail_all(ChildFailed(self._problem, child=ADAPTER))
            stable = self._clock.monotonic() - began >= self._config.stable_after.total_seconds()
            self._failures = 1 if stable else self._failures + 1
            await self._clock.sleep(self._config.backoff.delay(self._failures).total_seconds())

    async def _live(self) -> None:
        """Use one adapter until it is not needed. Raises what kept it from starting, or made it die."""
        async with AsyncExitStack() as stack:
            try:
                adapter = await self._source.open(stack)
            except CorralError as error:
                self._fail_all(error)
                raise
            self._place, self._problem = adapter.place, ""
            facts = {"port": adapter.place.port, "replicas": len(self._demanded)}
            log.info("adapter ready", extra={"event": "adapter.ready", **facts})
            try:
                await first_done(adapter.end(), self._obey(adapter.link), self._until_idle())
            finally:
                self._served.clear()
                self._on_change()
            await adapter.dismiss()
            log.info("adapter stopped: nobody needs it", extra={"event": "adapter.stopped"})

    async def _until_idle(self) -> None:
        while True:
            await self._vacant.wait()
            sleep = self._clock.sleep(self._config.linger.total_seconds())
            if await first_done(sleep, self._occupied.wait()) == 0:
                return

    async def _obey(self, link: AdapterLink) -> None:
        """Keep what the adapter serves the same as what is wanted. It may have replicas of an earlier parent."""
        await within(link.retain(self._demanded), self._config.obey_within, "did not obey")
        while True:
            self._rung.clear()
            for key in self._served.keys() - self._demanded.keys():
                await within(link.forget(key), self._config.obey_within, "did not obey")
                del self._served[key]
            for key, replica in list(self._demanded.items()):
                if self._served.get(key) != replica:
                    await self._have_served(link, replica)
            await self._rung.wait()

    async def _have_served(self, link: AdapterLink, replica: AdapterReplica) -> None:
        key = replica.key
        try:
            await within(link.serve(replica), self._config.obey_within, "did not obey")
        except InvalidInput as error:  # of this replica alone: the others must not suffer for it
            self._settle(key, error)
            self.forget(key)
            return
        self._served[key] = replica
        if self._demanded.get(key) is replica:
            self._served_once.add(key)
            self._settle(key, None)
        self._on_change()


async def within(work: Awaitable[T], limit: timedelta, failure: str) -> T:
    """Wait for work of an adapter. Raise ChildFailed, which says what it did not do, when it takes longer."""
    seconds = limit.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise ChildFailed(f"the adapter {failure} within {seconds:g} s", child=ADAPTER) from error
