"""Calls an ASGI application in the same event loop: one request, one answer, no sockets."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import msgspec
from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        return msgspec.json.decode(self.body)


async def call(
    app: ASGIApp, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> Answer:
    """The whole answer; for streams that never end use a real server."""
    sent: list[Message] = []
    received = _body(body)

    async def receive() -> Message:
        return await anext(received)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(_scope(method, url, headers or {}), receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    return Answer(
        status=start["status"],
        headers={name.decode(): value.decode() for name, value in start["headers"]},
        body=b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body"),
    )


def _scope(method: str, url: str, headers: Mapping[str, str]) -> dict[str, object]:
    parts = urlsplit(url)
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": quote(parts.path, safe="/%").encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


async def _body(body: bytes) -> AsyncIterator[Message]:
    yield {"type": "http.request", "body": body, "more_body": False}
    while True:
        yield {"type": "http.disconnect"}
