"""Migrations and `schema.py` give the same database, whoever runs them, and however many at once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.engine.interfaces import ReflectedIndex

from corral.base.errors import SchemaTooNew
from corral.state.db import Database
from corral.state.engines import Timeouts
from corral.state.events import Events
from corral.state.load_jobs import LoadJobs
from corral.state.migrations import upgrade
from corral.state.nodes import Nodes
from corral.state.replicas import ReplicaStore, insert_replica
from corral.state.schema import metadata
from corral.state.secrets import Secrets
from corral.state.secrets_key import SecretsKey
from tests.kit.databases import DatabaseSource
from tests.kit.samples import a_load_job, a_node, a_replica, after, an_event


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def blank_url(request: pytest.FixtureRequest, database_source: DatabaseSource) -> AsyncIterator[str]:
    async with database_source.blank_url(request.param) as url:
        yield url


@pytest.fixture
async def blank(blank_url: str) -> AsyncIterator[Database]:
    database = await Database.open(blank_url)
    yield database
    await database.close()


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, metadata))


def description(connection: Connection) -> dict[str, object]:
    """All that the database says about our tables."""
    inspector = inspect(connection)
    return {
        table: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(table)],
            inspector.get_pk_constraint(table),
            inspector.get_foreign_keys(table),
            sorted(map(str, inspector.get_unique_constraints(table))),
            sorted(_plain(index) for index in inspector.get_indexes(table)),
        )
        for table in metadata.tables
    }


def _plain(index: ReflectedIndex) -> str:
    """Conditions of partial indexes are objects; their text counts."""
    options = {name: str(value) for name, value in index.pop("dialect_options", {}).items()}
    return f"{index} {options}"


async def test_after_the_migrations_nothing_is_left_to_change(database: Database) -> None:
    async with database.begin() as connection:
        assert await connection.run_sync(differences) == []


async def test_migrations_and_schema_describe_the_same_tables(blank: Database) -> None:
    async with blank.begin() as connection:
        await connection.run_sync(metadata.create_all)
        from_schema = await connection.run_sync(description)
        await connection.run_sync(metadata.drop_all)
    await upgrade(blank)
    async with blank.read() as connection:
        from_migrations = await connection.run_sync(description)

    assert from_migrations == from_schema


async def test_migrating_again_changes_nothing(database: Database) -> None:
    await Events(database).record([an_event()])
    await upgrade(database)

    assert await Events(database).last_sequence() == 1


ADDED_SINCE_0006 = (
    ("replicas", "routes"),
    ("replicas", "front_port"),
    ("load_jobs", "reason"),
    ("load_jobs", "engine_lines"),
    ("nodes", "registered_from"),
    ("nodes", "suspicion"),
)


async def test_rows_of_an_earlier_version_can_be_read_after_the_upgrade(database: Database) -> None:
    secrets = await Secrets.open(database, SecretsKey(bytes(32)), at=after(0))
    nodes, jobs, replicas = Nodes(database), LoadJobs(database, secrets), ReplicaStore(database, secrets)
    node, job, replica = a_node(), a_load_job(), a_replica()
    assert await nodes.insert(node, events=[])
    await jobs.open(job)
    async with database.begin() as connection:
        assert await insert_replica(connection, replica)
        for table, column in ADDED_SINCE_0006:
            await connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        await connection.execute(text("UPDATE alembic_version SET version_num = '0006'"))

    await upgrade(database)

    (known,) = await nodes.all()
    assert (known.id, known.registered_from, known.facts.suspicion) == (node.id, "", None)
    (waiting,) = await jobs.all()
    assert (waiting.model, waiting.reason, waiting.engine_lines) == (job.model, None, ())
    (living,) = await replicas.living()
    assert (living.id, living.routes, living.front_port) == (replica.id, None, 0)


async def test_frontends_that_start_together_migrate_once(blank_url: str) -> None:
    """However long each takes: on SQLite, which serves one frontend, the others would give up waiting soon."""
    patient = Timeouts(busy=timedelta(minutes=1))
    frontends = await asyncio.gather(*(Database.open(blank_url, lock=False, timeouts=patient) for _ in range(3)))
    try:
        await asyncio.gather(*(upgrade(frontend) for frontend in frontends))
        await asyncio.gather(*(Events(frontend).record([an_event()]) for frontend in frontends))
        assert await Events(frontends[0]).last_sequence() == 3
    finally:
        for frontend in frontends:
            await frontend.close()


async def test_a_migration_that_fails_leaves_nothing_behind(blank: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with blank.begin() as connection:
        await connection.execute(text("CREATE TABLE marks (surprise TEXT)"))
    with pytest.raises(Exception, match="marks"):
        await upgrade(blank)

    async with blank.begin() as connection:
        assert await connection.run_sync(lambda sync: inspect(sync).get_table_names()) == ["marks"]
        await connection.execute(text("DROP TABLE marks"))
    await upgrade(blank)
    assert await Events(blank).last_sequence() == 0


async def test_a_database_of_a_newer_version_is_refused_and_not_touched(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaTooNew) as refused:
        await upgrade(database)

    assert "9999" in refused.value.message
    async with database.read() as connection:
        version = await connection.execute(select(text("version_num")).select_from(text("alembic_version")))
        assert version.scalar_one() == "9999"
