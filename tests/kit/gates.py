"""Gates: named points at which a test stops a component, does something else meanwhile, and lets it go on.

So a race is written down instead of hoped for:

    gates = Gates()
    slow = gated(database, gates, "begin")
    async with gates.held_inside("begin") as held:
        act = group.create_task(registry_on(slow).approve(node_id, by="slow"))
        await held.until_inside()
        await registry.remove(node_id, by="quick")

At the end of the block the point is open again, and what was held goes on.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any, TypeVar, cast

import pytest

T = TypeVar("T")


class ClosedGate:
    """One point that is closed at the moment."""

    def __init__(self) -> None:
        self._inside = 0
        self._came = asyncio.Event()
        self._open = asyncio.Event()

    @property
    def inside(self) -> int:
        """How many callers have reached the point so far."""
        return self._inside

    async def until_inside(self, count: int = 1) -> None:
        """Wait until so many callers have reached the point."""
        while self._inside < count:
            self._came.clear()
            await self._came.wait()

    def let_go(self) -> None:
        """Open the point before the end of the block."""
        self._open.set()

    async def stay(self) -> None:
        """For the component: wait until let go."""
        self._inside += 1
        self._came.set()
        await self._open.wait()


class Gates:
    """All points of one test; each is open unless held."""

    def __init__(self) -> None:
        self._held: dict[str, ClosedGate] = {}

    @asynccontextmanager
    async def held_inside(self, point: str) -> AsyncIterator[ClosedGate]:
        """Close the point. Callers that reach it wait until the end of the block at the latest."""
        if point in self._held:
            raise RuntimeError(f"the point {point!r} is held already")
        held = self._held[point] = ClosedGate()
        try:
            yield held
        finally:
            del self._held[point]
            held.let_go()

    async def pass_through(self, point: str) -> None:
        """Called by the component that is gated."""
        if (held := self._held.get(point)) is not None:
            await held.stay()


def gated(thing: T, gates: Gates, *methods: str) -> T:
    """Return a proxy whose listed asynchronous methods first pass the gate of their name.

    A method that returns an asynchronous context is held before the context is entered.
    """
    return cast(T, _Gated(thing, gates, methods))


class _Gated:
    def __init__(self, thing: object, gates: Gates, methods: tuple[str, ...]) -> None:
        self._thing = thing
        self._gates = gates
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._thing, name)
        return self._through(name, attribute) if name in self._methods else attribute

    def _through(self, point: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @asynccontextmanager
        async def enter(context: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
            await self._gates.pass_through(point)
            async with context as value:
                yield value

        async def wait(result: Awaitable[Any]) -> Any:
            await self._gates.pass_through(point)
            return await result

        def call(*arguments: object, **named: object) -> Any:
            result = method(*arguments, **named)
            return enter(result) if isinstance(result, AbstractAsyncContextManager) else wait(result)

        return call


class HeldCall:
    """Blocks the calling thread until the test releases it."""

    def __init__(self, work: Callable[..., object]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.go_on = threading.Event()

    def __call__(self, *arguments: object, **named: object) -> object:
        self._loop.call_soon_threadsafe(self.begun.set)
        self.go_on.wait()
        return self._work(*arguments, **named)


@contextmanager
def held_call(module: ModuleType, name: str) -> Iterator[HeldCall]:
    """Replace a function by one that blocks its thread. It is released at the end in any case: a thread cannot be
    stopped."""
    with pytest.MonkeyPatch.context() as patch:
        holding = HeldCall(getattr(module, name))
        patch.setattr(module, name, holding)
        try:
            yield holding
        finally:
            holding.go_on.set()
