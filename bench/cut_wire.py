"""A registry behind a wire that breaks: passes on what a real one answers, counts it, and cuts every connection once so
many bytes of layers have passed.
"""

from collections import Counter
from typing import Final, Self

import aiohttp
from aiohttp import web

_LOOPBACK: Final = "127.0.0.1"
_PIECE: Final = 64 * 1024
_ASKED: Final = ("Range", "Accept")
_TOLD: Final = ("Content-Type", "Content-Length", "Content-Range", "Docker-Content-Digest")


class CutWire:
    """`async with CutWire(address, cut_at=…) as wire:` ask `wire.address` instead."""

    def __init__(self, registry: str, *, cut_at: int) -> None:
        self._registry = registry
        self._left = cut_at
        self._is_cut = False
        self.fetched = Counter[str]()
        """Bytes of layers that passed since `mend`, by their digests."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, _LOOPBACK, 0).start()
        self.address = f"{_LOOPBACK}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def mend(self) -> None:
        """For good."""
        self._is_cut = False
        self._left = 0
        self.fetched.clear()

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self._is_cut:
            return _hang_up(request)
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        async with self._session.get(f"http://{self._registry}{request.path_qs}", headers=headers) as answer:
            told = {name: answer.headers[name] for name in _TOLD if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=told)
            await response.prepare(request)
            async for piece in answer.content.iter_chunked(_PIECE):
                if self._count(request.path, len(piece)):
                    return _hang_up(request)
                await response.write(piece)
            await response.write_eof()
            return response

    def _count(self, path: str, size: int) -> bool:
        """Whether the wire is cut by now."""
        _, is_blob, digest = path.rpartition("/blobs/")
        if is_blob:
            self.fetched[digest] += size
            self._is_cut = self._is_cut or 0 < self._left <= self.fetched.total()
        return self._is_cut


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
