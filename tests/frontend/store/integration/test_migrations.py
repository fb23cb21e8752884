"""Migrations and `schema.py` give the same database, whoever runs them, and however many at once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations as AlembicOperations
from sqlalchemy import Connection, bindparam, inspect, select, text
from sqlalchemy.engine.interfaces import ReflectedIndex

import corral.frontend.store.access_schema  # noqa: F401 - for its tables
from corral.base.errors import SchemaTooNew
from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.decide.backend import artefact_of, with_alias_kept
from corral.frontend.backends.store import write_reports
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.intent import Before
from corral.frontend.operations.decide.reasons import ReasonCode, because, sentence
from corral.frontend.operations.store.intents import Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.decide import EventFilter
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore, insert_replica
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import UtcTime
from corral.frontend.store.engines import Timeouts
from corral.frontend.store.migrations import upgrade
from corral.frontend.store.migrations.versions import r0003_operations
from corral.frontend.store.schema import event_subjects, metadata, models, removed_models
from corral.frontend.store.schema_version import has_schema, is_newest
from corral.frontend.store.secrets import Secrets, SecretsKey
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


async def test_starts_know_a_database_that_needs_no_migration(blank: Database) -> None:
    assert not await has_schema(blank)
    assert not await is_newest(blank)

    await upgrade(blank)

    assert await has_schema(blank)
    assert await is_newest(blank)
    async with blank.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0017'"))
    assert await has_schema(blank)
    assert not await is_newest(blank)


ADDED_SINCE_0006 = (
    ("replicas", "routes"),
    ("replicas", "front_port"),
    ("load_jobs", "reason"),
    ("load_jobs", "engine_lines"),
    ("nodes", "registered_from"),
    ("nodes", "suspicion"),
)


OLD_ROWS = (
    """INSERT INTO operations (id, verb, backend, artefact, asked_by, accepted_at) VALUES
    ('op1', 'install', 'g@echo', '{"backend": "g@echo", "uri": "oci://a", "digests": ["d"]}', 'alice', :at),
    ('op2', 'remove', 'small', '{"backend": "small"}', 'alice', :at)""",
    """INSERT INTO operation_targets
    (operation_id, node_id, node_name, backend, status, waits_for_node, message, attempts, changed_at) VALUES
    ('op1', 'n1', 'w1', 'echo', 'error', 0, 'disk ''full''', 2, :at),
    ('op2', 'n1', 'w1', 'models/small', 'queued', 1, '', 0, :at)""",
    """INSERT INTO backend_intents (node_id, backend, generation, operation_id, verb, artefact, accepted_at, state,
    before, attempts, misses, next_try, waits_for_node, message, changed_at, lease_token, lease_until) VALUES
    ('n1', 'echo', 3, 'op1', 'install', '{"backend": "g@echo", "uri": "oci://a", "digests": ["d"]}', :at, 'open',
    '{"present": false}', 2, 1, :at, 0, 'disk ''full''', :at, 'token', :at),
    ('n1', 'models/small', 1, 'op2', 'remove', '{"backend": "small"}', :at, 'open',
    NULL, 0, 0, :at, 1, '', :at, NULL, NULL)""",
)


JOBS_OF_0013 = (
    "model, id, revision, state, node_id, replica_id, failures, message, retry_at, lease_token, lease_until, "
    "created_at, changed_at, preferred_node_id, reason, engine_lines"
)
ADDED_BY_0014 = (
    ("replicas", "vram"),
    ("replicas", "ram"),
    ("replicas", "cards"),
    ("replicas", "why"),
    ("replicas", "models_path"),
    ("nodes", "cards"),
    ("nodes", "cards_out"),
)


ADDED_BY_0015 = (
    ("nodes", "fingerprint"),
    ("nodes", "invitation_id"),
    ("nodes", "confinement"),
    ("nodes", "nats_login"),
    ("api_keys", "user_id"),
    ("api_keys", "models"),
    ("replicas", "sealed_token"),
)


def make_access_of_0015(connection: Connection) -> None:
    """The tables as they were before there were sessions of the web page."""
    connection.execute(text("DROP TABLE sessions"))
    connection.execute(text("DROP INDEX ix_api_keys_session_id"))
    connection.execute(text("ALTER TABLE api_keys DROP COLUMN session_id"))


INDEXES_OF_0017 = (
    "ix_events_kind_sequence",
    "ix_events_actor_sequence",
    "ix_operations_subject_accepted_at",
    "ix_operations_asked_by_accepted_at",
    "ix_operation_targets_node_id",
)


def make_replicas_of_0018(connection: Connection) -> None:
    """The tables as they were when nobody noted which installs of loads were not answered."""
    connection.execute(text("ALTER TABLE replicas DROP COLUMN asked_life"))


def make_keys_of_0017(connection: Connection) -> None:
    """The tables as they were when nobody knew whether a key was used."""
    make_replicas_of_0018(connection)
    connection.execute(text("ALTER TABLE api_keys DROP COLUMN used_at"))


def make_filters_of_0016(connection: Connection) -> None:
    """The tables as they were when nobody could look for what an event is about."""
    make_keys_of_0017(connection)
    connection.execute(text("DROP TABLE event_subjects"))
    for index in INDEXES_OF_0017:
        connection.execute(text(f"DROP INDEX {index}"))


def make_access_of_0014(connection: Connection) -> None:
    """The tables as they were when there were keys, but no people."""
    make_filters_of_0016(connection)
    make_access_of_0015(connection)
    for table in ("users", "invitations", "nats_users", "backend_policies"):
        connection.execute(text(f"DROP TABLE {table}"))
    for table, column in ADDED_BY_0015:
        connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))


def make_places_of_0013(connection: Connection) -> None:
    """The tables as they were when a model had one load at a time, and replicas reserved nothing."""
    make_access_of_0014(connection)
    connection.execute(text(f"CREATE TABLE jobs AS SELECT {JOBS_OF_0013} FROM load_jobs"))
    for table in ("load_jobs", "scheduling", "external_engines", "staged_models"):
        connection.execute(text(f"DROP TABLE {table}"))
    connection.execute(text("ALTER TABLE jobs RENAME TO load_jobs"))
    for table, column in ADDED_BY_0014:
        connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))


def make_models_of_0011(connection: Connection) -> None:
    """The tables as they were before models were rows."""
    make_places_of_0013(connection)
    for table in ("models", "model_revisions", "model_stores", "model_imports", "model_galleries"):
        connection.execute(text(f"DROP TABLE {table}"))
    connection.execute(text("ALTER TABLE removed_models DROP COLUMN cleared"))


def make_operations_of_0010(connection: Connection) -> None:
    """The tables of operations as they were before intents had a kind."""
    make_models_of_0011(connection)
    for table in ("intents", "operations", "operation_targets"):
        connection.execute(text(f"DROP TABLE {table}"))
    with AlembicOperations.context(MigrationContext.configure(connection)):
        r0003_operations._operations()
        r0003_operations._intents()


async def test_operations_of_an_earlier_version_are_taken_over_whole(database: Database) -> None:
    async with database.begin() as connection:
        await connection.run_sync(make_operations_of_0010)
        for rows in OLD_ROWS:
            await connection.execute(text(rows).bindparams(bindparam("at", after(1), UtcTime)))
        await connection.execute(text("UPDATE alembic_version SET version_num = '0010'"))

    await upgrade(database)

    install, removal = await Intents(database, write_reports).of_node(NodeId("n1"))
    assert (install.kind, install.subject, install.generation, install.state) == ("backend", "echo", 3, "open")
    artefact = artefact_of(install.payload)
    assert (artefact.backend, artefact.uri, artefact.digests) == ("g@echo", "oci://a", {"d"})
    assert (install.attempts, install.misses, install.reason, install.before) == (
        2,
        1,
        because(ReasonCode.OTHER, text="disk 'full'"),
        Before(present=False),
    )
    assert (install.lease_token, install.lease_until, install.next_try) == ("token", after(1), after(1))
    assert (removal.kind, removal.subject, removal.waits_for_node) == ("model", "small", True)
    assert (sentence(install.reason), removal.reason) == ("disk 'full'", None)
    operations = OperationStore(database, with_alias_kept)
    first, second = await operations.get(OperationId("op1")), await operations.get(OperationId("op2"))
    assert first is not None
    assert second is not None
    assert (first.subject, artefact_of(first.payload), first.targets[0].subject) == ("g@echo", artefact, "echo")
    assert (first.targets[0].status, first.targets[0].reason, first.targets[0].attempts) == ("error", install.reason, 2)
    assert (second.subject, second.targets[0].subject, second.targets[0].waits_for_node) == ("small", "small", True)
    assert second.targets[0].reason is None


async def test_rows_of_an_earlier_version_can_be_read_after_the_upgrade(database: Database) -> None:
    secrets = await Secrets.open(database, SecretsKey(bytes(32)), at=after(0))
    nodes, jobs, replicas = Nodes(database), LoadJobs(database, secrets), ReplicaStore(database, secrets)
    node, job, replica = a_node(), a_load_job(), a_replica()
    assert await nodes.admit(node, events=[], policy=AdmissionPolicy())
    await jobs.open(job)
    async with database.begin() as connection:
        assert await insert_replica(connection, replica)
        await connection.run_sync(make_operations_of_0010)
        for table, column in ADDED_SINCE_0006:
            await connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        await connection.execute(text("UPDATE alembic_version SET version_num = '0006'"))

    await upgrade(database)

    (known,) = await nodes.all()
    assert (known.id, known.registered_from, known.facts.suspicion) == (node.id, "", None)
    (waiting,) = await jobs.all()
    assert (waiting.model, waiting.reason, waiting.engine_lines) == (job.model, None, ())
    assert (waiting.ordinal, waiting.why, waiting.steps) == (0, LoadWhy.ASKED, ())
    (living,) = await replicas.living()
    assert (living.id, living.routes, living.front_port) == (replica.id, None, 0)
    assert (living.vram, living.ram, living.cards, living.why) == (0, 0, (), LoadWhy.ASKED)


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


async def test_events_of_an_earlier_version_are_found_by_what_they_are_about(database: Database) -> None:
    events = Events(database)
    odd = {"model": "sm\x00all\ud800", "operation": "op1", "added": ["a", "b", 3], "changed": "no list", "name": 7}
    await events.record([an_event(data=odd), an_event(data={}), an_event(data={"model": "x" * 3000, "for": "a"})])
    async with database.begin() as connection:
        written = (await connection.execute(select(event_subjects).order_by(*event_subjects.c))).all()
        await connection.run_sync(make_filters_of_0016)
        await connection.execute(text("UPDATE alembic_version SET version_num = '0016'"))

    await upgrade(database)

    async with database.read() as connection:
        filled = (await connection.execute(select(event_subjects).order_by(*event_subjects.c))).all()
    assert filled == written
    assert [subject for subject, _ in filled] == ["a", "a", "b", "op1", "sm\ufffdall\ufffd", "x" * 200]
    found = await events.page(EventFilter(subject="a"), limit=9)
    assert [stored.sequence for stored in found] == [1, 3]


async def test_removals_of_an_earlier_version_stay_and_models_begin_without_any(database: Database) -> None:
    async with database.begin() as connection:
        await connection.run_sync(make_models_of_0011)
        row = "INSERT INTO removed_models (name, removed_at, operation_id) VALUES ('small', :at, 'op1')"
        await connection.execute(text(row).bindparams(bindparam("at", after(1), UtcTime)))
        await connection.execute(text("UPDATE alembic_version SET version_num = '0011'"))

    await upgrade(database)

    async with database.read() as connection:
        (row_of_before,) = (await connection.execute(select(removed_models))).all()
        assert tuple(row_of_before) == ("small", after(1), "op1", None)
        assert (await connection.execute(select(models))).all() == []
