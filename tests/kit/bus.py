"""A bus without a network, for tests. It passes the same conformance suite as the real one.

What it cannot show: lost messages, slow servers, and answers that come in another order than they were sent.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Self

from corral.base.errors import BusPermissionDenied, BusUnavailable, MessageTooLarge
from corral.base.tasks import end_tasks, start_task, task_group
from corral.bus.port import (
    CLOSE_GRACE,
    DEFAULT_CONCURRENCY,
    Handler,
    Message,
    check_pattern,
    check_queue,
    check_subject,
)
from corral.bus.replies import Replies
from corral.bus.subscriptions import Handlers

MAX_PAYLOAD: Final = 8 * 1024 * 1024
REPLY_PATIENCE: Final = timedelta(seconds=30)


def covers(pattern: str, subject: str) -> bool:
    """Whether a subscription to the pattern gets messages for the subject."""
    expected, tokens = pattern.split("."), subject.split(".")
    if expected[-1] == ">":
        expected = expected[:-1]
        if len(tokens) <= len(expected):
            return False
        tokens = tokens[: len(expected)]
    return len(expected) == len(tokens) and all(
        each in ("*", token) for each, token in zip(expected, tokens, strict=True)
    )


class MemoryServer:
    """What the buses of one test have in common. It can go down and come up again."""

    def __init__(self) -> None:
        self.subscriptions: list[MemorySubscription] = []
        self.denied: set[str] = set()
        """Subjects that refuse subscriptions."""
        self.buses: set[MemoryBus] = set()
        self.up = True

    def go_down(self) -> None:
        """Every bus loses its connection."""
        self._turn(up=False)

    def come_up(self) -> None:
        """Every bus is connected again, with its subscriptions."""
        self._turn(up=True)

    def _turn(self, *, up: bool) -> None:
        self.up = up
        for bus in self.buses:
            bus.on_server_change(up)

    def route(self, message: Message) -> bool:
        """Deliver a message to all subscribers, and to one of each queue group. Return False when there are none."""
        hearers = [subscription for subscription in self.subscriptions if covers(subscription.subject, message.subject)]
        groups: dict[str, list[MemorySubscription]] = {}
        for hearer in hearers:
            if hearer.queue:
                groups.setdefault(hearer.queue, []).append(hearer)
            else:
                hearer.accept(message)
        for members in groups.values():
            random.choice(members).accept(message)
        return bool(hearers)


class MemorySubscription:
    """See `port.Subscription`."""

    def __init__(self, bus: "MemoryBus", subject: str, queue: str, handlers: Handlers) -> None:
        self.subject = subject
        self.queue = queue
        self.handlers = handlers
        self._bus = bus
        self._arrived: asyncio.Queue[Message] = asyncio.Queue()
        self._pump = start_task(self._hand_on(), name=f"memory bus {subject}")

    def accept(self, message: Message) -> None:
        self._arrived.put_nowait(message)

    async def close(self) -> None:
        self._bus.forget(self)
        grace = timedelta(0)  # for a close that is cancelled
        try:
            await end_tasks(self._pump)
            grace = CLOSE_GRACE
        finally:
            await self.handlers.finish(grace, apart_from=asyncio.current_task())

    async def drain(self, within: timedelta, *, caller: asyncio.Task[object] | None) -> None:
        """Handle what has arrived before leaving."""
        self._bus.forget(self)
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self._arrived.join()
        except TimeoutError:
            pass
        finally:
            await end_tasks(self._pump)
            await self.handlers.finish(within, apart_from=caller)

    async def _hand_on(self) -> None:
        while True:
            message = await self._arrived.get()
            await self.handlers.dispatch(message)
            self._arrived.task_done()


class MemoryBus:
    """See `port.Bus`. Used as a context, like the real one."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._replies = Replies("_INBOX")
        self._up = asyncio.Event()
        self._watchers: list[Callable[[bool], None]] = []
        self._subscriptions: set[MemorySubscription] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._server.buses.add(self)
        if self._server.up:
            self._up.set()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        caller = asyncio.current_task()
        async with task_group() as group:
            for subscription in list(self._subscriptions):
                group.create_task(subscription.drain(CLOSE_GRACE, caller=caller))
        self._server.buses.discard(self)
        if self._up.is_set():
            self.on_server_change(False)
        self._replies.fail(BusUnavailable("the bus was closed"))

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def refused(self) -> frozenset[str]:
        subjects = (subscription.subject for subscription in self._subscriptions)
        return frozenset(subject for subject in subjects if subject in self._server.denied)

    def on_connection(self, callback: Callable[[bool], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def on_server_change(self, up: bool) -> None:
        """Called by the server when it goes down or comes back."""
        if up:
            self._up.set()
        else:
            self._up.clear()
        for watcher in list(self._watchers):
            watcher(up)

    async def wait_connected(self) -> None:
        await self._up.wait()

    async def publish(self, subject: str, data: bytes) -> None:
        self._send(subject, data, "")

    async def request(self, subject: str, data: bytes, *, timeout: timedelta) -> bytes:
        return await self._replies.ask(subject, lambda reply_to: self._ask(subject, data, reply_to), timeout=timeout)

    async def gather(self, subject: str, data: bytes, *, window: timedelta, at_most: int | None = None) -> list[bytes]:
        return await self._replies.collect(
            subject, lambda reply_to: self._ask(subject, data, reply_to), window=window, at_most=at_most
        )

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = DEFAULT_CONCURRENCY
    ) -> MemorySubscription:
        check_pattern(subject)
        check_queue(queue)
        if self._closed:
            raise BusUnavailable("the bus is closed")
        if subject in self._server.denied:
            raise BusPermissionDenied(subject=subject)
        subscription = MemorySubscription(self, subject, queue, Handlers(subject, handler, concurrency))
        self._subscriptions.add(subscription)
        self._server.subscriptions.append(subscription)
        return subscription

    def forget(self, subscription: MemorySubscription) -> None:
        """For subscriptions that close."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._server.subscriptions.remove(subscription)

    async def flush(self) -> None:
        self._require_connection()
        await asyncio.sleep(0)

    async def _ask(self, subject: str, data: bytes, reply_to: str) -> None:
        if not self._send(subject, data, reply_to):
            self._replies.nobody_listens(reply_to)

    def _send(self, subject: str, data: bytes, reply_to: str) -> bool:
        check_subject(subject)
        self._require_connection()
        if len(data) > MAX_PAYLOAD:
            raise MessageTooLarge(subject=subject, bytes=len(data), most=MAX_PAYLOAD)
        asker = self._answer_to
        return self._server.route(Message(subject=subject, data=bytes(data), reply_to=reply_to, reply=asker))

    async def _answer_to(self, reply_to: str, data: bytes) -> None:
        """Deliver a reply to the requesting bus, if it is connected. Runs in the replying handler."""
        if len(data) > MAX_PAYLOAD:
            raise MessageTooLarge(subject=reply_to, bytes=len(data), most=MAX_PAYLOAD)
        try:
            async with asyncio.timeout(REPLY_PATIENCE.total_seconds()):
                await self.wait_connected()
        except TimeoutError:
            raise BusUnavailable("an answer could not be sent") from None
        self._replies.deliver(reply_to, data)

    def _require_connection(self) -> None:
        if not self.connected:
            raise BusUnavailable("the bus is closed" if self._closed else None)
