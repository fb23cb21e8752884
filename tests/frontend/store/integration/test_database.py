"""Transactions, errors and cancellation: the same on both databases."""

import asyncio
import gc
import uuid
from collections.abc import Coroutine

import pytest
from sqlalchemy import Insert, func, insert, select, text
from sqlalchemy.exc import DBAPIError, StatementError

from corral.base.errors import DatabaseUnavailable
from corral.frontend.store.db import ConstraintViolated, Database
from corral.frontend.store.schema import leases, marks
from tests.kit.samples import after
from tests.kit.waiting import WAIT_TIMEOUT


def mark(name: str) -> Insert:
    return insert(marks).values(name=name, made_at=after(0))


async def write(database: Database, *statements: Insert) -> None:
    async with database.begin() as connection:
        for statement in statements:
            await connection.execute(statement)


async def marks_in(database: Database) -> int:
    async with database.read() as connection:
        return int((await connection.execute(select(func.count()).select_from(marks))).scalar_one())


async def test_what_was_written_is_there_after_the_transaction(database: Database) -> None:
    await write(database, mark("one"))

    assert await marks_in(database) == 1


async def test_an_error_inside_undoes_everything_and_comes_out_unchanged(database: Database) -> None:
    class Broken(Exception):
        pass

    async def work() -> None:
        async with database.begin() as connection:
            await connection.execute(mark("one"))
            raise Broken

    with pytest.raises(Broken):
        await work()
    assert await marks_in(database) == 0


async def test_a_snapshot_does_not_change_while_it_is_read(database: Database) -> None:
    async with database.read() as connection:
        count = select(func.count()).select_from(marks)
        before = (await connection.execute(count)).scalar_one()
        await write(database, mark("one"))
        assert (await connection.execute(count)).scalar_one() == before == 0

    assert await marks_in(database) == 1


async def test_a_snapshot_cannot_write(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"read-?only"):
        async with database.read() as connection:
            await connection.execute(mark("one"))

    await write(database, mark("one"))


async def test_a_broken_constraint_has_a_name_of_its_own(database: Database) -> None:
    with pytest.raises(ConstraintViolated) as broken:
        await write(database, mark("one"), mark("one"))

    assert broken.value.code == "constraint_violated"
    assert not broken.value.retryable


@pytest.mark.parametrize("statement", ["SELECT nothing FROM nowhere", "SELEKT 1"])
async def test_a_wrong_statement_is_our_mistake_and_stays_visible(database: Database, statement: str) -> None:
    with pytest.raises(DBAPIError):
        async with database.begin() as connection:
            await connection.execute(text(statement))


async def test_a_time_without_a_zone_is_our_mistake(database: Database) -> None:
    naive = after(0).replace(tzinfo=None)
    with pytest.raises(StatementError, match="time zone"):
        await write(database, insert(marks).values(name="naive", made_at=naive))


async def test_errors_never_show_what_was_being_stored(database: Database) -> None:
    claim = insert(leases).values(name="same", holder="h", claimed_at=after(0), until=after(0))
    with pytest.raises(ConstraintViolated) as broken:
        await write(database, claim.values(token="first"), claim.values(token="do-not-show"))

    assert "do-not-show" not in str(broken.value) + str(broken.value.__cause__)


async def test_a_closed_database_says_so(database: Database) -> None:
    await database.close()
    with pytest.raises(DatabaseUnavailable, match="closed"):
        await database.check()

    await database.close()


async def test_many_writers_at_once_all_get_their_turn(database: Database) -> None:
    await asyncio.gather(*(write(database, mark(str(number))) for number in range(60)))

    assert await marks_in(database) == 60


async def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(mark("one"))
        assert await marks_in(database) == 0


async def write_and_read(database: Database, name: str) -> None:
    async with database.begin() as connection:
        await connection.execute(mark(name))
        await connection.execute(select(marks))
    await marks_in(database)


async def turns_of(work: Coroutine[None, None, None]) -> int:
    """How many turns of the loop the work takes when nobody disturbs it."""
    task = asyncio.create_task(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def cancelled_after(turns: int, work: Coroutine[None, None, None]) -> None:
    """Cancel the work wherever it then is, and again while it cleans up, as an impatient server does."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled() or task.exception() is None


async def test_cancelling_at_any_moment_poisons_nothing(database: Database) -> None:
    whole = await turns_of(write_and_read(database, "undisturbed"))
    moments = [whole * step // 50 for step in range(55)]
    for moment in moments:
        await cancelled_after(moment, write_and_read(database, f"alone-{moment}-{uuid.uuid4()}"))
    crowd = [write_and_read(database, f"crowd-{number}") for number in range(len(moments))]
    await asyncio.gather(*(cancelled_after(moment, work) for moment, work in zip(moments, crowd, strict=True)))
    gc.collect()

    known = await marks_in(database)
    await write(database, mark("afterwards"))
    assert await marks_in(database) == known + 1


async def test_a_transaction_cancelled_in_the_middle_is_undone_and_holds_no_lock(database: Database) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with database.begin() as connection:
            await connection.execute(mark("one"))
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    await asyncio.wait([task])

    async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
        await write(database, mark("two"))
    assert await marks_in(database) == 1


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_connections_of_a_burst_are_used_again_by_the_next(database: Database) -> None:
    """News wake a dozen loops together, many times a second while an operation runs."""

    async def burst() -> set[int]:
        together = asyncio.Barrier(12)

        async def look() -> int:
            async with database.read() as connection:
                process = int((await connection.execute(select(func.pg_backend_pid()))).scalar_one())
                await together.wait()
                return process

        return set(await asyncio.gather(*(look() for _ in range(12))))

    first = await burst()
    assert len(first) == 12
    assert await burst() == first
