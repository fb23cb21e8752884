"""Asks the HTTP servers of our own processes how they are, with as little code as that takes.

Launchers stay small: an HTTP client would cost them more memory than everything else they do.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

_TIMEOUT_SECONDS: Final = 5.0
_FIRST_LOOK_SECONDS: Final = 0.02
_LAST_LOOK_SECONDS: Final = 0.2
_MAX_ANSWER: Final = 16 * 1024 * 1024


class Answer(NamedTuple):
    status: int
    body: bytes


async def ask(host: str, port: int, path: str, headers: Mapping[str, str] | None = None) -> Answer | None:
    """What the server answers to a GET; None when it does not answer, or not in HTTP."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await _ask(host, port, path, headers or {})
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
        return None


async def _ask(host: str, port: int, path: str, headers: Mapping[str, str]) -> Answer:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # So the answer simply ends with the connection.
        fields = {"Host": f"{host}:{port}", "Connection": "close", **headers}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await writer.drain()
        content = await reader.read(_MAX_ANSWER)
        while chunk := await reader.read(_MAX_ANSWER - len(content)):
            content += chunk
    finally:
        writer.close()
    head, _, body = content.partition(b"\r\n\r\n")
    return Answer(int(head.split(b" ", 2)[1]), body) if head.startswith(b"HTTP/") else Answer(0, b"")


async def until_ok(host: str, port: int, path: str) -> None:
    """Return when the server answers 200; looks often at first, then less."""
    pause = _FIRST_LOOK_SECONDS
    while True:
        answer = await ask(host, port, path)
        if answer is not None and answer.status == 200:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LAST_LOOK_SECONDS)


def dialled(host: str) -> str:
    """How a program on this machine reaches what listens on this host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def http_url(host: str, port: int) -> str:
    """The URL by which this machine reaches what listens on this host and port."""
    reached = dialled(host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
