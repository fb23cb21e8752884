"""Requests that wait for answers. One inbox serves them all and outlives connections, so that an answer which comes
after a reconnect still finds who asked.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from corral.base.errors import BusTimeout, CorralError, NoResponders

log = logging.getLogger(__name__)

_MOST_ANSWERS: Final = 65536

Send = Callable[[str], Awaitable[None]]
"""Sends the request with the given reply subject."""


class _Waiting:
    """One open request."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self._answers: asyncio.Queue[bytes | CorralError] = asyncio.Queue(_MOST_ANSWERS)

    def put(self, answer: bytes | CorralError) -> None:
        try:
            self._answers.put_nowait(answer)
        except asyncio.QueueFull:
            log.warning("answer dropped", extra={"event": "bus.answer_dropped", "subject": self.subject})

    async def next(self) -> bytes:
        answer = await self._answers.get()
        if isinstance(answer, CorralError):
            raise answer
        return answer


class Replies:
    """Matches answers to open requests by the last part of their subject."""

    def __init__(self, prefix: str) -> None:
        self._inbox = f"{prefix}.{secrets.token_hex(11)}"
        self._open: dict[str, _Waiting] = {}

    @property
    def pattern(self) -> str:
        """What to subscribe to."""
        return f"{self._inbox}.*"

    async def ask(self, subject: str, send: Send, *, timeout: timedelta) -> bytes:
        """The first answer; NoResponders or BusTimeout when there is none."""
        with self._waiting(subject) as (reply_to, waiting):
            try:
                async with asyncio.timeout(timeout.total_seconds()):
                    await send(reply_to)
                    return await waiting.next()
            except TimeoutError:
                raise BusTimeout(subject=subject, waited=timeout) from None

    async def collect(self, subject: str, send: Send, *, window: timedelta, at_most: int | None) -> list[bytes]:
        """All answers within the window, or the first `at_most` of them."""
        answers: list[bytes] = []
        with self._waiting(subject) as (reply_to, waiting):
            try:
                async with asyncio.timeout(window.total_seconds()):
                    await send(reply_to)
                    while at_most is None or len(answers) < at_most:
                        answers.append(await waiting.next())
            except (TimeoutError, NoResponders):
                pass
        return answers

    def deliver(self, reply_to: str, data: bytes) -> None:
        """An answer came; too late is as good as never."""
        waiting = self._open.get(reply_to)
        if waiting is not None:
            waiting.put(data)

    def nobody_listens(self, reply_to: str) -> None:
        waiting = self._open.get(reply_to)
        if waiting is not None:
            waiting.put(NoResponders(subject=waiting.subject))

    def fail(self, error: CorralError, *, concerns: Callable[[str], bool] = lambda subject: True) -> None:
        """End the open requests whose subject is concerned."""
        for waiting in self._open.values():
            if concerns(waiting.subject):
                waiting.put(error)

    @contextmanager
    def _waiting(self, subject: str) -> Iterator[tuple[str, _Waiting]]:
        reply_to = f"{self._inbox}.{secrets.token_hex(8)}"
        waiting = self._open[reply_to] = _Waiting(subject)
        try:
            yield reply_to, waiting
        finally:
            del self._open[reply_to]
