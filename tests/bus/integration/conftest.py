"""A real nats-server for each test, and clients that are closed at its end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corral.bus import server as server_module
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.port import Message
from corral.bus.problems import Problem, ProblemKind
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port


@pytest.fixture(autouse=True)
def usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody else takes while a test has its server stopped."""
    monkeypatch.setattr(server_module, "DEFAULT_PORT", lasting_port())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[PlainNats]:
    async with PlainNats(tmp_path / "nats") as server:
        yield server


@dataclass
class Watched:
    """A bus whose changes can be waited for."""

    bus: NatsBus
    changes: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)
    problems: asyncio.Queue[Problem] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.bus.on_connection(self.changes.put_nowait)
        self.bus.problems.listen(self.problems.put_nowait)

    async def becomes(self, connected: bool) -> None:
        async with asyncio.timeout(60):
            while await self.changes.get() is not connected:
                pass

    async def has(self, kind: ProblemKind) -> Problem:
        async with asyncio.timeout(60):
            while (problem := await self.problems.get()).kind is not kind:
                pass
        return problem


Open = Callable[..., Awaitable[Watched]]


@pytest.fixture
async def open_bus() -> AsyncIterator[Open]:
    """Open a bus for the rest of the test: `await open_bus(url, inbox_prefix=…)`."""
    async with AsyncExitStack() as stack:

        async def open_one(url: str, **options: object) -> Watched:
            config = options.pop("config", None) or BusConfig(url=url)
            watched = Watched(NatsBus(config, **options))  # type: ignore[arg-type]
            await stack.enter_async_context(watched.bus)
            return watched

        yield open_one


class Heard:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()

    async def __call__(self, message: Message) -> None:
        self._messages.put_nowait(message)

    async def next(self) -> Message:
        async with asyncio.timeout(60):
            return await self._messages.get()


@pytest.fixture
def heard() -> Heard:
    return Heard()
