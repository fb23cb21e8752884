"""PostgreSQL as a server: it may be away, starting, frozen or refusing, and says nothing of passwords."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from corral.base.errors import DatabaseUnavailable, InvalidInput
from corral.base.ids import new_lease_token
from corral.frontend.access.store.keys import Keys
from corral.frontend.record.store import Events
from corral.frontend.store.db import Database
from corral.frontend.store.engines import Timeouts
from corral.frontend.store.leases import Leases
from corral.wire.keys import Scope
from tests.kit.databases import DatabaseSource
from tests.kit.loop_time import without_waiting
from tests.kit.samples import a_key, an_event

pytestmark = pytest.mark.postgres


@pytest.fixture
async def url(database_source: DatabaseSource) -> AsyncIterator[str]:
    async with database_source.fresh_url("postgres") as url:
        yield url


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_went_away_is_unavailable_and_then_works_again(
    database_source: DatabaseSource, url: str, how: str
) -> None:
    database = await Database.open(url)
    events = Events(database)
    await asyncio.gather(*(events.record([an_event()]) for _ in range(4)))

    async def lose_the_server() -> None:
        async with database.begin() as connection:
            await connection.execute(text("SELECT 1"))
            getattr(database_source.postgres, how)()
            await connection.execute(text("SELECT 1"))

    try:
        with pytest.raises(DatabaseUnavailable) as unavailable:
            await lose_the_server()
        assert unavailable.value.retryable
        with pytest.raises(DatabaseUnavailable):
            await events.record([an_event()])
    finally:
        database_source.postgres.start()
    await events.record([an_event()])
    assert await events.last_sequence() == 5
    await database.close()


async def test_the_first_call_after_a_restart_already_works(database_source: DatabaseSource, url: str) -> None:
    database = await Database.open(url)
    events = Events(database)
    await asyncio.gather(*(events.record([an_event()]) for _ in range(4)))
    database_source.postgres.restart()

    await asyncio.gather(*(events.record([an_event()]) for _ in range(4)))
    assert await events.last_sequence() == 8
    await database.close()


async def test_a_single_read_or_write_sends_one_statement(database_source: DatabaseSource, url: str) -> None:
    """Neither a ping before it, nor a transaction around it."""
    name = url.rpartition("/")[2]
    database_source.postgres.run(f"ALTER DATABASE {name} SET log_statement = 'all'")
    database = await Database.open(url)
    events, leases = Events(database), Leases(database)
    await events.last_sequence()
    log = database_source.postgres.log
    begin = log.stat().st_size

    await events.last_sequence()
    await events.last_sequence()
    await leases.release("nothing", new_lease_token())

    said = log.read_text(errors="replace")[begin:]
    await database.close()
    assert said.count("SELECT event_sequence.last") == 2
    assert said.count("DELETE FROM leases") == 1
    assert not [word for word in ("BEGIN", "COMMIT", "ROLLBACK") if word in said]


async def test_a_server_that_is_not_there_is_unavailable(url: str) -> None:
    nobody_listens = url.replace(f":{url.rpartition(':')[2]}", ":1/name")
    with pytest.raises(DatabaseUnavailable, match=r"refused|failed"):
        await Database.open(nobody_listens)


async def test_a_host_that_does_not_exist_is_unavailable() -> None:
    with pytest.raises(DatabaseUnavailable) as unavailable:
        await Database.open("postgresql://user:hunter2@host.invalid/name")

    assert "hunter2" not in str(unavailable.value)


async def test_a_frozen_server_is_unavailable_in_time_and_recovers(database_source: DatabaseSource, url: str) -> None:
    database = await Database.open(url)
    events = Events(database)
    await events.record([an_event()])
    with database_source.postgres.frozen():
        recording = asyncio.create_task(events.record([an_event()]))
        with pytest.raises(DatabaseUnavailable):
            await without_waiting(recording)

    await events.record([an_event()])
    await database.close()


async def setting(database: Database, name: str) -> str:
    async with database.begin() as connection:
        return str((await connection.execute(text(f"SHOW {name}"))).scalar_one())


async def test_a_statement_that_takes_too_long_is_ended(url: str) -> None:
    database = await Database.open(url, timeouts=Timeouts(statement=timedelta(seconds=77)))
    assert await setting(database, "statement_timeout") == "77s"

    async def take_too_long() -> None:
        async with database.begin() as connection:
            await connection.execute(
                text("SET LOCAL statement_timeout = 100")
            )  # milliseconds, for this statement alone
            await connection.execute(text("SELECT pg_sleep(30)"))

    with pytest.raises(DatabaseUnavailable, match="timeout"):
        await take_too_long()

    await database.check()
    await database.close()


async def test_a_frontend_that_freezes_inside_a_transaction_loses_its_locks(url: str) -> None:
    frozen = await Database.open(url, timeouts=Timeouts(idle_in_transaction=timedelta(seconds=77)))
    other = await Database.open(url)
    assert await setting(frozen, "idle_in_transaction_session_timeout") == "77s"

    async def freeze() -> None:
        async with frozen.begin() as connection:
            await connection.execute(text("UPDATE event_sequence SET last = 77"))
            await connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 100"))
            await Events(other).record([an_event()])
            await connection.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        await freeze()
    assert await Events(other).last_sequence() == 1
    await frozen.close()
    await other.close()


async def test_a_session_ended_by_an_administrator_is_unavailable_once(url: str) -> None:
    database = await Database.open(url)
    with pytest.raises(DatabaseUnavailable, match="terminating connection"):
        async with database.begin() as connection:
            await connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    await database.check()
    await database.close()


async def test_a_wrong_password_is_said_without_showing_any(database_source: DatabaseSource, url: str) -> None:
    password = database_source.postgres.password
    with pytest.raises(DatabaseUnavailable) as refused:
        await Database.open(url.replace(password, "hunter2"))

    said = f"{refused.value} {refused.value.fields} {refused.value.__cause__!r}"
    assert "password authentication failed" in said
    assert "hunter2" not in said


async def test_a_missing_database_is_named(database_source: DatabaseSource) -> None:
    with pytest.raises(DatabaseUnavailable, match='"nowhere" does not exist'):
        await Database.open(database_source.postgres.url("nowhere"))


async def test_the_password_is_not_in_the_repr(database_source: DatabaseSource, url: str) -> None:
    database = await Database.open(url)
    shown = f"{database!r} {database.engines!r} {[engine.url for engine in database.engines]}"

    assert database_source.postgres.password not in shown
    assert "127.0.0.1" in repr(database)
    await database.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:12345/x@host/name",
        "postgresql://user:12345?x@host/name",
        "postgresql://user:hunter2?x@host/name",
        "postgresql://user:hunter2/x@host/name",
        "postgresql://user:hunter2#@host/name",
        "postgresql://user:hunter2@host:port/name",
        "postgresql://user:hunter2@[host/name",
        "postgresql://user:hunter2@host:999999/name",
    ],
)
async def test_a_url_that_cannot_be_read_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await Database.open(url)

    said = f"{refused.value} {refused.value.__cause__} {refused.value.__context__}"
    assert "hunter2" not in said
    assert "12345" not in said
    assert "percent-encode" in str(refused.value)


@pytest.mark.parametrize("options", ["sslmode=nonsense", "target_session_attrs=whatever"])
async def test_options_that_make_no_sense_are_refused(url: str, options: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be used"):
        await Database.open(f"{url}?{options}")


async def test_several_hosts_may_be_named_and_one_that_answers_is_enough(url: str) -> None:
    database = await Database.open(url.replace("@127", "@127.0.0.1:1,127"))
    await database.check()
    assert repr(database).startswith("Database(postgresql://127.0.0.1:1,127.0.0.1:")
    await database.close()


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        ("sslmode=prefer", "is_superuser", "on"),
        ("sslmode=disable&application_name=mine", "application_name", "corral"),
        ("options=-c%20jit=on%20-c%20work_mem=8MB", "work_mem", "8MB"),
    ],
)
async def test_the_usual_options_of_a_url_are_understood(url: str, options: str, setting: str, value: str) -> None:
    database = await Database.open(f"{url}?{options}".replace("postgresql://", "postgres://"))
    async with database.read() as connection:
        assert (await connection.execute(text(f"SHOW {setting}"))).scalar_one() == value
    await database.close()


async def test_more_work_than_connections_waits_in_line(url: str) -> None:
    database = await Database.open(url)
    sessions = set[int]()

    async def work() -> None:
        async with database.begin() as connection:
            sessions.add((await connection.execute(text("SELECT pg_backend_pid() FROM pg_sleep(0.01)"))).scalar_one())

    await asyncio.gather(*(work() for _ in range(60)))
    await database.close()
    assert 1 < len(sessions) < 30


async def test_of_three_frontends_that_start_together_one_makes_the_administrator_key(url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        frontends = [await Database.open(url) for _ in range(3)]
        for frontend in frontends:
            stack.push_async_callback(frontend.close)
        admin = frozenset({Scope.ADMIN})
        won = await asyncio.gather(
            *(Keys(frontend).insert_first_admin(a_key(scopes=admin), events=[]) for frontend in frontends)
        )

        assert won.count(True) == 1
        assert len(await Keys(frontends[0]).list()) == 1
