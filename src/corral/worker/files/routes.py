"""The file server: its routes below /v1/files/ and /v1/files-list/ with LocalAI's methods, statuses and texts. Files
are sent whole, as LocalAI's frontends ask for them, or as one range.
"""

import asyncio
import functools
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from corral.worker.files import disk
from corral.worker.files.bodies import parse_range
from corral.worker.files.refusals import FileRefused, bad_request, check_method, disk_full, failed
from corral.worker.files.store import FileStore
from corral.worker.files.threads import Threads
from corral.worker.files.uploads import Uploads
from corral.worker.http import PathHandler

PIECE: Final = 256 * 1024
LENGTH_STATED_BELOW: Final = 512
"""LocalAI's worker states the length of small bodies only, and sends others in chunks."""
_BYTES: Final = "application/octet-stream"


class _Source:
    """An open file, or a directory, which has no bytes."""

    def __init__(self, store: FileStore, key: str) -> None:
        self._file = store.open(key)
        self.size = 0 if self._file is None else os.fstat(self._file).st_size

    def read(self, offset: int, length: int) -> bytes:
        return b"" if self._file is None else os.pread(self._file, length, offset)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


FILES: Final = "/v1/files/"
LISTINGS: Final = "/v1/files-list/"
RANGES: Final = "/v1/corral/files/"


class FileRoutes:
    def __init__(self, store: FileStore, threads: Threads, *, stall_seconds: float) -> None:
        self._store = store
        self._threads = threads
        self._stall_seconds = stall_seconds
        self._uploads = Uploads(store, threads, stall_seconds=stall_seconds)
        self._files = {"HEAD": self._head, "GET": self._get, "PUT": self._put, "POST": self._post}

    def table(self) -> Mapping[str, PathHandler]:
        """Map path prefixes to handlers; the rest of the path is the key, decoded."""
        return {FILES: self._file, LISTINGS: self._listing, RANGES: self._range}

    def end(self) -> None:
        """Abort large transfers, so that the shutdown does not wait for them."""
        self._uploads.end()

    async def _file(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        return await _dispatched(self._files, request, key)

    async def _range(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        return await _dispatched({"GET": self._get_range}, request, key)

    async def _head(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        head = await self._threads.run(lambda: self._store.head(key))
        if head is None:
            raise FileRefused(404, "not found")
        headers = {
            "Accept-Ranges": "bytes",
            "X-File-Size": str(head.size),
            "X-Local-Path": str(head.path).replace("\r", " ").replace("\n", " "),
        }
        if head.target:
            headers["X-Target-SHA256"] = head.target
        elif digest := head.hash or await self._threads.run_long(lambda: self._store.digest(key)):
            headers["X-Content-SHA256"] = digest
        response = web.StreamResponse(headers=headers)
        response.content_length = head.size
        return response

    async def _get(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        """Send the whole file; an empty response for a directory, as LocalAI's worker does."""
        async with self._threads.opened(lambda: _Source(self._store, key)) as source:
            response = web.StreamResponse(headers={"Content-Type": _BYTES})
            if source.size < LENGTH_STATED_BELOW:
                response.content_length = source.size
            else:
                response.enable_chunked_encoding()
            return await self._send(request, response, source, range(source.size))

    async def _get_range(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        """Send the requested range, or the whole file. An extension: LocalAI's worker does not support ranges."""
        async with self._threads.opened(lambda: _Source(self._store, key)) as source:
            requested = request.headers.get("Range", "")
            span = parse_range(requested, source.size) if requested else range(source.size)
            headers = {"Content-Type": _BYTES, "Accept-Ranges": "bytes"}
            if requested:
                headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{source.size}"
            response = web.StreamResponse(status=206 if requested else 200, headers=headers)
            response.content_length = len(span)
            return await self._send(request, response, source, span)

    async def _send(
        self, request: web.BaseRequest, response: web.StreamResponse, source: "_Source", span: range
    ) -> web.StreamResponse:
        await response.prepare(request)
        offset = span.start
        while offset < span.stop:
            piece = await self._threads.run(functools.partial(source.read, offset, min(PIECE, span.stop - offset)))
            if not piece:  # the file became shorter than announced: abort, so that the peer notices
                raise ConnectionResetError("the file became shorter while it was sent")
            async with asyncio.timeout(self._stall_seconds):
                await response.write(piece)
            offset += len(piece)
        await response.write_eof()
        return response

    async def _put(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        received = await self._uploads.receive(request, key)
        if isinstance(received, Path):
            return _local_path(received)
        return web.Response(status=308, headers={"X-File-Size": str(received), "Range": f"bytes=0-{received - 1}"})

    async def _post(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        if key != "temp":
            raise FileRefused(404, "not found")
        name = f"localai-output-{secrets.randbelow(2**63)}.tmp"
        return _local_path(await self._threads.run(lambda: self._store.make_temporary(name)))

    async def _listing(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        check_method(request.method, "GET")
        try:
            files = await self._threads.run(lambda: self._store.listing(key))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileRefused(404, "directory not found") from error
        except OSError as error:
            raise failed("listing directory", error) from error
        return _json({"files": files or None})


async def _dispatched(handlers: Mapping[str, PathHandler], request: web.BaseRequest, key: str) -> web.StreamResponse:
    """Run the handler of the request's method, and convert disk errors to the protocol's responses."""
    method = request.method
    check_method(method, *handlers)
    if not key:
        raise bad_request("key is required")
    try:
        return await handlers[method](request, key)
    except ConnectionError:
        raise
    except OSError as error:
        if method == "GET" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileRefused(404, "file not found") from error
        if error.errno in disk.FULL:
            raise disk_full(error) from error
        raise failed("creating file" if method == "PUT" else "opening file", error) from error


def _local_path(path: Path) -> web.Response:
    return _json({"local_path": str(path)})


def _json(document: object) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return web.Response(body=text.encode(errors="replace"), content_type="application/json")
