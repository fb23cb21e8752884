"""What every bus promises: one suite for the real one, over a real nats-server, and for the double."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from corral.base.errors import BusTimeout, BusUnavailable, InvalidInput, MessageTooLarge, NoResponders
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.port import Bus, Message
from tests.kit import bus as memory
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port

LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=30)
WINDOW = timedelta(seconds=10)


class World(Protocol):
    """A server, and a way to get more clients of it."""

    async def bus(self) -> Bus: ...

    async def go_down(self) -> None: ...

    async def come_up(self) -> None: ...


class NatsWorld:
    def __init__(self, stack: AsyncExitStack, server: PlainNats) -> None:
        self._stack = stack
        self._server = server

    async def bus(self) -> Bus:
        return await self._stack.enter_async_context(NatsBus(BusConfig(url=self._server.frontend_url)))

    async def go_down(self) -> None:
        await self._server.kill()

    async def come_up(self) -> None:
        await self._server.start()


class MemoryWorld:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._server = MemoryServer()

    async def bus(self) -> Bus:
        return await self._stack.enter_async_context(MemoryBus(self._server))

    async def go_down(self) -> None:
        self._server.go_down()

    async def come_up(self) -> None:
        self._server.come_up()


@pytest.fixture(params=["nats", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        if request.param == "nats":
            yield NatsWorld(stack, await stack.enter_async_context(PlainNats(tmp_path, port=lasting_port())))
        else:
            yield MemoryWorld(stack)


@pytest.fixture
async def bus(world: World) -> Bus:
    return await world.bus()


@pytest.fixture
async def peer(world: World) -> Bus:
    """Another client of the same server."""
    return await world.bus()


class Heard:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()

    async def __call__(self, message: Message) -> None:
        self._messages.put_nowait(message)

    async def next(self) -> Message:
        async with asyncio.timeout(60):
            return await self._messages.get()

    async def data(self, count: int) -> list[bytes]:
        return [(await self.next()).data for _ in range(count)]

    @property
    def nothing_more(self) -> bool:
        return self._messages.empty()


def echo(prefix: bytes = b"") -> Callable[[Message], Awaitable[None]]:
    async def handle(message: Message) -> None:
        await message.respond(prefix + message.data)

    return handle


async def silence(_: Message) -> None:
    """Hears, and never answers."""


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


async def test_every_subscriber_gets_every_message(bus: Bus, peer: Bus) -> None:
    one, two = Heard(), Heard()
    await bus.subscribe("corral.news", one)
    await peer.subscribe("corral.news", two)

    await peer.publish("corral.news", b"\x00\xffbytes")

    for heard in (one, two):
        message = await heard.next()
        assert (message.subject, message.data, message.reply_to) == ("corral.news", b"\x00\xffbytes", "")


async def test_messages_of_one_sender_keep_their_order(bus: Bus, peer: Bus) -> None:
    heard = Heard()
    await bus.subscribe("corral.counting", heard, concurrency=1)
    sent = [str(number).encode() for number in range(300)]
    for data in sent:
        await peer.publish("corral.counting", data)

    assert await heard.data(300) == sent


@pytest.mark.parametrize(
    ("pattern", "heard_subjects"),
    [
        ("corral.a.b", ["corral.a.b"]),
        ("corral.*.b", ["corral.a.b", "corral.z.b"]),
        ("corral.>", ["corral.a.b", "corral.z.b", "corral.a.b.c", "corral.end"]),
        ("corral.*", ["corral.end"]),
    ],
)
async def test_wildcards_cover_what_they_should(bus: Bus, peer: Bus, pattern: str, heard_subjects: list[str]) -> None:
    heard, last = Heard(), Heard()
    await bus.subscribe(pattern, heard, concurrency=1)
    await bus.subscribe("nodes.end", last)
    for subject in ("corral.a.b", "corral.z.b", "corral.a.b.c", "corral.end", "nodes.end"):
        await peer.publish(subject, b"")
    await last.next()

    assert [(await heard.next()).subject for _ in heard_subjects] == heard_subjects
    assert heard.nothing_more


async def test_a_queue_group_shares_its_messages(bus: Bus, peer: Bus) -> None:
    shared, alone = Heard(), Heard()
    for member in (bus, peer, bus):
        await member.subscribe("corral.work", shared, queue="workers")
    await peer.subscribe("corral.work", alone)
    for number in range(20):
        await bus.publish("corral.work", str(number).encode())

    expected = sorted(str(number).encode() for number in range(20))
    assert sorted(await alone.data(20)) == expected
    assert sorted(await shared.data(20)) == expected
    assert shared.nothing_more


async def test_a_request_gets_its_own_answer(bus: Bus, peer: Bus) -> None:
    await peer.subscribe("corral.echo", echo())
    questions = [str(number).encode() for number in range(20)]

    answers = await asyncio.gather(*(bus.request("corral.echo", data, timeout=LONG) for data in questions))

    assert answers == questions


async def test_a_bus_may_ask_itself(bus: Bus) -> None:
    await bus.subscribe("corral.echo", echo())
    assert await bus.request("corral.echo", b"me", timeout=LONG) == b"me"


async def test_nobody_listening_is_known_at_once(bus: Bus) -> None:
    with pytest.raises(NoResponders) as nobody:
        await bus.request("corral.nobody", b"", timeout=timedelta(hours=1))
    assert nobody.value.fields["subject"] == "corral.nobody"


async def test_silence_is_a_timeout(bus: Bus, peer: Bus) -> None:
    await peer.subscribe("corral.silence", silence)
    with pytest.raises(BusTimeout) as timeout:
        await bus.request("corral.silence", b"", timeout=SHORT)
    assert timeout.value.fields == {"subject": "corral.silence", "waited": SHORT}


async def test_a_cancelled_request_leaves_the_bus_in_order(bus: Bus, peer: Bus) -> None:
    heard = Heard()
    await peer.subscribe("corral.silence", heard)
    await peer.subscribe("corral.echo", echo())
    request = asyncio.create_task(bus.request("corral.silence", b"", timeout=LONG))
    late = await heard.next()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await late.respond(b"too late")

    assert await bus.request("corral.echo", b"on time", timeout=LONG) == b"on time"


async def test_gather_hears_everybody(bus: Bus, peer: Bus) -> None:
    for member, name in ((bus, b"one "), (peer, b"two "), (peer, b"three ")):
        await member.subscribe("corral.who", echo(name))

    answers = await bus.gather("corral.who", b"there", window=LONG, at_most=3)

    assert sorted(answers) == [b"one there", b"three there", b"two there"]


async def test_gather_ends_with_its_window(bus: Bus, peer: Bus) -> None:
    asked = asyncio.Event()

    async def answer(message: Message) -> None:
        await message.respond(message.data)
        asked.set()

    await peer.subscribe("corral.who", answer)
    await peer.subscribe("corral.who", silence)

    gathering = asyncio.create_task(bus.gather("corral.who", b"me", window=WINDOW))
    await until(asked)
    for member in (peer, bus):
        await member.flush()  # whatever was sent before has arrived
    let_loop_time_pass(WINDOW)
    assert await gathering == [b"me"]


async def test_gather_from_nobody_is_empty_at_once(bus: Bus) -> None:
    assert await bus.gather("corral.nobody", b"", window=timedelta(hours=1)) == []


async def test_an_answer_to_a_plain_message_goes_nowhere(bus: Bus) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(message: Message) -> None:
        await message.respond(b"to nobody")
        await bus.publish("corral.after", b"after")

    async def hear(message: Message) -> None:
        heard.put_nowait(message.data)

    await bus.subscribe("corral.plain", answer)
    await bus.subscribe("corral.>", hear, concurrency=1)
    await bus.publish("corral.plain", b"plain")
    async with asyncio.timeout(LONG.total_seconds()):
        assert [await heard.get(), await heard.get()] == [b"plain", b"after"]


async def test_slow_handlers_hold_up_nobody_below_the_bound(bus: Bus, peer: Bus) -> None:
    release, all_inside, inside, most = asyncio.Event(), asyncio.Event(), 0, 0
    heard = Heard()

    async def slow(message: Message) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            all_inside.set()
        await release.wait()
        inside -= 1
        await heard(message)

    await bus.subscribe("corral.slow", slow, concurrency=3)
    for number in range(5):
        await peer.publish("corral.slow", str(number).encode())
    await until(all_inside)
    await bus.flush()
    release.set()

    assert sorted(await heard.data(5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert most == 3


async def test_a_handler_that_fails_is_logged_and_the_next_message_is_handled(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    async def moody(message: Message) -> None:
        if message.data == b"bad":
            raise ZeroDivisionError("bad day")
        await heard(message)

    await bus.subscribe("corral.moody", moody, concurrency=1)
    await bus.publish("corral.moody", b"bad")
    await bus.publish("corral.moody", b"good")

    assert (await heard.next()).data == b"good"
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.__dict__["subject"] == "corral.moody"


async def test_a_closed_subscription_hears_no_more(bus: Bus, peer: Bus) -> None:
    closed, last = Heard(), Heard()
    subscription = await bus.subscribe("corral.news", closed)
    await bus.subscribe("corral.last", last)
    await subscription.close()
    await subscription.close()
    await peer.publish("corral.news", b"")
    await peer.publish("corral.last", b"")

    await last.next()
    assert closed.nothing_more
    with pytest.raises(NoResponders):
        await bus.request("corral.news", b"", timeout=LONG)


async def test_closing_waits_for_the_running_handlers(bus: Bus) -> None:
    entered, release, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Message) -> None:
        entered.set()
        await release.wait()
        finished.set()

    subscription = await bus.subscribe("corral.long", handle)
    await bus.publish("corral.long", b"")
    await until(entered)
    closing = asyncio.create_task(subscription.close())
    await bus.flush()
    assert not closing.done()
    release.set()
    await closing
    assert finished.is_set()


async def test_a_cancelled_close_cancels_the_running_handlers(bus: Bus) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(_: Message) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    subscription = await bus.subscribe("corral.endless", handle)
    await bus.publish("corral.endless", b"")
    await until(entered)
    closing = asyncio.create_task(subscription.close())
    await bus.flush()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert cancelled.is_set()


async def test_a_handler_may_close_its_own_subscription(bus: Bus) -> None:
    closed, after, taken = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def once(message: Message) -> None:
        taken.append(message.data)
        await subscription.close()
        closed.set()

    async def hear(_: Message) -> None:
        after.set()

    subscription = await bus.subscribe("corral.once", once, concurrency=1)
    await bus.subscribe("corral.after", hear)
    await bus.publish("corral.once", b"first")
    await bus.publish("corral.once", b"behind it")
    await until(closed)
    await bus.publish("corral.once", b"too late")
    await bus.publish("corral.after", b"")
    await until(after)
    assert taken[0] == b"first"
    assert b"too late" not in taken


async def test_closing_the_bus_handles_what_has_arrived_and_sends_the_answers(world: World, peer: Bus) -> None:
    leaving = await world.bus()
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow_echo(message: Message) -> None:
        entered.set()
        await release.wait()
        await message.respond(message.data)

    await leaving.subscribe("corral.echo", slow_echo, concurrency=1)
    requests = [asyncio.create_task(peer.request("corral.echo", data, timeout=LONG)) for data in (b"1", b"2")]
    await until(entered)
    await peer.flush()
    await leaving.flush()
    closing = asyncio.create_task(leaving.close())  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    release.set()

    assert await asyncio.gather(*requests) == [b"1", b"2"]
    await closing


async def test_a_closed_bus_refuses_and_ends_open_requests(world: World, peer: Bus) -> None:
    leaving = await world.bus()
    heard = Heard()
    await peer.subscribe("corral.silence", heard)
    request = asyncio.create_task(leaving.request("corral.silence", b"", timeout=LONG))
    await heard.next()
    await leaving.close()  # type: ignore[attr-defined]

    with pytest.raises(BusUnavailable):
        await request
    assert not leaving.connected
    with pytest.raises(BusUnavailable):
        await leaving.publish("corral.news", b"")
    with pytest.raises(BusUnavailable):
        await leaving.subscribe("corral.news", silence)
    await leaving.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("subject", ["", "corral..news", "corral.news.", "corral news", "corral.*", "corral.>"])
async def test_a_message_needs_a_proper_subject(bus: Bus, subject: str) -> None:
    with pytest.raises(InvalidInput):
        await bus.publish(subject, b"")
    with pytest.raises(InvalidInput):
        await bus.request(subject, b"", timeout=LONG)


@pytest.mark.parametrize("pattern", ["", "corral..news", "corral.>.news", "corral\nnews"])
async def test_a_subscription_needs_a_proper_pattern(bus: Bus, pattern: str) -> None:
    with pytest.raises(InvalidInput):
        await bus.subscribe(pattern, silence)


async def test_a_queue_needs_a_proper_name(bus: Bus) -> None:
    with pytest.raises(InvalidInput):
        await bus.subscribe("corral.news", silence, queue="two words")


async def test_large_messages_pass_and_larger_ones_are_refused(bus: Bus, peer: Bus) -> None:
    heard = Heard()
    await peer.subscribe("corral.large", heard)
    large = bytes(8 * 1024 * 1024)

    with pytest.raises(MessageTooLarge):
        await bus.publish("corral.large", large + b"x")
    await bus.publish("corral.large", large)

    assert len((await heard.next()).data) == len(large)
    assert heard.nothing_more


async def test_what_happens_when_the_server_goes_and_comes_back(world: World, bus: Bus, peer: Bus) -> None:
    changes: asyncio.Queue[bool] = asyncio.Queue()
    stop_watching = bus.on_connection(changes.put_nowait)
    heard, questions = Heard(), Heard()
    await bus.subscribe("corral.news", heard)
    await peer.subscribe("corral.question", questions)
    open_request = asyncio.create_task(bus.request("corral.question", b"", timeout=LONG))
    question = await questions.next()

    await world.go_down()
    async with asyncio.timeout(60):
        assert await changes.get() is False
    assert not bus.connected
    with pytest.raises(BusUnavailable):
        await bus.publish("corral.news", b"lost")
    with pytest.raises(BusUnavailable):
        await bus.request("corral.news", b"lost", timeout=LONG)
    with pytest.raises(BusUnavailable):
        await bus.flush()
    later = Heard()
    await bus.subscribe("corral.later", later)

    await world.come_up()
    async with asyncio.timeout(60):
        await bus.wait_connected()
        await peer.wait_connected()
    assert await changes.get() is True
    await peer.publish("corral.news", b"again")
    await peer.publish("corral.later", b"too")
    assert (await heard.next()).data == b"again"
    assert (await later.next()).data == b"too"

    await question.respond(b"answer")
    assert await open_request == b"answer", "an answer finds its request across a reconnect"
    stop_watching()


async def test_an_answer_waits_for_the_connection(world: World, bus: Bus) -> None:
    questions, gone = Heard(), asyncio.Event()
    await bus.subscribe("corral.question", questions)
    request = asyncio.create_task(bus.request("corral.question", b"", timeout=LONG))
    question = await questions.next()
    bus.on_connection(lambda connected: None if connected else gone.set())
    await world.go_down()
    await until(gone)

    answering = asyncio.create_task(question.respond(b"answer"))
    await asyncio.sleep(0)
    assert not answering.done()
    await world.come_up()

    assert await request == b"answer"
    await answering


async def test_handlers_that_do_not_end_are_cancelled_when_the_bus_closes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.bus.client.CLOSE_GRACE", timedelta(milliseconds=10))
    monkeypatch.setattr(memory, "CLOSE_GRACE", timedelta(milliseconds=10))
    leaving = await world.bus()
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_: Message) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await leaving.subscribe("corral.endless", endless)
    await leaving.publish("corral.endless", b"")
    await until(entered)
    await leaving.close()  # type: ignore[attr-defined]
    assert cancelled.is_set()
