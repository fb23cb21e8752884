"""A gateway in this process with everything around it: control, engines, and clients that speak raw HTTP."""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

import msgspec
from aiohttp import WSMsgType, web

from corral.base.retry import Backoff
from corral.gateway.config import GatewayConfig, Limits, TimeOuts
from corral.processes.gateway import Gateway, open_gateway
from corral.wire.fleet_tls import CertificateAsk, IssuedCertificate
from corral.wire.keys import hash_secret
from corral.wire.view import (
    Beat,
    EnsureModel,
    GatewayReport,
    KeyEntry,
    Loading,
    ModelEntry,
    ReplicaEntry,
    View,
    ViewMessage,
    change_between,
    encode_line,
)
from tests.kit.engine import StubEngine
from tests.kit.ports import lasting_port

_LOOPBACK: Final = "127.0.0.1"
KEY: Final = "corral_test-key-with-the-scope-inference"
ADMIN_KEY: Final = "corral_test-key-with-the-scope-admin"
GATEWAY_KEY: Final = "corral_test-key-with-the-scope-gateway"
MODEL: Final = "echo"
_BEAT_SECONDS: Final = 3.0
PATIENCE: Final = 60.0
"""How long a test waits for anything before it counts as a hang."""
_QUICK_TURNS: Final = 1000
"""Turns of the event loop for effects that come by themselves: a few milliseconds."""
_LOOK_SECONDS: Final = 0.001


class ClientAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool
    """Whether the answer came to the end that its head promised."""

    @property
    def error(self) -> dict[str, object]:
        error: dict[str, object] = msgspec.json.decode(self.body)["error"]
        return error


class RawClient:
    """One connection of a client: sends any bytes, reads answers with a reader of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def open(cls, port: int, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Self]:
        reader, writer = await asyncio.open_connection(_LOOPBACK, port, limit=1 << 20, ssl=tls)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, *pieces: bytes) -> None:
        """Each piece gets a turn of the loop of its own."""
        for piece in pieces:
            with contextlib.suppress(ConnectionError):
                self.writer.write(piece)
                await self.writer.drain()
            await asyncio.sleep(0)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = raw[:-4].decode("latin-1").split("\r\n")
        version, status, *_ = line.split(" ")
        assert version == "HTTP/1.1", line
        pairs = [field.partition(":") for field in fields]
        return int(status), {name.lower(): value.strip() for name, _, value in pairs}

    async def read_answer(self, *, is_head: bool = False) -> ClientAnswer:
        """IncompleteReadError when not even a head comes."""
        async with asyncio.timeout(PATIENCE):
            status, headers = await self.read_head()
            if is_head or status in (204, 304):
                return ClientAnswer(status, headers, b"", is_whole=True)
            try:
                return ClientAnswer(status, headers, await self._read_body(headers), is_whole=True)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                partial = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
                return ClientAnswer(status, headers, partial, is_whole=False)

    async def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if "transfer-encoding" in headers:
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
            return body
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        return await self.reader.read()

    async def until_closed(self) -> bytes:
        """What the gateway still sent before it hung up."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read()
            return b""


def request(
    body: bytes | None = None,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    key: str | None = KEY,
    head: bytes = b"",
    version: str = "1.1",
) -> bytes:
    """The bytes of one request."""
    lines = f"{method} {path} HTTP/{version}\r\nHost: corral.test\r\n".encode()
    if key is not None:
        lines += f"Authorization: Bearer {key}\r\n".encode()
    if body is not None:
        lines += b"Content-Length: %d\r\n" % len(body)
    return lines + head + b"\r\n" + (body or b"")


def chat(model: str = MODEL, *, text: str = "hello", stream: bool = True) -> bytes:
    messages = [{"role": "user", "content": text}]
    return msgspec.json.encode({"model": model, "stream": stream, "messages": messages})


