"""What a thief has: a fleet's addresses, one stolen credential, and clients that ignore all manners."""

import asyncio
import base64
import http.client
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import nkeys

from corral.base.ids import new_secret
from corral.bus.credentials import UserJwt
from corral.wire.registration import FEATURES
from tests.kit.waiting import WAIT_TIMEOUT, wait_until

_HTTP_SECONDS: Final = 60
_LINE_LIMIT: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask_http(
    method: str,
    url: str,
    body: object = None,
    *,
    key: str = "",
    headers: Mapping[str, str] | None = None,
    is_stream: bool = False,
) -> HttpReply:
    """One request on a connection of its own; redirects are not followed. Of a stream the first line is read."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_HTTP_SECONDS)
    sent = {"Content-Type": "application/json", **(headers or {})}
    sent |= {"Authorization": f"Bearer {key}"} if key else {}
    try:
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, target, None if body is None else json.dumps(body).encode(), sent)
        response = connection.getresponse()
        return HttpReply(status=response.status, body=response.readline() if is_stream else response.read())
    finally:
        connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThiefNode:
    """A machine of the thief's that registered as a node."""

    id: str
    name: str
    secret: str = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class AttackedFleet:
    """Two workers, a frontend, NATS and a database, all of them real."""

    url: str
    nats_url: str
    """Without any credential."""
    admin_key: str = field(repr=False)
    registration_token: str = field(repr=False)
    database: str = field(repr=False)
    """The URL, with its password."""
    folders: tuple[Path, ...]
    """Directories with everything that the fleet keeps."""
    pids: Callable[[], list[int]]
    """All processes of the fleet."""
    worker_pids: Callable[[], dict[str, int]]
    worker_folders: Mapping[str, Path]

    def call(self, method: str, path: str, body: object = None, *, key: str = "") -> HttpReply:
        return ask_http(method, self.url + path, body, key=key)

    def admin(self, method: str, path: str, body: object = None) -> HttpReply:
        return self.call(method, path, body, key=self.admin_key)

    def good(self, method: str, path: str, body: object = None) -> Any:
        reply = self.admin(method, path, body)
        assert reply.status < 300, f"{method} {path}: {reply.status} {reply.body!r}"
        return reply.json() if reply.body else None

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.good("GET", "/api/v1/nodes?limit=1000")["items"]}

    def node(self, node_id: str) -> dict[str, Any]:
        detail: dict[str, Any] = self.good("GET", f"/api/v1/nodes/{node_id}")
        return detail

    def victim(self, name: str = "worker-1") -> str:
        """The id of a worker that belongs to the fleet."""
        return str(self.nodes()[name]["id"])

    def secret_of(self, worker: str) -> str:
        """The node secret that a worker keeps on its disk."""
        return (self.worker_folders[worker] / "node-secret").read_text().strip()

    def new_key(self, name: str, *scopes: str, **more: object) -> str:
        return str(self.good("POST", "/api/v1/keys", {"name": name, "scopes": list(scopes), **more})["key"])

    def register(self, name: str, *, is_corral: bool = True, **more: Any) -> ThiefNode:
        """A machine asks to join with the registration token; it is pending afterwards."""
        secret = new_secret() if is_corral else ""
        body: dict[str, Any] = {"name": name, "address": "127.0.0.1:9", "http_address": "127.0.0.1:9"}
        body |= {"token": self.registration_token, **more}
        if is_corral:
            hello = {"version": "1", "features": list(FEATURES), "secret": secret, "incarnation": new_secret()}
            body["corral"] = {**hello, "heartbeat_seconds": 3600}
        reply = self.call("POST", "/api/node/register", body, key=self.registration_token)
        assert reply.status == 201, reply.body
        return ThiefNode(id=reply.json()["id"], name=name, secret=secret, body=body)

    def register_again(self, node: ThiefNode, **changes: Any) -> HttpReply:
        """The same machine registers once more, as it does to get a NATS user."""
        return self.call("POST", "/api/node/register", {**node.body, **changes}, key=self.registration_token)

    def admit(self, name: str, *, is_corral: bool = True, **more: Any) -> tuple[ThiefNode, UserJwt]:
        """A machine that was let in, and its NATS user."""
        node = self.register(name, is_corral=is_corral, **more)
        self.good("POST", f"/api/v1/nodes/{node.id}/approve")
        return node, self.user_of(node)

    def user_of(self, node: ThiefNode) -> UserJwt:
        answer = self.register_again(node).json()
        return UserJwt(answer["nats_jwt"], answer["nats_user_seed"])

    def remove(self, node: ThiefNode) -> None:
        self.admin("DELETE", f"/api/v1/nodes/{node.id}")

    def until_healthy(self, *names: str) -> None:
        def are_healthy() -> bool:
            nodes = self.nodes()
            return all(nodes.get(name, {}).get("status") == "healthy" for name in names)

        def answer() -> bool:
            nodes = self.nodes()
            if not set(names) <= nodes.keys():
                return False
            ids = [nodes[name]["id"] for name in names]
            return all(self.admin("GET", f"/api/nodes/{id}/backends").status == 200 for id in ids)

        # A worker gets its NATS user with the heartbeat after its approval. Who asked before that made it unhealthy, as
        # it did not respond, and it is healthy again with the heartbeat after that: so this is looked at last.
        wait_until(answer, f"{', '.join(names)} to answer over NATS", seconds=120)
        wait_until(are_healthy, f"{', '.join(names)} to be healthy", seconds=120)


