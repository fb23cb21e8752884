"""The file server: its routes below /v1/files/ and /v1/files-list/ with LocalAI's methods, statuses and texts, and its
background tasks."""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from aiohttp import web

from corral.base.clock import Clock
from corral.base.open_directories import DIRECTORY_MODE
from corral.base.tasks import running
from corral.worker.config import FilesConfig
from corral.worker.files import disk
from corral.worker.files.downloads import Downloads
from corral.worker.files.keys import served_directories
from corral.worker.files.refusals import FileRefused, bad_request, disk_full, failed
from corral.worker.files.store import FileStore, Head
from corral.worker.files.sweeping import Sweeper
from corral.worker.files.threads import Threads
from corral.worker.files.uploads import PartialUpload, Uploads

FILES: Final = "/v1/files/"
LISTINGS: Final = "/v1/files-list/"
RANGES: Final = "/v1/corral/files/"
_TEMPORARY: Final = "temp"

FileHandler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]


class FileRoutes:
    def __init__(self, store: FileStore, threads: Threads, *, stall_seconds: float) -> None:
        self._store = store
        self._threads = threads
        self._uploads = Uploads(store, threads, stall_seconds=stall_seconds)
        self._downloads = Downloads(store, threads, stall_seconds=stall_seconds)
        self._files: Mapping[str, FileHandler] = {
            "HEAD": self._head,
            "GET": self._get,
            "PUT": self._put,
            "POST": self._post,
        }

    def table(self) -> Mapping[str, FileHandler]:
        """Map path prefixes to handlers; the rest of the path is the key, decoded."""
        return {FILES: self._file, LISTINGS: self._listing, RANGES: self._ranges}

    def end(self) -> None:
        """Abort large transfers, so that the shutdown does not wait for them."""
        self._uploads.end()

    async def _file(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        handler = self._files.get(request.method)
        if handler is None:
            raise FileRefused(405, "method not allowed")
        return await _translated(handler, request, key)

    async def _head(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        head = await self._threads.run(lambda: self._store.head(key))
        if head is None:
            raise FileRefused(404, "not found")
        digest = head.hash or ("" if head.target else await self._threads.run_long(lambda: self._store.digest(key)))
        response = web.StreamResponse(headers=_described(head, digest))
        response.content_length = head.size
        return response

    async def _get(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        return await self._downloads.send_whole(request, key)

    async def _put(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        outcome = await self._uploads.receive(request, key)
        if isinstance(outcome, PartialUpload):
            headers = {"X-File-Size": str(outcome.size), "Range": f"bytes=0-{outcome.size - 1}"}
            return web.Response(status=308, headers=headers)
        return _local_path(outcome)

    async def _post(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        if key != _TEMPORARY:
            raise FileRefused(404, "not found")
        name = f"localai-output-{secrets.randbelow(2**63)}.tmp"
        return _local_path(await self._threads.run(lambda: self._store.make_temporary(name)))

    async def _listing(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        if request.method != "GET":
            raise FileRefused(405, "method not allowed")
        try:
            files = await self._threads.run(lambda: self._store.listing(key))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileRefused(404, "directory not found") from error
        except OSError as error:
            raise failed("listing directory", error) from error
        return _json({"files": files or None})

    async def _ranges(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        if request.method != "GET":
            raise FileRefused(405, "method not allowed")
        return await _translated(self._downloads.send_span, request, key)


async def _translated(handler: FileHandler, request: web.BaseRequest, key: str) -> web.StreamResponse:
    """Run a handler and convert disk errors to the protocol's responses."""
    if not key:
        raise bad_request("key is required")
    try:
        return await handler(request, key)
    except ConnectionError:
        raise
    except OSError as error:
        raise _refused(request.method, error) from error


def _refused(method: str, error: OSError) -> FileRefused:
    if method == "GET" and isinstance(error, FileNotFoundError | NotADirectoryError):
        return FileRefused(404, "file not found")
    if error.errno in disk.FULL:
        return disk_full(error)
    return failed("creating file" if method == "PUT" else "opening file", error)


def _described(head: Head, digest: str) -> dict[str, str]:
    headers = {
        "Accept-Ranges": "bytes",
        "X-File-Size": str(head.size),
        "X-Local-Path": str(head.path).replace("\r", " ").replace("\n", " "),
    }
    if head.target:
        headers["X-Target-SHA256"] = head.target
    elif digest:
        headers["X-Content-SHA256"] = digest
    return headers


def _local_path(path: Path) -> web.Response:
    return _json({"local_path": str(path)})


def _json(document: object) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return web.Response(body=text.encode(errors="replace"), content_type="application/json")


log = logging.getLogger(__name__)


class FileServing:
    """Serves routes and sweeps old files during the `async with` block."""

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
        """Create the directories. Log one that cannot be created and refuse its files: the worker may be useful
        without them."""
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
