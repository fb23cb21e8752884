"""The bus as its users see it: publish, request, subscribe, gather; and which subjects are valid.

Nothing here is durable. A message may be lost, and a missing reply proves nothing: the database is the truth, the bus
only makes changes known quickly.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from corral.base.errors import InvalidInput
from corral.base.values import PartlyPrinted

DEFAULT_CONCURRENCY: Final = 64
"""Enough that slow handlers rarely delay other messages, few enough that a flood cannot start thousands of tasks."""

CLOSE_GRACE: Final = timedelta(seconds=5)
"""How long running handlers may still take when their subscription is closed."""


class Message(PartlyPrinted, frozen=True, kw_only=True):
    """A message as a handler gets it."""

    unprinted = ("reply",)

    subject: str
    data: bytes
    reply_to: str = ""
    """Subject for the answer; empty when the sender expects none."""
    reply: Callable[[str, bytes], Awaitable[None]]

    async def respond(self, data: bytes) -> None:
        """Answer a request; do nothing when no answer is expected.

        While the bus is disconnected this waits for it, within a bound: the other side keeps its request open.
        """
        if self.reply_to:
            await self.reply(self.reply_to, data)


Handler = Callable[[Message], Awaitable[None]]


class Subscription(Protocol):
    """Interest in a subject, kept across reconnects until it is closed."""

    async def close(self) -> None:
        """Take no more messages, let running handlers finish within CLOSE_GRACE, then cancel them. Idempotent."""


class Bus(Protocol):
    """Safe to use from many tasks; every call may be cancelled."""

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""

    @property
    def refused(self) -> frozenset[str]:
        """Subjects of subscriptions that the server refuses since a reconnect. They are asked for again and again."""

    def on_connection(self, callback: Callable[[bool], None]) -> Callable[[], None]:
        """Call back at every change of `connected`, with subscriptions in place. Return a function that ends that."""

    async def wait_connected(self) -> None:
        """Return as soon as messages can be sent, however long that takes."""

    async def publish(self, subject: str, data: bytes) -> None:
        """Send to all subscribers. Raise BusUnavailable at once while disconnected: nothing is kept for later."""

    async def request(self, subject: str, data: bytes, *, timeout: timedelta) -> bytes:
        """Ask, and return the first answer. It is still awaited when the connection is lost and comes back.

        Raise BusUnavailable at once while disconnected, NoResponders at once when there is no subscriber, and
        BusTimeout when no answer came in time.
        """

    async def gather(self, subject: str, data: bytes, *, window: timedelta, at_most: int | None = None) -> list[bytes]:
        """Ask all subscribers, and return the answers within the window, or as soon as there are `at_most`.

        Return an empty list when there is no subscriber.
        """

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = DEFAULT_CONCURRENCY
    ) -> Subscription:
        """Handle each message in a task of its own, at most `concurrency` at once, in order of arrival.

        With a queue name, each message goes to only one of all subscribers of that name. What a handler raises is
        logged and ends only that handler. Return when the server has confirmed; at once while disconnected, and the
        subscription is made on the next connection. Raise BusPermissionDenied when the server refuses.
        """

    async def flush(self) -> None:
        """Return when the server has processed all that was sent. Raise BusUnavailable when it does not answer."""


_FORBIDDEN = frozenset(" \t\r\n\f\0")
_WILDCARDS = frozenset("*>")


def check_subject(subject: str) -> None:
    """Raise InvalidInput unless a message can be sent to this subject."""
    _check_tokens(subject)
    if not _WILDCARDS.isdisjoint(subject.split(".")):
        raise InvalidInput("subject", f"{subject!r} has a wildcard; messages go to one subject")


def check_pattern(pattern: str) -> None:
    """Raise InvalidInput unless this can be subscribed to."""
    _check_tokens(pattern)
    if ">" in pattern.split(".")[:-1]:
        raise InvalidInput("subject", f"{pattern!r} has a > that is not at its end")


def check_queue(queue: str) -> None:
    """Raise InvalidInput unless it can name a queue group; the empty name means none."""
    if _FORBIDDEN & set(queue):
        raise InvalidInput("queue", f"{queue!r} has white space")


def _check_tokens(subject: str) -> None:
    if not subject or not all(subject.split(".")):
        raise InvalidInput("subject", f"{subject!r} is empty or has an empty part")
    if not _FORBIDDEN.isdisjoint(subject):
        raise InvalidInput("subject", f"{subject!r} has white space")
