"""Files of a request at the backend's machine: the gRPC contract passes sounds by path.

A worker's adapter shares its machine with the backends. One of a frontend does not: it sends files to the worker's file
server, and fetches what a backend wrote from there, under the names that LocalAI's frontends use.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec

from corral.adapter.forms import MAX_BODY_BYTES
from corral.adapter.replicas import ParentAway, ParentFiles, Served
from corral.adapter.scratch import disk_errors, size_of
from corral.base.errors import CorralError
from corral.wire.adapter import FileVerb

_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=10, sock_read=60)
_PART_BYTES: Final = 256 * 1024
_ANSWER_BYTES: Final = 64 * 1024
_CLEAR_SECONDS: Final = 5.0
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between attempts to empty a file."""
_PASSED_SECONDS: Final = 120.0


class NodeFilesUnusable(CorralError):
    """The sound could not be passed to or from the machine of the model."""

    code = "node_files_unusable"


class LocalPath(msgspec.Struct, kw_only=True):
    """What a file server answers: where the file is on its machine."""

    local_path: str


class SharedFiles:
    """The backend sees the files of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def give(self, file: Path) -> str:
        """Return the path under which the backend finds this file."""
        return str(file)

    async def place(self, name: str) -> str:
        """Return a path for the backend to write to."""
        return str(self._folder / name)

    async def fetch(self, path: str) -> Path:
        """Return the file that the backend wrote there."""
        return Path(path)


class NodeFiles(SharedFiles):
    """The backend is on another machine, behind a file server."""

    def __init__(self, folder: Path, url: str, session: aiohttp.ClientSession) -> None:
        super().__init__(folder)
        self._url = url
        self._session = session
        self._keys: list[str] = []
        """What is there for this request."""

    async def give(self, file: Path) -> str:
        key = f"ephemeral/inputs/{secrets.token_hex(4)}/{file.name}"
        self._keys.append(key)
        with disk_errors():
            content = await asyncio.to_thread(file.open, "rb")
        with content:
            return await self._path("PUT", key, content)

    async def place(self, name: str) -> str:
        path = await self._path("POST", "temp", None)
        self._keys.append(PurePosixPath(path).name)
        return path

    async def clear(self) -> None:
        """Have nothing of this request on the machine any more but empty files: LocalAI's worker can delete none."""
        with suppress(NodeFilesUnusable, TimeoutError):
            async with asyncio.timeout(_CLEAR_SECONDS):
                for key in self._keys:
                    await self._empty(key)

    async def _empty(self, key: str) -> None:
        """Until it is so: a worker may still write what came of an upload that was broken off."""
        for pause in _PAUSES:
            with suppress(NodeFilesUnusable):
                await self._path("PUT", key, b"")
                async with self._ask("HEAD", key, None) as answer:
                    if answer.headers.get("X-File-Size", "0") == "0":
                        return
            await asyncio.sleep(pause)

    async def fetch(self, path: str) -> Path:
        """Only as much as a request may have: what is longer is refused, and not cut."""
        target, size = self._folder / "fetched", 0
        async with self._ask("GET", PurePosixPath(path).name, None) as answer:
            with disk_errors(), await asyncio.to_thread(target.open, "wb") as file:
                async for part in answer.content.iter_chunked(_PART_BYTES):
                    size += len(part)
                    if size > MAX_BODY_BYTES:
                        raise NodeFilesUnusable(f"the sound has more than {MAX_BODY_BYTES} bytes")
                    await asyncio.to_thread(file.write, part)
        return target

    async def _path(self, method: str, key: str, content: object) -> str:
        async with self._ask(method, key, content) as answer:
            try:
                return msgspec.json.decode(await answer.content.read(_ANSWER_BYTES), type=LocalPath).local_path
            except msgspec.DecodeError as error:
                problem = "the file server of the model's machine did not say where the file is"
                raise NodeFilesUnusable(problem) from error

    @asynccontextmanager
    async def _ask(self, method: str, key: str, content: object) -> AsyncIterator[aiohttp.ClientResponse]:
        """Say nothing of addresses: clients read it."""
        url = f"{self._url}/v1/files/{quote(key)}"
        try:
            async with self._session.request(method, url, data=content, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise NodeFilesUnusable(f"the file server of the model's machine answered {answer.status}")
                yield answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NodeFilesUnusable("the file server of the model's machine does not answer") from error


class PassedFiles(SharedFiles):
    """The backend is on another machine without a file server: whoever gave the replica passes files there and back."""

    def __init__(self, folder: Path, key: str, parent: ParentFiles) -> None:
        super().__init__(folder)
        self._key = key
        self._parent = parent

    async def give(self, file: Path) -> str:
        return await self._ask(FileVerb.GIVE, str(file))

    async def place(self, name: str) -> str:
        return await self._ask(FileVerb.PLACE)

    async def fetch(self, path: str) -> Path:
        target = self._folder / "fetched"
        await self._ask(FileVerb.FETCH, path, str(target))
        if await asyncio.to_thread(size_of, target) > MAX_BODY_BYTES:
            raise NodeFilesUnusable(f"the sound has more than {MAX_BODY_BYTES} bytes")
        return target

    async def _ask(self, verb: FileVerb, path: str = "", target: str = "") -> str:
        try:
            async with asyncio.timeout(_PASSED_SECONDS):
                return await self._parent.ask(self._key, verb, path, target)
        except (ParentAway, TimeoutError) as error:
            reason = error.message if isinstance(error, ParentAway) else "it took too long"
            raise NodeFilesUnusable(
                f"the sound could not be passed to or from the model's machine: {reason}"
            ) from error


@asynccontextmanager
async def files_of(served: Served, folder: Path) -> AsyncIterator[SharedFiles]:
    """The files of one request to this replica; `folder` is the request's own."""
    replica = served.replica
    if replica.files_by_parent:
        yield PassedFiles(folder, replica.key, served.parent)
        return
    if not replica.files_url:
        yield SharedFiles(folder)
        return
    headers = {"Authorization": f"Bearer {replica.files_token}"} if replica.files_token else {}
    async with aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session:
        files = NodeFiles(folder, replica.files_url, session)
        try:
            yield files
        finally:
            await files.clear()