class StubControl:
    """Streams a view, takes reports, loads models when a test says so, and shows whatever else it was asked."""

    def __init__(self) -> None:
        self.view = View(version=1)
        self.reports: list[GatewayReport] = []
        self.ensured: list[str] = []
        self.loading = Loading(model="", state="staging", node="w1", bytes_sent=10, total_bytes=100, eta_seconds=9)
        self.passed: list[tuple[str, str, dict[str, str], bytes]] = []
        self.hold = asyncio.Event()
        """Answers of `hangs_at` wait for it."""
        self.hangs_at = "/api/hold"
        self.denied_bearers: set[str] = set()
        """Requests with one of them are answered with 401."""
        self.sign: Callable[[str], IssuedCertificate] | None = None
        """Makes certificates for gateways; None: it makes none."""
        self.signed = 0
        self.views_served = 0
        self._followers: set[asyncio.Queue[ViewMessage]] = set()
        self._news = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = lasting_port()
        self.tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{_LOOPBACK}:{self.port}"

    def change(self, **parts: object) -> None:
        """Replace parts of the view, and send the change to gateways."""
        new = msgspec.structs.replace(self.view, version=self.view.version + 1, **parts)
        message, self.view = change_between(self.view, new), new
        self.tell(message)

    def tell(self, message: ViewMessage) -> None:
        for follower in self._followers:
            follower.put_nowait(message)

    async def until_news(self) -> None:
        """Wait for the next report, or the next request for a model."""
        self._news.clear()
        await self._news.wait()

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/api/v1/gateway/view", self._view)
        app.router.add_post("/api/v1/gateway/report", self._report)
        app.router.add_post("/api/v1/gateway/ensure", self._ensure)
        app.router.add_post("/api/v1/gateway/certificate", self._certificate)
        app.router.add_get("/ws", self._socket)
        app.router.add_route("*", "/{rest:.*}", self._other)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, _LOOPBACK, self.port, reuse_address=True, ssl_context=self.tls).start()

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _view(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {GATEWAY_KEY}":
            return web.json_response({}, status=401)
        response = web.StreamResponse()
        await response.prepare(request)
        mine: asyncio.Queue[ViewMessage] = asyncio.Queue()
        self._followers.add(mine)
        self.views_served += 1
        try:
            await response.write(encode_line(self.view))
            while True:
                await response.write(encode_line(await self._next(mine)))
        finally:
            self._followers.discard(mine)

    async def _next(self, news: asyncio.Queue[ViewMessage]) -> ViewMessage:
        try:
            async with asyncio.timeout(_BEAT_SECONDS):
                return await news.get()
        except TimeoutError:
            return Beat(version=self.view.version)

    async def _report(self, request: web.Request) -> web.Response:
        self.reports.append(msgspec.json.decode(await request.read(), type=GatewayReport))
        self._news.set()
        return web.Response(status=204)

    async def _ensure(self, request: web.Request) -> web.Response:
        model = msgspec.json.decode(await request.read(), type=EnsureModel).model
        self.ensured.append(model)
        self._news.set()
        loading = msgspec.structs.replace(self.loading, model=model)
        return web.Response(body=msgspec.json.encode(loading), content_type="application/json")

    async def _certificate(self, request: web.Request) -> web.Response:
        csr = msgspec.json.decode(await request.read(), type=CertificateAsk).csr
        if self.sign is None:
            return web.json_response({"error": "TLS inside the fleet is off"}, status=409)
        issued = self.sign(csr)
        self.signed += 1
        return web.Response(body=msgspec.json.encode(issued), content_type="application/json")

    async def _other(self, request: web.Request) -> web.Response:
        self.passed.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        if request.path == self.hangs_at:
            await self.hold.wait()
        if request.headers.get("Authorization", "").removeprefix("Bearer ") in self.denied_bearers:
            return web.json_response({"error": "invalid"}, status=401)
        return web.json_response({"path": request.path})

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        socket.headers.update({"X-Request-ID": "control's", "Access-Control-Allow-Origin": "http://control.test"})
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(f"echo {message.data}")
        return socket


@dataclass(kw_only=True)
class GatewayWorld:
    """A gateway, its control, and its engines; the first engine serves the model `echo`."""

    gateway: Gateway
    control: StubControl
    engines: list[StubEngine]
    port: int

    @property
    def engine(self) -> StubEngine:
        return self.engines[0]

    def client(self) -> contextlib.AbstractAsyncContextManager[RawClient]:
        return RawClient.open(self.port)

    async def ask(self, data: bytes, *, is_head: bool = False) -> ClientAnswer:
        """One request on a connection of its own."""
        async with self.client() as client:
            await client.send(data)
            return await client.read_answer(is_head=is_head)

    def in_flight(self) -> dict[str, int]:
        return self.gateway.services.directory.in_flight()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the event loop run until the condition holds: for effects in this process that have no event.

        Most of them take a few turns. The others wait for a timer or for another process, which looks at every turn
        would only keep from the processor.
        """
        async with asyncio.timeout(PATIENCE):
            for turn in itertools.count():
                if condition():
                    return
                await asyncio.sleep(0 if turn < _QUICK_TURNS else _LOOK_SECONDS)

    async def until_quiet(self) -> None:
        """No request under way, no connection to an engine but kept ones, no body held."""
        services, pool = self.gateway.services, self.gateway.services.pool
        await self.until(lambda: not self.in_flight() and pool.open_count == pool.idle_count)
        await self.until(lambda: not services.bodies.held and not services.dispatcher.waiting())


def replicas(*engines: StubEngine, model: str = MODEL, limit: int = 0) -> dict[str, ReplicaEntry]:
    entries = [
        ReplicaEntry(id=f"r{number}", model=model, node_id=f"n{number}", url=engine.url, key=f"k{number}", limit=limit)
        for number, engine in enumerate(engines)
    ]
    return {entry.id: entry for entry in entries}


def keys() -> dict[str, KeyEntry]:
    entry = KeyEntry(hash=hash_secret(KEY), id="key1", scopes=("inference",))
    administrator = KeyEntry(hash=hash_secret(ADMIN_KEY), id="key2", scopes=("admin",))
    return {entry.hash: entry, administrator.hash: administrator}


@asynccontextmanager
async def world(
    *,
    engines: int = 1,
    time_outs: TimeOuts | None = None,
    limits: Limits | None = None,
    limit: int = 0,
    control_tls: ssl.SSLContext | None = None,
    **more: Any,
) -> AsyncIterator[GatewayWorld]:
    """Everything is connected, and the gateway has its view. `more` is told to the gateway as it is."""
    control = StubControl()
    control.tls = control_tls
    async with AsyncExitStack() as stack:
        stubs = [await stack.enter_async_context(StubEngine()) for _ in range(engines)]
        models = {MODEL: ModelEntry(name=MODEL, created=1), "other": ModelEntry(name="other", alias_of=MODEL)}
        control.view = View(version=1, models=models, replicas=replicas(*stubs, limit=limit), keys=keys())
        await control.start()
        stack.push_async_callback(control.stop)
        config = GatewayConfig(
            port=0,
            control_url=control.url,
            control_key=GATEWAY_KEY,
            time_outs=replace(time_outs or TimeOuts(), drain=0.2),
            limits=limits or Limits(),
            report_period=timedelta(milliseconds=20),
            ensure_period=timedelta(milliseconds=20),
            reconnect=Backoff(first=timedelta(milliseconds=10), cap=timedelta(milliseconds=50)),
            **more,
        )
        gateway = await stack.enter_async_context(open_gateway(config))
        made = GatewayWorld(gateway=gateway, control=control, engines=stubs, port=gateway.port)
        await made.until(lambda: gateway.services.directory.version is not None)
        yield made