class NatsRefused(Exception):
    """The server ended the connection; its words."""


class RawNats:
    """A NATS client of the thief's: it says what it likes, and reads what the server thinks of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, info: Mapping[str, Any]) -> None:
        self._reader = reader
        self._writer = writer
        self.info = info
        self.heard: list[tuple[str, bytes]] = []
        """Subject and content of all messages so far."""
        self._next_sid = 0

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, user: UserJwt | None = None, login: Mapping[str, str] | None = None
    ) -> AsyncIterator[Self]:
        """Log in with a user, with other fields, or with nothing. NatsRefused if the server does not like it."""
        parts = urlsplit(url)
        async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_LINE_LIMIT)
        try:
            greeting = await reader.readline()
            info = json.loads(greeting.removeprefix(b"INFO "))
            options: dict[str, Any] = {"verbose": False, "pedantic": True, "lang": "x", "version": "1", "protocol": 1}
            options |= {"headers": True, "no_responders": True, "echo": False, **(login or {})}
            if user is not None:
                key = nkeys.from_seed(bytearray(user.seed.encode()))
                signed = base64.urlsafe_b64encode(key.sign(info["nonce"].encode())).decode().rstrip("=")
                options |= {"jwt": user.jwt, "sig": signed}
            writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
            client = cls(reader, writer, info)
            problems = await client._settle()
            if problems:
                raise NatsRefused("; ".join(problems))
            yield client
        finally:
            writer.close()

    async def may_hear(self, subject: str) -> bool:
        """Subscribe; whether the server lets it."""
        self._next_sid += 1
        self._writer.write(f"SUB {subject} {self._next_sid}\r\n".encode())
        return not await self._settle()

    async def may_say(self, subject: str, data: bytes = b"{}", *, reply_to: str = "") -> bool:
        """Publish; whether the server passes it on."""
        head = f"PUB {subject} {reply_to} {len(data)}" if reply_to else f"PUB {subject} {len(data)}"
        self._writer.write(f"{head}\r\n".encode() + data + b"\r\n")
        return not await self._settle()

    async def seconds_until_closed(self) -> float:
        """Wait until the server ends the connection, answering its pings meanwhile."""
        began = time.monotonic()
        async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
            while line := await self._line():
                await self._take(line)
        return time.monotonic() - began

    async def _settle(self) -> list[str]:
        """What the server complains about, of all that was sent so far. It answers in order."""
        problems: list[str] = []
        try:
            self._writer.write(b"PING\r\n")
            async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
                await self._writer.drain()
                while (line := await self._line()) != b"PONG":
                    if not line:
                        raise NatsRefused("; ".join([*problems, "closed"]))
                    problems += await self._take(line)
        except ConnectionError as error:
            raise NatsRefused("; ".join([*problems, str(error)])) from error
        return problems

    async def _line(self) -> bytes:
        try:
            return (await self._reader.readline()).strip()
        except ConnectionError:
            return b""

    async def _take(self, line: bytes) -> list[str]:
        if line == b"PING":
            self._writer.write(b"PONG\r\n")
        elif line.startswith((b"MSG ", b"HMSG ")):
            words = line.split()
            self.heard.append((words[1].decode(), await self._reader.readexactly(int(words[-1]) + 2)))
        elif line.startswith(b"-ERR"):
            return [line.decode()]
        return []
