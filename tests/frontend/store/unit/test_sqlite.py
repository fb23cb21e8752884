"""SQLite as a file: who may read and use it, and what happens when the disk or another program is in the way."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event, text

from corral.base.errors import DatabaseInUse, DatabaseUnavailable, InvalidInput, PathNotUsable
from corral.frontend.record.store import Events
from corral.frontend.store.db import Database
from corral.frontend.store.engines import Timeouts, sqlite_path
from corral.frontend.store.migrations import upgrade
from tests.kit.samples import an_event

QUICK = Timeouts(busy=timedelta(milliseconds=150), queue=timedelta(seconds=5))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "corral.db"


@pytest.fixture
async def database(file: Path) -> AsyncIterator[Database]:
    database = await Database.open(str(file), timeouts=QUICK)
    await upgrade(database)
    yield database
    await database.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def another_program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs beside us until the end of the block; it has done its work when it has said something."""
    program = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "ready\n"
        yield program
    finally:
        program.kill()
        program.wait()
        program.stdin.close()
        program.stdout.close()


HOLDS_THE_LOCK = """
import asyncio, sys
from corral.frontend.store.db import Database
async def main():
    database = await Database.open(sys.argv[1])
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""

WRITES = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////srv/corral.db", "/srv/corral.db"),
        ("/srv/corral.db", "/srv/corral.db"),
        ("sqlite:///corral.db", "corral.db"),
        ("data/corral.db", "data/corral.db"),
        ("sqlite:///with space?and#signs%20", "with space?and#signs%20"),
    ],
)
def test_a_url_or_a_bare_path_names_the_file(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path).absolute()


@pytest.mark.parametrize("url", ["postgresql://host/name", "postgres://user:secret@host/name"])
def test_a_postgresql_url_names_no_file(url: str) -> None:
    assert sqlite_path(url) is None


@pytest.mark.parametrize("url", ["", "sqlite://", "sqlite:///", "sqlite://corral.db", ":memory:", "sqlite:///:memory:"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="sqlite:///path"):
        sqlite_path(url)


def test_an_unknown_kind_of_database_is_refused_without_showing_its_password() -> None:
    with pytest.raises(InvalidInput) as refused:
        sqlite_path("mysql://root:hunter2@host/name")

    assert "mysql://" in refused.value.message
    assert "hunter2" not in refused.value.message


async def test_odd_characters_in_the_path_are_just_characters(tmp_path: Path) -> None:
    path = tmp_path / "file:a b?mode=ro#%41.db"
    database = await Database.open(f"sqlite:///{path}")
    await upgrade(database)
    await database.close()

    assert path.stat().st_size > 0


async def test_only_the_owner_may_read_the_files(database: Database, file: Path) -> None:
    await Events(database).record([an_event()])
    files = {path.name: mode(path) for path in file.parent.iterdir()}

    assert files == dict.fromkeys(["corral.db", "corral.db-wal", "corral.db-shm", "corral.db.lock"], 0o600)


@pytest.fixture
def readable_file(file: Path) -> Path:
    file.touch()
    file.chmod(0o644)
    return file


@pytest.fixture
def letter(file: Path) -> Path:
    file.write_bytes(b"this is not a database, but a letter. " * 40)
    return file


async def test_a_file_that_others_could_read_is_closed_to_them(readable_file: Path) -> None:
    file = readable_file
    await (await Database.open(str(file))).close()

    assert mode(file) == 0o600


async def test_a_missing_directory_is_made_private(tmp_path: Path) -> None:
    file = tmp_path / "new" / "corral.db"
    await (await Database.open(str(file))).close()

    assert mode(file.parent) == 0o700


async def test_it_uses_a_write_ahead_log_and_checks_what_it_should(database: Database) -> None:
    async with database.begin() as connection:
        settings = [
            (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]

    assert settings == ["wal", 1, 1, 150]


async def test_a_second_frontend_is_refused_and_told_who_has_it(database: Database, file: Path) -> None:
    with pytest.raises(DatabaseInUse) as refused:
        await Database.open(f"sqlite:///{file}")

    assert str(file) in refused.value.message
    assert f"process {os.getpid()}" in refused.value.message
    assert "PostgreSQL" in refused.value.message
    await database.check()


async def test_a_frontend_in_another_process_is_noticed_and_its_death_too(file: Path) -> None:
    with another_program(HOLDS_THE_LOCK, file) as program:
        with pytest.raises(DatabaseInUse, match=f"process {program.pid}"):
            await Database.open(str(file))
        program.send_signal(signal.SIGKILL)
        program.wait()

        await (await Database.open(str(file))).close()


async def test_a_closed_database_can_be_opened_again(database: Database, file: Path) -> None:
    await Events(database).record([an_event()])
    await database.close()

    again = await Database.open(str(file))
    assert await Events(again).last_sequence() == 1
    await again.close()


async def test_a_tool_may_look_without_the_lock(database: Database, file: Path) -> None:
    await Events(database).record([an_event()])
    tool = await Database.open(str(file), lock=False)

    assert await Events(tool).last_sequence() == 1
    await tool.close()


async def test_a_transaction_that_has_only_read_so_far_cannot_be_overtaken(database: Database, file: Path) -> None:
    tool = await Database.open(str(file), lock=False, timeouts=QUICK)
    async with database.begin() as connection:
        await connection.execute(text("SELECT last FROM event_sequence"))
        with pytest.raises(DatabaseUnavailable, match="locked"):
            await Events(tool).record([an_event()])
        await connection.execute(text("UPDATE event_sequence SET last = last + 1"))

    await Events(tool).record([an_event()])
    assert await Events(tool).last_sequence() == 2
    await tool.close()


async def test_a_failed_open_lets_go_of_the_lock(letter: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        await Database.open(str(letter))
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        await Database.open(str(letter))


async def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PathNotUsable, match=str(tmp_path / "file")):
        await Database.open(str(tmp_path / "file" / "corral.db"))


async def test_a_directory_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PathNotUsable, match=str(tmp_path)):
        await Database.open(str(tmp_path))


@contextmanager
def tries(database: Database) -> Iterator[list[str]]:
    """What is sent to the database inside the block."""
    sent: list[str] = []

    def note(*arguments: object) -> None:
        sent.append(str(arguments[2]))

    for engine in database.engines:
        event.listen(engine.sync_engine, "before_cursor_execute", note)
    yield sent
    for engine in database.engines:
        event.remove(engine.sync_engine, "before_cursor_execute", note)


async def test_a_lock_of_another_program_is_reported_quickly_and_passes(database: Database, file: Path) -> None:
    with another_program(WRITES, file) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        with tries(database) as tried, pytest.raises(DatabaseUnavailable, match="locked") as unavailable:
            await Events(database).record([an_event()])
        assert tried == ["BEGIN IMMEDIATE"], "it waits once, as long as it was told to"
        assert unavailable.value.retryable
        assert await Events(database).last_sequence() == 0  # reading goes on

        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "ready\n"
        await Events(database).record([an_event()])
        assert await Events(database).last_sequence() == 1


async def test_a_full_disk_is_reported_and_the_rest_goes_on(database: Database) -> None:
    async with database.begin() as connection:
        pages = (await connection.execute(text("PRAGMA page_count"))).scalar_one()
        await connection.execute(text(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(DatabaseUnavailable, match="full"):
        await Events(database).record([an_event(data={"long": "x" * 4000})] * 100)

    assert await Events(database).last_sequence() == 0
    async with database.begin() as connection:
        await connection.execute(text("PRAGMA max_page_count = 1000000"))
    await Events(database).record([an_event()])


async def test_a_queue_that_does_not_move_is_reported(file: Path) -> None:
    database = await Database.open(str(file), timeouts=Timeouts(queue=timedelta(milliseconds=50)))
    async with database.begin():
        with pytest.raises(DatabaseUnavailable, match="busy"):
            async with database.begin():
                pass
    await database.close()


async def test_writers_of_one_process_wait_in_line_and_not_for_the_lock(file: Path) -> None:
    database = await Database.open(str(file), timeouts=Timeouts(busy=timedelta(0)))
    inside, at_most = 0, 0

    async def hold() -> None:
        nonlocal inside, at_most
        async with database.begin() as connection:
            inside += 1
            at_most = max(at_most, inside)
            for _ in range(10):
                await connection.execute(text("SELECT 1"))
            inside -= 1

    await asyncio.gather(*(hold() for _ in range(20)))
    assert at_most == 1
    await database.close()
