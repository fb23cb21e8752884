"""What a start finds: a damaged database, an empty one beside the keys of a fleet, one of another fleet, no room."""

import os
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, text

from corral.base.errors import DatabaseDamaged, DatabaseFull, FleetMismatch, SecretsKeyMismatch
from corral.bus.port import Bus
from corral.frontend.config import ControlConfig
from corral.frontend.store.db import Database
from corral.frontend.store.fleet_data import FLEET_FILE, FleetData
from corral.frontend.store.migrations import upgrade
from corral.frontend.store.schema import marks
from corral.frontend.store.schema import secrets as secrets_table
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.frontend.store.soundness import DEEP, read_everything, refuse_damaged, sqlite_problems
from corral.processes.control_data import load_secrets_key, open_database
from corral.processes.maintenance import reset_admin_key
from tests.conftest import DATABASES
from tests.kit.clock import ManualClock
from tests.kit.databases import DatabaseSource
from tests.kit.frontend import frontend_config, open_frontend
from tests.kit.samples import after

PAGE = 4096


@pytest.fixture(params=DATABASES)
async def blank(request: pytest.FixtureRequest, database_source: DatabaseSource) -> AsyncIterator[str]:
    """The URL of a database that nobody has used."""
    async with database_source.blank_url(request.param) as url:
        yield url


def fleet_in(folder: Path, url: str, *, new: bool = False) -> FleetData:
    return FleetData(directory=folder, credentials=(folder / "credentials.json",), database=url, may_be_new=new)


async def start(fleet: FleetData, key: SecretsKey | None = None) -> None:
    """The part of a start that touches the database and the keys."""
    config = frontend_config(fleet.directory)
    async with open_database(fleet) as database:
        secrets = await Secrets.open(database, key or await load_secrets_key(config, database), at=after(0))
        await fleet.confirm(secrets, at=after(0))


async def test_a_first_start_and_all_later_ones_are_let_through(blank: str, tmp_path: Path) -> None:
    for _ in range(3):
        await start(fleet_in(tmp_path, blank))

    assert (tmp_path / FLEET_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("remains", ["secrets.key", "credentials.json", FLEET_FILE])
async def test_an_empty_database_beside_keys_is_no_new_fleet(remains: str, blank: str, tmp_path: Path) -> None:
    (tmp_path / remains).write_text("{}")
    (tmp_path / remains).chmod(0o600)

    with pytest.raises(FleetMismatch, match=f"{remains} of a fleet: put back a backup.*start with --new-fleet"):
        await start(fleet_in(tmp_path, blank))
    if remains == "secrets.key":
        (tmp_path / remains).write_text(SecretsKey.generate().to_text())
    await start(fleet_in(tmp_path, blank, new=True))

    await start(fleet_in(tmp_path, blank))


async def test_a_refused_start_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "secrets.key").touch(mode=0o600)
    file = tmp_path / "corral.db"

    with pytest.raises(FleetMismatch, match=r"corral\.db is missing"):
        await start(fleet_in(tmp_path, f"sqlite:///{file}"))

    assert os.listdir(tmp_path) == ["secrets.key"]


async def test_a_log_of_changes_without_its_database_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "corral.db-wal"
    log.write_bytes(b"changes that nobody has seen")

    with pytest.raises(FleetMismatch, match=r"corral\.db-wal"):
        await start(fleet_in(tmp_path, f"sqlite:///{tmp_path / 'corral.db'}"))

    assert log.read_bytes() == b"changes that nobody has seen"


async def test_a_first_start_that_was_killed_goes_on(blank: str, tmp_path: Path) -> None:
    async with open_database(fleet_in(tmp_path, blank)):
        pass  # killed before the key was made
    await start(fleet_in(tmp_path, blank))
    (tmp_path / FLEET_FILE).unlink()  # killed before it was written

    await start(fleet_in(tmp_path, blank))

    assert (tmp_path / FLEET_FILE).exists()


