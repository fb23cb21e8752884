"""One lock for each backend, whatever it is called: its own name, its alias and its meta backend share it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

Identify = Callable[[frozenset[str]], Awaitable[frozenset[str]]]
"""From names to the backends that they mean now."""


class BackendLocks:
    def __init__(self, identify: Identify) -> None:
        self._identify = identify
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Lock the backends with these names. Locks are taken in sorted order, so that no deadlock is possible."""
        wanted = frozenset(names)
        while True:
            identities = await self._identify(wanted)
            async with AsyncExitStack() as stack:
                for identity in sorted(identities):
                    await stack.enter_async_context(self._one(identity))
                if await self._identify(wanted) == identities:  # else a name got another meaning while we waited
                    yield
                    return

    @asynccontextmanager
    async def _one(self, identity: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(identity, asyncio.Lock())
        self._users[identity] = self._users.get(identity, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[identity] -= 1
            if not self._users[identity]:
                del self._users[identity], self._locks[identity]
