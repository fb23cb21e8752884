"""Subscriptions: the tasks that handle their messages, and how they are kept on the current link."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from corral.base.errors import BusPermissionDenied, BusUnavailable
from corral.base.tasks import start_task
from corral.bus.link import Link, LinkSubscription, Receive
from corral.bus.port import CLOSE_GRACE, Handler, Message

log = logging.getLogger(__name__)

_CANCEL_SECONDS: Final = 2.0


class Handlers:
    """Owns the tasks that it starts: `finish` awaits every one of them."""

    def __init__(self, subject: str, handler: Handler, concurrency: int) -> None:
        self._subject = subject
        self._handler = handler
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()

    async def dispatch(self, message: Message) -> None:
        """Start handling. Waits only while the bound is reached, and so holds back the messages behind this one."""
        await self._slots.acquire()
        task = start_task(self._handle(message), name=f"bus handler {self._subject}")
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def finish(self, within: timedelta, *, apart_from: asyncio.Task[object] | None) -> None:
        """Wait for the running handlers, then cancel those that are still running, except the caller's own."""
        pending = {task for task in self._running if task is not apart_from}
        try:
            if pending:
                await asyncio.wait(pending, timeout=within.total_seconds())
        finally:
            if late := {task for task in pending if not task.done()}:
                about = {"subject": self._subject, "handlers": len(late)}
                log.warning("handlers cancelled", extra={"event": "bus.handlers_cancelled", **about})
                for task in late:
                    task.cancel()
                await asyncio.wait(late, timeout=_CANCEL_SECONDS)

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except Exception:
            log.exception("handler failed", extra={"event": "bus.handler_failed", "subject": message.subject})

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()


class Interest:
    """A subscription that the server should have, on the current link."""

    def __init__(self, subject: str, queue: str, receive: Receive) -> None:
        self.subject = subject
        self._queue = queue
        self._receive = receive
        self.link: Link | None = None
        self.is_refused = False
        """Whether the server of this link refuses what an earlier one allowed."""
        self._remote: LinkSubscription | None = None
        self._former: tuple[Link, LinkSubscription] | None = None
        """What an earlier link has, until it is drained."""

    async def establish(self, link: Link) -> None:
        """Subscribe on a new link, without waiting for the server's confirmation."""
        before, remote_before = self.link, self._remote
        self._former = None if before is None or remote_before is None else (before, remote_before)
        self.link = link
        self.is_refused = False
        remote = await link.subscribe(self.subject, self._queue or link.group, self._receive)
        await self._keep(link, remote)

    async def establish_confirmed(self, link: Link) -> None:
        self.link = link
        remote = await link.subscribe_confirmed(self.subject, self._queue or link.group, self._receive)
        self.is_refused = False
        await self._keep(link, remote)

    async def establish_again(self, link: Link) -> None:
        """Try again after a refusal: permissions may have changed since."""
        if self._remote is not None:
            await link.unsubscribe(self._remote)
        with suppress(BusPermissionDenied):
            await self.establish_confirmed(link)

    async def _keep(self, link: Link, remote: LinkSubscription) -> None:
        if self.link is link:
            self._remote = remote
        else:  # given up, or moved to a newer link, meanwhile
            await link.unsubscribe(remote)

    async def give_up(self) -> None:
        """Unsubscribe. Return when the server has processed it: later requests find no responder here."""
        link, self.link = self.link, None
        if link is not None and self._remote is not None:
            await link.unsubscribe(self._remote)
            with suppress(BusUnavailable):  # a connection that is gone takes the interest with it
                await link.ping()

    async def drain(self, within: timedelta) -> None:
        if self.link is not None and self._remote is not None:
            await self.link.drain(self._remote, within)

    def return_from(self, link: Link) -> None:
        """A link that should take over failed: what the one before it has counts again."""
        if self.link is link:
            former, self._former = self._former, None
            self.link, self._remote = former or (None, None)

    async def drain_on(self, link: Link, within: timedelta) -> None:
        """End what a link has that was replaced by another, and handle what it got."""
        former, self._former = self._former, None
        if former is not None and former[0] is link:
            await link.drain(former[1], within)


class OpenSubscription:
    """What `subscribe` of a bus returns."""

    def __init__(self, interest: Interest, handlers: Handlers, *, forget: Callable[["OpenSubscription"], None]) -> None:
        self.interest = interest
        self._handlers = handlers
        self._forget = forget

    async def close(self) -> None:
        self._forget(self)
        grace = timedelta(0)  # for a close that is cancelled
        try:
            await self.interest.give_up()
            grace = CLOSE_GRACE
        finally:
            await self._handlers.finish(grace, apart_from=asyncio.current_task())

    async def drain(self, time_left: Callable[[], timedelta], *, apart_from: asyncio.Task[object] | None) -> None:
        """Take no more messages, and handle those that are on their way within the time that is left."""
        grace = timedelta(0)
        try:
            await self.interest.drain(time_left())
            grace = time_left()
        finally:
            await self._handlers.finish(grace, apart_from=apart_from)