async def test_tables_without_a_fleet_beside_its_mark_are_refused(database_url: str, tmp_path: Path) -> None:
    (tmp_path / FLEET_FILE).write_text('{"id": "an-id"}')
    (tmp_path / FLEET_FILE).chmod(0o600)

    with pytest.raises(FleetMismatch, match="the database has no fleet in it"):
        await start(fleet_in(tmp_path, database_url))


async def test_the_database_of_another_fleet_is_refused(blank: str, tmp_path: Path, database_url: str) -> None:
    key = SecretsKey.generate()
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    await start(fleet_in(one, blank), key)
    await start(fleet_in(other, database_url), key)

    for fleet in (fleet_in(one, database_url), fleet_in(one, database_url, new=True)):
        with pytest.raises(FleetMismatch, match=f"another fleet than the database.*remove {one / FLEET_FILE}"):
            await start(fleet, key)
    (one / FLEET_FILE).unlink()
    await start(fleet_in(one, database_url), key)


async def test_a_backup_from_before_fleets_had_an_id_is_taken_back(blank: str, tmp_path: Path) -> None:
    key = SecretsKey.generate()
    await start(fleet_in(tmp_path, blank), key)
    before = (tmp_path / FLEET_FILE).read_bytes()
    async with open_database(fleet_in(tmp_path, blank)) as database, database.begin() as connection:
        await connection.execute(delete(secrets_table).where(secrets_table.c.name == "fleet-id"))

    await start(fleet_in(tmp_path, blank), key)

    assert (tmp_path / FLEET_FILE).read_bytes() == before


async def test_a_key_is_not_taken_for_the_right_one_because_the_check_was_lost(database: Database) -> None:
    secrets = await Secrets.open(database, SecretsKey.generate(), at=after(0))
    await secrets.replace("token", "value", at=after(0))
    async with database.begin() as connection:
        await connection.execute(delete(secrets_table).where(secrets_table.c.name == "check"))

    with pytest.raises(SecretsKeyMismatch):
        await Secrets.open(database, SecretsKey.generate(), at=after(0))


async def test_a_lost_key_is_not_made_anew_because_the_check_was_lost(database: Database, tmp_path: Path) -> None:
    secrets = await Secrets.open(database, SecretsKey.generate(), at=after(0))
    await secrets.replace("token", "value", at=after(0))
    async with database.begin() as connection:
        await connection.execute(delete(secrets_table).where(secrets_table.c.name == "check"))

    with pytest.raises(SecretsKeyMismatch, match="is missing"):
        await load_secrets_key(frontend_config(tmp_path), database)


async def test_a_reset_of_the_administrator_key_makes_no_fleet(blank: str, tmp_path: Path) -> None:
    (tmp_path / "secrets.key").touch(mode=0o600)
    config: ControlConfig = replace(frontend_config(tmp_path), database_url=blank)

    with pytest.raises(FleetMismatch):
        await reset_admin_key(config)


# Damage.


async def migrated(file: Path, *, rows: int = 1000) -> None:
    database = await Database.open(f"sqlite:///{file}")
    await upgrade(database)
    async with database.begin() as connection:
        await connection.execute(insert(marks), [{"name": f"{n:050}", "made_at": after(0)} for n in range(rows)])
    await database.close()


