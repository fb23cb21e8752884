"""The bus in the words of those who use it: say, ask, listen, ask everybody.

Nothing here is durable. A message may be lost, and a reply that does not come proves nothing: the database is the
truth, the bus only makes it fast.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

DEFAULT_CONCURRENCY: Final = 64
"""Enough that slow handlers rarely hold up the rest, few enough that a flood cannot start thousands of tasks."""

CLOSE_GRACE: Final = timedelta(seconds=5)
"""How long running handlers may still take when their subscription is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as a handler gets it."""

    subject: str
    data: bytes
    reply_to: str = ""
    """Where an answer goes; empty when nobody waits for one."""
    reply: Callable[[str, bytes], Awaitable[None]] = field(repr=False)

    async def respond(self, data: bytes) -> None:
        """Answer whoever asked; does nothing when nobody did.

        While the bus is disconnected this waits for it, within a bound: the other side kept its request open.
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
        """Be told of every change of `connected`, subscriptions already back in place. Returns how to stop that."""

    async def wait_connected(self) -> None:
        """Return as soon as messages can be sent; for ever if need be."""

    async def publish(self, subject: str, data: bytes) -> None:
        """Send to whoever listens. BusUnavailable at once while disconnected: nothing is kept for later."""

    async def request(self, subject: str, data: bytes, *, timeout: timedelta) -> bytes:
        """Ask, and return the first answer. It is still awaited when the connection is lost and comes back.

        BusUnavailable at once while disconnected, NoResponders at once when nobody listens, BusTimeout when no answer
        came in time.
        """

    async def gather(self, subject: str, data: bytes, *, window: timedelta, at_most: int | None = None) -> list[bytes]:
        """Ask everybody, and return what was answered within the window, or as soon as `at_most` answers are in.

        Nobody listening is no error: nobody answered.
        """

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = DEFAULT_CONCURRENCY
    ) -> Subscription:
        """Have each message handled in a task of its own, at most `concurrency` at once, in order of arrival.

        With a queue name, each message goes to only one of all subscribers of that name. What a handler raises is
        logged and ends only that handler. Returns when the server has confirmed; while disconnected at once, and the
        subscription is made on the next connection. BusPermissionDenied when the server refuses.
        """

    async def flush(self) -> None:
        """Return when the server has processed all that was sent before. BusUnavailable when it does not answer."""
