"""Events on both databases: one order for everyone, no gaps, nothing lost."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import insert

from corral.base.ids import NodeId
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events, append
from corral.frontend.store.db import Database
from corral.frontend.store.schema import event_sequence
from corral.frontend.store.schema import events as events_table
from tests.kit.samples import after, an_event

Statements = Callable[[], AbstractContextManager[list[str]]]


async def test_events_are_numbered_from_one_in_the_order_they_were_given(events: Events) -> None:
    happened = [an_event(at=after(second), data={"n": second}) for second in range(3)]
    await events.record(happened[:2])
    await events.record(happened[2:])

    found = await events.after(0, limit=10)
    assert [stored.sequence for stored in found] == [1, 2, 3]
    assert [stored.event for stored in found] == happened
    assert await events.last_sequence() == 3


async def test_before_the_first_event_the_last_sequence_is_zero(events: Events) -> None:
    await events.record([])

    assert await events.last_sequence() == 0
    assert await events.after(0, limit=10) == []


async def test_an_event_keeps_any_plain_data(events: Events) -> None:
    data = {
        "before": None,
        "after": {"labels": {"ünï": "\x00\ud800"}, "list": [1, 2.5, True, ""]},
        "z": 2**80,
        "a": 1e22,
        "small": 0.1,
    }
    await events.record([an_event(data=data, actor="alice\n", node_id=NodeId("n"))])

    [stored] = await events.after(0, limit=1)
    assert stored.event.data == data
    assert list(stored.event.data) == list(data)


async def test_a_reader_gets_what_came_after_and_no_more_than_asked(events: Events) -> None:
    await events.record([an_event(data={"n": n}) for n in range(10)])

    assert [stored.sequence for stored in await events.after(4, limit=3)] == [5, 6, 7]
    assert await events.after(10, limit=3) == []


async def test_a_transaction_that_fails_leaves_no_event_and_no_gap(database: Database, events: Events) -> None:
    class Broken(Exception):
        pass

    try:
        async with database.begin() as connection:
            await append(connection, [an_event()])
            raise Broken
    except Broken:
        pass
    await events.record([an_event()])

    assert [stored.sequence for stored in await events.after(0, limit=10)] == [1]


async def test_a_reader_never_sees_a_later_event_before_an_earlier_one(events: Events) -> None:
    writers = 8
    each = 10

    async def write(writer: int) -> None:
        for number in range(each):
            await events.record([an_event(data={"writer": writer, "number": number})] * (1 + number % 3))

    async def follow(total: int) -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            seen += [stored.sequence for stored in await events.after(seen[-1] if seen else 0, limit=7)]
        return seen

    total = writers * sum(1 + number % 3 for number in range(each))
    async with asyncio.TaskGroup() as group:
        follower = group.create_task(follow(total))
        for writer in range(writers):
            group.create_task(write(writer))

    assert follower.result() == list(range(1, total + 1))
    assert await events.last_sequence() == total


async def test_an_event_of_a_newer_version_is_passed_over(database: Database, events: Events) -> None:
    await events.record([an_event()])
    async with database.begin() as connection:
        await connection.execute(event_sequence.update().values(last=2))
        await connection.execute(
            insert(events_table).values(sequence=2, kind="model.dreamed", at=after(0), actor="future", data={})
        )
    await events.record([an_event()])

    assert [stored.sequence for stored in await events.after(0, limit=2)] == [1, 3]
    assert [stored.sequence for stored in await events.newest(5)] == [3, 1]


async def test_the_newest_come_first_and_no_more_than_asked_for(events: Events) -> None:
    one, two = NodeId("one"), NodeId("two")
    happened = [
        an_event(EventKind.NODE_APPROVED, node_id=one),
        an_event(EventKind.NODE_STATUS, node_id=two),
        an_event(EventKind.KEY_CREATED),
        an_event(EventKind.NODE_STATUS, node_id=one),
    ]
    await events.record(happened)

    newest = await events.newest(10)
    assert [stored.sequence for stored in newest] == [4, 3, 2, 1]
    assert [stored.event for stored in newest] == happened[::-1]
    assert [stored.sequence for stored in await events.newest(1)] == [4]


async def test_trim_deletes_the_old_but_keeps_the_newest(events: Events) -> None:
    await events.record([an_event(at=after(second)) for second in range(10)])

    assert await events.trim(after(6), 2) == 6
    assert [stored.sequence for stored in await events.after(0, limit=20)] == [7, 8, 9, 10]
    assert await events.trim(after(100), 3) == 1
    assert [stored.sequence for stored in await events.after(0, limit=20)] == [8, 9, 10]
    assert await events.trim(after(100), 3) == 0


async def test_trim_of_very_many_goes_in_several_transactions(events: Events, statements: Statements) -> None:
    await events.record([an_event()] * 2500)
    with statements() as seen:
        assert await events.trim(after(1), 0) == 2500

    assert sum("DELETE FROM events" in statement for statement in seen) == 3


async def test_numbers_are_not_given_twice_after_a_trim(events: Events) -> None:
    await events.record([an_event()])
    await events.trim(after(1), 0)
    await events.record([an_event()])

    assert [stored.sequence for stored in await events.after(0, limit=5)] == [2]
