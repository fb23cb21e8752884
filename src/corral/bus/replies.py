"""Requests that wait for answers. All share one inbox, which outlives connections: an answer that comes after a
reconnect still reaches its request.

A reply subject names the node that is asked, `_INBOX.frontend.<node>.<inbox>.<random>`, so that a node's NATS user can
be allowed to answer for that node alone.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from corral.base.errors import BusTimeout, CorralError, NoResponders

log = logging.getLogger(__name__)

FRONTEND_INBOX: Final = "_INBOX.frontend"
"""Where frontends are answered: a part of the inbox that other users can be kept from."""
_NOBODY: Final = "fleet"
"""Stands for the node where a request is not for one; ids of nodes are longer."""
_MOST_ANSWERS: Final = 65536

SendRequest = Callable[[str], Awaitable[None]]
"""Sends the request with the given reply subject."""


class _Question:
    """A request that takes one answer. It has no queue: creating one would cost more than everything else in a
    request."""

    __slots__ = ("_answer", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def put(self, answer: bytes | CorralError) -> None:
        if self._answer.done():
            return
        if isinstance(answer, CorralError):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)

    async def next(self) -> bytes:
        return await self._answer


class _Survey:
    """A request to many, and the answers that it has not taken yet."""

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


def answers_of(node: str) -> str:
    """Where the node of this subject token may answer frontends."""
    return f"{FRONTEND_INBOX}.{node}.>"


class Replies:
    """Matches answers to open requests by their whole subject: an answer on another node's prefix matches none."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._inbox = secrets.token_hex(11)
        self._open: dict[str, _Question | _Survey] = {}

    @property
    def pattern(self) -> str:
        """The subject pattern to subscribe to."""
        return f"{self._prefix}.*.{self._inbox}.*"

    async def ask(self, subject: str, send: SendRequest, *, timeout: timedelta) -> bytes:
        """Return the first answer. Raise NoResponders or BusTimeout when there is none."""
        reply_to = self._next_subject(subject)
        waiting = self._open[reply_to] = _Question(subject)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await send(reply_to)
                return await waiting.next()
        except TimeoutError:
            raise BusTimeout(subject=subject, waited=timeout) from None
        finally:
            del self._open[reply_to]

    async def collect(self, subject: str, send: SendRequest, *, window: timedelta, at_most: int | None) -> list[bytes]:
        """Return all answers within the window, or the first `at_most` of them."""
        answers: list[bytes] = []
        reply_to = self._next_subject(subject)
        waiting = self._open[reply_to] = _Survey(subject)
        try:
            async with asyncio.timeout(window.total_seconds()):
                await send(reply_to)
                while at_most is None or len(answers) < at_most:
                    answers.append(await waiting.next())
        except (TimeoutError, NoResponders):
            pass
        finally:
            del self._open[reply_to]
        return answers

    def deliver(self, reply_to: str, data: bytes) -> None:
        """Hand an answer to its request. One that comes too late is dropped."""
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

    def _next_subject(self, subject: str) -> str:
        """Return a new reply subject. Its last part cannot be guessed: each peer that is asked learns the shared inbox,
        and must not be able to answer for another."""
        first, *tokens = subject.split(".")
        node = tokens[0] if first == "nodes" and tokens else _NOBODY
        return f"{self._prefix}.{node}.{self._inbox}.{secrets.token_hex(8)}"
