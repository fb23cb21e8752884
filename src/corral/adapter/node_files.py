"""Files of a request at the backend's machine: the gRPC contract passes sounds by path.

A worker's adapter shares its machine with the backends. One of a frontend does not: it sends files to the worker's file
server, and fetches what a backend wrote from there, under the names that LocalAI's frontends use.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec

from corral.adapter.forms import MAX_BODY_BYTES
from corral.adapter.scratch import disk_errors
from corral.base.errors import CorralError
from corral.wire.adapter import AdapterReplica

_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=10, sock_read=60)
_PART_BYTES: Final = 256 * 1024
_ANSWER_BYTES: Final = 64 * 1024


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

    async def give(self, file: Path) -> str:
        key = f"ephemeral/inputs/{secrets.token_hex(4)}/{file.name}"
        with disk_errors():
            content = await asyncio.to_thread(file.open, "rb")
        with content:
            return await self._path("PUT", key, content)

    async def place(self, name: str) -> str:
        return await self._path("POST", "temp", None)

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


@asynccontextmanager
async def files_of(replica: AdapterReplica, folder: Path) -> AsyncIterator[SharedFiles]:
    """The files of one request to this replica; `folder` is the request's own."""
    if not replica.files_url:
        yield SharedFiles(folder)
        return
    headers = {"Authorization": f"Bearer {replica.token}"} if replica.token else {}
    async with aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session:
        yield NodeFiles(folder, replica.files_url, session)
