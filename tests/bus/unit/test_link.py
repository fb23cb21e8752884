"""What a link does while many wait for it, without a server."""

import asyncio
from datetime import timedelta
from typing import Any

from nats.aio.transport import TcpTransport

from corral.base.tasks import task_group
from corral.bus.config import Endpoint
from corral.bus.link import Link

LONG = timedelta(seconds=60)


class DeafOwner:
    def on_refused(self, action: str, subject: str) -> None:
        raise AssertionError(f"{action} of {subject} was refused")

    def on_dropped(self, subject: str) -> None:
        raise AssertionError(f"a message to {subject} was dropped")


class SlowSubscription:
    """A subscription of the client library that takes until it is told to drain."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def drain(self) -> None:
        self.begun.set()
        await self.may_end.wait()

    async def unsubscribe(self) -> None:
        self.may_end.set()


def a_link() -> Link:
    return Link(Endpoint(host="127.0.0.1"), DeafOwner())


async def drain_all(link: Link, subscriptions: list[Any], group: asyncio.TaskGroup) -> None:
    """Begin to drain all of them; returns when each has begun."""
    for subscription in subscriptions:
        group.create_task(link.drain(subscription, within=LONG))
    for subscription in subscriptions:
        await subscription.begun.wait()


async def test_drains_that_end_do_not_search_the_list_of_all_others() -> None:
    """A future searches the list of its callbacks to take one out. If 40,000 drains share one, that takes minutes."""
    link, subscriptions = a_link(), [SlowSubscription() for _ in range(100)]
    async with task_group() as group:
        await drain_all(link, subscriptions, group)

        assert not link._lost._callbacks

        for subscription in subscriptions:
            subscription.may_end.set()
    await link.close()


async def test_a_link_that_is_lost_ends_all_drains() -> None:
    link, subscriptions = a_link(), [SlowSubscription() for _ in range(100)]
    async with task_group() as group:
        await drain_all(link, subscriptions, group)
        link.abandon()
    await link.close()


class LostTransport:
    """As Python 3.11.2 leaves a TLS transport behind whose connection is lost."""

    def abort(self) -> None:
        raise AttributeError("'NoneType' object has no attribute '_abort'")


class LostWriter:
    transport = LostTransport()


async def test_a_link_whose_connection_is_lost_can_be_closed_with_every_python() -> None:
    link, lost = a_link(), TcpTransport()
    lost._io_writer = LostWriter()
    link._client._transport = lost

    await link._client.end_what_is_left()
