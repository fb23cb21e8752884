"""Everything that serves files, put together: opened and closed as one."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from corral.base.clock import Clock
from corral.base.open_directories import DIRECTORY_MODE
from corral.base.tasks import running
from corral.worker.config import FilesConfig
from corral.worker.files.areas import served_directories
from corral.worker.files.routes import FileRoutes
from corral.worker.files.store import FileStore
from corral.worker.files.sweeping import Sweeper
from corral.worker.files.threads import Threads

log = logging.getLogger(__name__)


class FileServing:
    """Sweeps, and has routes to serve, from the beginning to the end of the `async with` block."""

    def __init__(self, config: FilesConfig, *, models: Path, clock: Clock) -> None:
        self._directories = served_directories(models=models, staging=config.staging_path)
        self._store = FileStore(self._directories)
        self._threads = Threads()
        self._sweeper = Sweeper(self._store, self._threads, clock=clock, retention=config.retention)
        self._stack = AsyncExitStack()
        self.routes = FileRoutes(self._store, self._threads, stall_seconds=config.stall_timeout.total_seconds())

    async def __aenter__(self) -> Self:
        await self._threads.run(self._make_directories)
        self._stack.push_async_callback(self._threads.close)
        self._stack.push_async_callback(asyncio.to_thread, self._store.close)
        await self._stack.enter_async_context(running(self._sweeper.run(), name="file sweeper"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _make_directories(self) -> None:
        """One that cannot be made is told, and its files are refused: the worker may be of use without them."""
        for area, path in self._directories.items():
            try:
                path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            except OSError as error:
                log.warning(
                    "no files can be kept under %s/: cannot create %s: %s",
                    area.value,
                    path,
                    error.strerror,
                    extra={"event": "files.unusable"},
                )
