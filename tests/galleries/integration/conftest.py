"""A web server that says what a test tells it to, and galleries that ask it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import ArtefactReader
from corral.galleries.galleries import Galleries, open_galleries
from corral.galleries.gallery import GallerySource
from tests.kit.clock import ManualClock
from tests.kit.galleries import NoRegistry

INDEX = b"- name: x\n  uri: quay.io/x:1\n"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Origin:
    """Where galleries lie. By default an index with an etag."""

    url: str = ""
    content: bytes = INDEX
    etag: str = ""
    last_modified: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    seen: list[web.Request] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the test is: for answers that never end by themselves."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        response = await self.answers.get(request.path, self._index)(request)
        self.statuses.append(response.status)
        return response

    async def _index(self, request: web.Request) -> web.Response:
        headers = {"ETag": self.etag} if self.etag else {}
        headers |= {"Last-Modified": self.last_modified} if self.last_modified else {}
        is_known = self.etag and request.headers.get("If-None-Match") == self.etag
        is_known = is_known or (self.last_modified and request.headers.get("If-Modified-Since") == self.last_modified)
        return web.Response(status=304 if is_known else 200, body=b"" if is_known else self.content, headers=headers)

    def fail(self, path: str, status: int) -> None:
        async def refuse(request: web.Request) -> web.Response:
            return web.Response(status=status, text="- name: error-page\n  uri: a\n")

        self.answers[path] = refuse

    def source(self, path: str = "/index.yaml", *mirrors: str) -> GallerySource:
        return GallerySource(name="g", url=self.url + path, mirrors=tuple(self.url + mirror for mirror in mirrors))


@asynccontextmanager
async def serving(origin: Origin, tls: ssl.SSLContext | None = None) -> AsyncIterator[Origin]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", origin.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        assert site._server is not None
        assert isinstance(site._server, asyncio.Server)
        port = site._server.sockets[0].getsockname()[1]
        origin.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield origin
    finally:
        origin.over.set()
        await runner.cleanup()


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with serving(Origin(etag='"1"')) as opened:
        yield opened


@pytest.fixture
def config(tmp_path: Path) -> GalleriesConfig:
    return GalleriesConfig(sources=(), cache=tmp_path / "cache", timeout=timedelta(seconds=20))


Opener = Callable[..., AbstractAsyncContextManager[Galleries]]


@pytest.fixture
def opener(config: GalleriesConfig, clock: ManualClock) -> Opener:
    """Galleries as another process would have them: the cache is shared, the memory is not."""

    def opened(registry: ArtefactReader | None = None, **changes: object) -> AbstractAsyncContextManager[Galleries]:
        changed = replace(config, **changes)  # type: ignore[arg-type]
        return open_galleries(changed, registry=registry or NoRegistry(), clock=clock)

    return opened


@pytest.fixture
async def galleries(opener: Opener) -> AsyncIterator[Galleries]:
    async with opener() as found:
        yield found
