"""The worker's file server as a whole: its routes, what it fetches from and serves to other workers, its background
tasks."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import msgspec
from aiohttp import web

from corral.base.clock import Clock
from corral.base.open_directories import DIRECTORY_MODE
from corral.base.tasks import running
from corral.base.values import PartlyPrinted
from corral.oci.limits import Network
from corral.worker.config import FilesConfig
from corral.worker.files.fetching import FetchRoutes, FetchSettings, why_not_public
from corral.worker.files.keys import served_directories
from corral.worker.files.peers import PeerRoutes
from corral.worker.files.routes import FileRoutes
from corral.worker.files.store import FileStore
from corral.worker.files.sweeping import Sweeper
from corral.worker.files.threads import Threads
from corral.worker.http import Routes

log = logging.getLogger(__name__)


def _nobody() -> str:
    return ""


def _never() -> bool:
    return False


def _nothing() -> None:
    return None


class FileMember(PartlyPrinted, frozen=True, kw_only=True):
    """Who this worker is among others. By default it is nobody: it serves no other worker."""

    unprinted = ("environment",)

    node_id: Callable[[], str] = _nobody
    secret: Callable[[], str] = _nobody
    """The node's secret, from which control derives the keys of tickets."""
    network: Network = msgspec.field(default_factory=Network)
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    why_not: Callable[[str], Awaitable[str]] = why_not_public
    """Why a file is not fetched from a URL; empty: it may be."""
    may_ask: Callable[[], bool] = _never
    """Whether the present frontend is one that has workers fetch files."""
    tls: Callable[[], ssl.SSLContext | None] = _nothing
    """What workers with TLS are dialled with; None: this one has no certificate."""


class FileServing:
    """Serves routes and sweeps old files during the `async with` block."""

    def __init__(self, config: FilesConfig, *, models: Path, clock: Clock, member: FileMember | None = None) -> None:
        member = member or FileMember()
        stall_seconds = config.stall_timeout.total_seconds()
        self._directories = served_directories(models=models, staging=config.staging_path)
        self.store = FileStore(self._directories)
        self.threads = Threads()
        self._sweeper = Sweeper(self.store, self.threads, clock=clock, retention=config.retention)
        self._stack = AsyncExitStack()
        settings = FetchSettings(
            node_id=member.node_id,
            stall_seconds=stall_seconds,
            network=member.network,
            environment=member.environment,
            why_not=member.why_not,
            may_ask=member.may_ask,
            tls=member.tls,
        )
        self._peers = PeerRoutes(self.store, self.threads, clock, secret=member.secret, stall_seconds=stall_seconds)
        self.routes: Sequence[Routes] = (
            FileRoutes(self.store, self.threads, stall_seconds=stall_seconds),
            FetchRoutes(self.store, self.threads, settings),
            self._peers,
        )

    def admits(self, request: web.BaseRequest, path: str) -> bool:
        """Whether a request without the token of a frontend has a ticket."""
        return self._peers.admits(request, path)

    async def __aenter__(self) -> Self:
        await self.threads.run(self._make_directories)
        self._stack.push_async_callback(self.threads.close)
        self._stack.push_async_callback(asyncio.to_thread, self.store.close)
        await self._stack.enter_async_context(running(self._sweeper.run(), name="file sweeper"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _make_directories(self) -> None:
        """Log a directory that cannot be created, and refuse its files: the worker may be useful without them."""
        for area, path in self._directories.items():
            try:
                path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            except OSError as error:
                text = "no files can be kept under %s/: cannot create %s: %s"
                log.warning(text, area.value, path, error.strerror, extra={"event": "files.unusable"})