@pytest.mark.parametrize(
    ("offset", "bytes_"),
    [(0, b"not a database at all!"), (20 * PAGE, b"\xff" * PAGE), (-1, b"")],
    ids=["head", "page", "cut"],
)
async def test_a_damaged_file_is_refused_at_once_with_the_way_out(offset: int, bytes_: bytes, tmp_path: Path) -> None:
    file = tmp_path / "corral.db"
    await migrated(file)
    content = bytearray(file.read_bytes())
    if bytes_:
        content[offset : offset + len(bytes_)] = bytes_
    else:
        del content[len(content) // 2 :]
    file.write_bytes(content)

    with pytest.raises(
        DatabaseDamaged, match=r"is damaged \(.*put your last backup.*\.recover.*--new-fleet"
    ) as refused:
        await start(fleet_in(tmp_path, f"sqlite:///{file}"))

    assert not refused.value.retryable
    assert file.read_bytes() == content
    assert sqlite_problems(file, pragma="integrity_check", within=DEEP)


@settings(max_examples=60)
@given(damage=st.binary(min_size=1, max_size=PAGE), where=st.floats(0, 0.999))
def test_no_damage_is_taken_for_another_error(
    damage: bytes, where: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    file = folder / "small.db"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA page_size = 1024")
        connection.execute("CREATE TABLE t (a TEXT PRIMARY KEY)")
        connection.executemany("INSERT INTO t VALUES (?)", [(f"{number:040}",) for number in range(200)])
    connection.close()
    content = bytearray(file.read_bytes())
    at = int(where * len(content))
    content[at : at + len(damage)] = damage
    file.write_bytes(content)

    problems = sqlite_problems(file, pragma="integrity_check", within=DEEP)

    assert problems or file.read_bytes() == content


async def test_a_file_that_another_program_writes_is_not_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "corral.db"
    await migrated(file)
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert sqlite_problems(file, pragma="quick_check", within=DEEP) == []
    other.close()


async def test_a_look_that_takes_too_long_ends(tmp_path: Path) -> None:
    file = tmp_path / "corral.db"
    await migrated(file, rows=20_000)

    with pytest.raises(TimeoutError):
        sqlite_problems(file, pragma="integrity_check", within=timedelta(seconds=-1))
    refuse_damaged(file, within=timedelta(seconds=-1))


async def test_postgresql_reads_all_it_has(database: Database) -> None:
    if database.dialect == "postgresql":
        async with database.begin_patiently() as connection:
            await read_everything(connection)
            await connection.execute(text("CREATE EXTENSION IF NOT EXISTS amcheck"))
            await read_everything(connection)


# Room.


async def test_a_full_disk_has_a_sentence_of_its_own_and_passes(
    database_source: DatabaseSource, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    async with database_source.fresh_database("sqlite") as database:
        config = frontend_config(tmp_path)
        async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
            async with database.write() as connection:
                await connection.execute(text("PRAGMA max_page_count = 1"))  # no more than there are
            answer = None
            for number in range(200):
                answer = await frontend.call("POST", "/api/v1/keys", {"name": f"k{number:0100}", "scopes": ["admin"]})
                if answer.status != 201:
                    break
            assert answer is not None
            assert answer.status == 503, answer
            error = answer.json()["error"]
            assert error["code"] == "database_full"
            assert "no room to write" in error["message"]
            assert "goes on by itself" in error["message"]
            ready = await frontend.call("GET", "/api/v1/ready", key="")
            assert ready.status == 503
            assert b"the database has no room to write" in ready.body

            async with database.write() as connection:
                await connection.execute(text("PRAGMA max_page_count = 1073741823"))
            assert (await frontend.call("POST", "/api/v1/keys", {"name": "late", "scopes": ["admin"]})).status == 201
            assert (await frontend.call("GET", "/api/v1/ready", key="")).status == 200


async def test_nothing_of_a_transaction_without_room_is_written(database_source: DatabaseSource) -> None:
    async with database_source.fresh_database("sqlite") as database:
        async with database.write() as connection:
            await connection.execute(text("PRAGMA max_page_count = 1"))
        rows = [{"name": f"{number:0400}", "made_at": after(0)} for number in range(1000)]

        async def write() -> None:
            async with database.begin() as connection:
                for row in rows:
                    await connection.execute(insert(marks).values(row))

        with pytest.raises(DatabaseFull):
            await write()
        assert not database.has_room
        async with database.look() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM marks"))).scalar_one() == 0
