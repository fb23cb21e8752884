"""Passwords: hashed and checked with Argon2id, in threads and few at once, since each takes time and memory; and how
often somebody may guess.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cache, partial
from typing import Final, NamedTuple, TypeVar

from nacl.exceptions import CryptoError
from nacl.pwhash import argon2id

from corral.base.errors import CorralError
from corral.base.ids import new_secret

T = TypeVar("T")
_AT_ONCE: Final = 2
"""How many are hashed at the same time: each takes 64 MiB and a tenth of a second of a processor."""
_WAITING: Final = 32
"""How many may be under way, or wait for it."""
_PASSES: Final = argon2id.OPSLIMIT_INTERACTIVE
_MEMORY: Final = argon2id.MEMLIMIT_INTERACTIVE


class GuessLimit(NamedTuple):
    """So many wrong passwords, before further ones have to wait; and after how many seconds there is one more."""

    guesses: int
    regained_after: float


FOR_NAME_FROM_SOURCE: Final = GuessLimit(10, 30)
FROM_SOURCE: Final = GuessLimit(30, 10)
FOR_NAME: Final = GuessLimit(1000, 1)
"""Far more than from one source: somebody who guesses from a few sources must not lock out the owner of the name."""
_REMEMBERED: Final = 10_000
"""Names and sources whose guesses are counted. More at once only come from a crowd of sources."""


class TooManyLogins(CorralError):
    """Too many wrong passwords came for this name or from this source, or too many people log in at once."""

    code = "too_many_logins"
    retryable = True

    def __init__(self, wait: timedelta) -> None:
        self.wait_seconds = max(1, math.ceil(wait.total_seconds()))
        super().__init__(f"too many logins for this name or from this source; try again in {self.wait_seconds} s")


class PasswordHasher:
    """Makes and checks hashes of passwords. A name that nobody has takes as long as a wrong password."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._under_way = 0

    async def hash(self, password: str) -> str:
        return await self._run(partial(_hash, password))

    async def matches(self, hash: str | None, password: str) -> bool:
        """Whether this is the password; never for a hash that is None, after the time that a check takes."""
        return await self._run(partial(_is_password, hash, password))

    async def _run(self, work: Callable[[], T]) -> T:
        if self._under_way >= _WAITING:
            raise TooManyLogins(timedelta(seconds=2))
        self._under_way += 1
        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        finally:
            self._under_way -= 1


def _hash(password: str) -> str:
    return argon2id.str(password.encode(), opslimit=_PASSES, memlimit=_MEMORY).decode()


@cache
def _nobodys_hash() -> str:
    return _hash(new_secret())


def _is_password(hash: str | None, password: str) -> bool:
    try:
        is_right = argon2id.verify((hash or _nobodys_hash()).encode(), password.encode())
    except CryptoError:
        return False
    return is_right and hash is not None


class GuessLimits:
    """Counts wrong passwords by name and source, by source, and by name. Each has some guesses, and regains them one by
    one.

    A guess is taken before the password is checked, so that many at once are not free, and given back for a right one.
    What nobody guessed at lately is forgotten.
    """

    def __init__(self) -> None:
        self._full_again: OrderedDict[str, float] = OrderedDict()
        """When each name or source has all its guesses again, by a clock that nobody sets."""

    def take(self, *, name: str, source: str, now: float) -> None:
        """Raise TooManyLogins when the name or the source has no guess left; then none is taken. `now` is monotonic."""
        limits = _limits(name, source)
        wait = max(self._wait(subject, limit, now) for subject, limit in limits)
        if wait > 0:
            raise TooManyLogins(timedelta(seconds=wait))
        for subject, limit in limits:
            self._full_again[subject] = max(self._full_again.get(subject, now), now) + limit.regained_after
            self._full_again.move_to_end(subject)
        while len(self._full_again) > _REMEMBERED:
            self._full_again.popitem(last=False)

    def give_back(self, *, name: str, source: str) -> None:
        for subject, limit in _limits(name, source):
            if subject in self._full_again:
                self._full_again[subject] -= limit.regained_after

    def _wait(self, subject: str, limit: GuessLimit, now: float) -> float:
        return self._full_again.get(subject, now) - now - limit.regained_after * (limit.guesses - 1)

    def __len__(self) -> int:
        return len(self._full_again)


def _limits(name: str, source: str) -> Iterable[tuple[str, GuessLimit]]:
    return (
        (f"name {name} from {source}", FOR_NAME_FROM_SOURCE),
        (f"source {source}", FROM_SOURCE),
        (f"name {name}", FOR_NAME),
    )
