"""One connection to SQLite: whatever happens to it, its thread ends and its locks are gone."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from corral.frontend.store import engines as sqlite_driver
from corral.frontend.store.engines import SqliteConnection
from tests.kit.leaks import open_descriptors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "corral.db"


def connection_to(path: Path) -> SqliteConnection:
    return SqliteConnection(path, busy_seconds=0, pragmas=["journal_mode = WAL"])


def is_locked(path: Path) -> bool:
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    finally:
        other.close()
    return False


async def test_closing_in_the_middle_of_a_statement_lets_go_of_the_lock(path: Path) -> None:
    connection = await connection_to(path)
    unfinished = await connection.cursor()
    await unfinished.execute("BEGIN IMMEDIATE")
    await unfinished.execute("SELECT value FROM json_each('[1, 2, 3]')")
    await unfinished.fetchone()
    assert is_locked(path)

    await connection.close()
    assert not is_locked(path)
    assert unfinished is not None  # still referred to: nothing was left to the garbage collector


async def test_a_statement_visits_the_thread_once_and_without_a_transaction_nothing_is_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, visits = await connection_to(path), 0
    visit = connection._execute

    async def counted(*arguments: object) -> object:
        nonlocal visits
        visits += 1
        return await visit(*arguments)

    monkeypatch.setattr(connection, "_execute", counted)
    async with connection.cursor() as cursor:
        await cursor.execute("SELECT value FROM json_each(?)", ("[1, 2]",))
        assert list(await cursor.fetchall()) == [(1,), (2,)]
    await connection.commit()
    await connection.rollback()
    assert visits == 1
    await connection.close()


async def test_a_transaction_is_rolled_back_although_its_begin_was_cancelled(path: Path) -> None:
    connection = await connection_to(path)
    beginning = asyncio.create_task(connection.cursor().execute("BEGIN IMMEDIATE"))
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait([beginning])

    await connection.rollback()
    assert not is_locked(path)
    await connection.close()


async def test_a_connection_may_be_stopped_again_and_again(path: Path) -> None:
    connection = await connection_to(path)
    stopped = connection.stop()
    assert stopped is not None
    await stopped

    assert connection.stop() is None
    await connection.close()


async def test_a_connection_abandoned_while_it_opens_is_closed(path: Path) -> None:
    connection = connection_to(path)

    async def connect() -> object:
        return await connection

    task = asyncio.create_task(connect())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    connection._thread.join()

    assert not [what for what in open_descriptors().values() if what.startswith(str(path))]


async def test_whoever_writes_while_the_journal_changes_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(sqlite_driver.time, "sleep", lambda _: writer.rollback())
    patient = await SqliteConnection(path, busy_seconds=60, pragmas=["journal_mode = WAL"])
    assert not writer.in_transaction
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await patient.close()
    writer.close()


async def test_it_is_not_waited_for_for_ever(path: Path) -> None:
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await SqliteConnection(path, busy_seconds=0.05, pragmas=["journal_mode = WAL"])
    writer.close()
