"""The secrets key is changed while frontends run, on both databases: who can read what at every step."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import LargeBinary, insert, select

from corral.base.errors import PathNotUsable, SecretsKeyMismatch
from corral.base.ids import new_frontend_id
from corral.frontend.access.sealing import RotationOutcome, SealingKeys, change_key
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.store.db import Database
from corral.frontend.store.rotation import SEALED_COLUMNS, KeyRotation
from corral.frontend.store.schema import external_engines, metadata
from corral.frontend.store.schema import secrets as secrets_table
from corral.frontend.store.secrets import KEY_BEFORE, NEXT_KEY, Secrets, SecretsKey, engine_key_name, store_sealed
from corral.processes.maintenance import key_for_people
from tests.kit.clock import HurriedClock, ManualClock

OLD, NEW = SecretsKey.generate(), SecretsKey.generate()
STORED = {f"node/{number}": f"secret {number}" for number in range(450)}


class FrontendInRotation:
    """A frontend as far as it has to do with the secrets key."""

    def __init__(self, database: Database, clock: ManualClock, secrets: Secrets, *, file: Path | None) -> None:
        self.secrets = secrets
        self.rotation = KeyRotation(database, secrets)
        self.keys = SealingKeys(secrets, self.rotation, clock, id=new_frontend_id(), file=file)

    @classmethod
    async def start(
        cls, database: Database, clock: ManualClock, *, key: SecretsKey = OLD, file: Path | None = None
    ) -> "FrontendInRotation":
        return cls(database, clock, await Secrets.open(database, key, at=clock.now()), file=file)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def stored(database: Database, clock: ManualClock) -> Secrets:
    """Secrets of a fleet, sealed with the old key."""
    secrets = await Secrets.open(database, OLD, at=clock.now())
    rows = [
        {"name": name, "sealed": secrets.seal(name, value, at=clock.now()).sealed, "created_at": clock.now()}
        for name, value in STORED.items()
    ]
    async with database.begin() as connection:
        await connection.execute(insert(secrets_table), [{**row, "updated_at": clock.now()} for row in rows])
    return secrets


async def change(frontend: FrontendInRotation, clock: ManualClock, *, key: SecretsKey = NEW) -> RotationOutcome:
    """The whole change, as the command does it beside this frontend."""
    work = asyncio.ensure_future(change_key(frontend.rotation, clock, frontend.keys, following=key, by="test"))
    await clock.until_sleeping(1)
    await clock.advance(timedelta(seconds=10))
    return await work


async def reads_all(secrets: Secrets) -> bool:
    return await secrets.get("node/7") == STORED["node/7"] and await secrets.unreadable() == []


def test_every_sealed_column_is_sealed_anew() -> None:
    """What is forgotten would be lost with the key before."""
    kinds = {column for table in metadata.tables.values() for column in table.c if isinstance(column.type, LargeBinary)}
    assert {each.sealed for each in SEALED_COLUMNS} == kinds


async def test_everything_opens_with_the_new_key_and_nothing_with_the_old_one(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    file = tmp_path / "data" / "secrets.key"
    OLD.keep(file)
    frontend = await FrontendInRotation.start(database, clock, file=file)
    outcome = await change(frontend, clock)

    assert (outcome.sealed, list(outcome.behind)) == (len(STORED) + 1, [])
    assert await reads_all(await Secrets.open(database, NEW, at=clock.now()))
    assert await reads_all(frontend.secrets)
    with pytest.raises(SecretsKeyMismatch):
        await Secrets.open(database, OLD, at=clock.now())
    assert SecretsKey.load_or_create(file) == NEW
    assert file.stat().st_mode & 0o777 == 0o600
    kinds = [entry.event.kind for entry in await Events(database).after(0, limit=9)]
    assert kinds == [EventKind.SECRETS_KEY_CHANGING, EventKind.SECRETS_KEY_CHANGED]


async def test_values_outside_the_table_of_secrets_are_sealed_anew_too(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    name = engine_key_name("e1")
    texts = dict.fromkeys(("model", "name", "url", "remote_model", "ca", "health_path", "created_by", "changed_by"), "")
    numbers = dict.fromkeys(("max_concurrent", "weight", "fallback_order", "is_enabled"), 1)
    row: dict[str, Any] = {**texts, **numbers, "uses": [], "created_at": clock.now(), "changed_at": clock.now()}
    row |= {"id": "e1", "sealed_key": stored.seal(name, "key of an engine", at=clock.now()).sealed}
    async with database.begin() as connection:
        await connection.execute(insert(external_engines).values(row))
    await change(await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key"), clock)

    async with database.read() as connection:
        sealed = (await connection.execute(select(external_engines.c.sealed_key))).scalar_one()
    assert (await Secrets.open(database, NEW, at=clock.now())).unseal(name, sealed) == "key of an engine"


async def test_other_frontends_read_and_write_all_the_time(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("one.key", "two.key")]
    one, two = [await FrontendInRotation.start(database, clock, file=file) for file in files]
    work = asyncio.ensure_future(change_key(one.rotation, clock, one.keys, following=NEW, by="test"))
    await clock.until_sleeping(1)
    await two.keys.look()
    await two.secrets.replace("node/written", "meanwhile", at=clock.now())
    assert await one.secrets.get("node/written") == "meanwhile"
    await clock.advance(timedelta(seconds=10))
    outcome = await work

    assert list(outcome.behind) == []
    assert await reads_all(two.secrets), "before it has seen that the change is over"
    await two.keys.look()
    assert await reads_all(two.secrets)
    assert [SecretsKey.load_or_create(file) for file in files] == [NEW, NEW]
    forged = Secrets(database, OLD).seal("node/forged", "x", at=clock.now())
    with pytest.raises(SecretsKeyMismatch):
        two.secrets.unseal(forged.name, forged.sealed)


async def test_a_frontend_with_the_key_in_its_settings_holds_up_the_end(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    one = await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key")
    set_by_person = await FrontendInRotation.start(database, clock)
    work = asyncio.ensure_future(change_key(one.rotation, clock, one.keys, following=NEW, by="test"))
    await clock.until_sleeping(1)
    await set_by_person.keys.look()
    await clock.advance(timedelta(seconds=10))
    assert len((await work).behind) == 1

    again = await FrontendInRotation.start(database, clock)
    assert await reads_all(again.secrets), "it still starts with the key before"
    given = await FrontendInRotation.start(database, clock, key=NEW)
    await clock.advance(timedelta(minutes=2))
    await given.keys.look()
    outcome = await change(one, clock, key=SecretsKey.generate())

    assert (outcome.sealed, list(outcome.behind)) == (0, [])
    assert await reads_all(await Secrets.open(database, NEW, at=clock.now()))


@pytest.mark.parametrize("survived", [0, 1, 2])
@pytest.mark.parametrize("key", [OLD, NEW], ids=["with the old key", "with the new key"])
async def test_a_change_that_was_broken_off_goes_on(
    database: Database,
    clock: ManualClock,
    stored: Secrets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    survived: int,
    key: SecretsKey,
) -> None:
    """It dies after some transactions of the sealing; whoever starts with either key reads everything."""
    frontend = await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key")
    replace, done = KeyRotation._replace, 0

    async def dying(self: KeyRotation, *arguments: Any) -> None:
        nonlocal done
        if done == survived:
            raise asyncio.CancelledError
        done += 1
        await replace(self, *arguments)

    monkeypatch.setattr(KeyRotation, "_replace", dying)
    with pytest.raises(asyncio.CancelledError):
        await change(frontend, clock)
    monkeypatch.setattr(KeyRotation, "_replace", replace)
    after_death = await FrontendInRotation.start(database, clock, key=key, file=tmp_path / "secrets.key")
    assert await reads_all(after_death.secrets)
    outcome = await change(after_death, clock, key=SecretsKey.generate())

    assert outcome.sealed == len(STORED) + 1 - min(200 * survived, len(STORED) + 1)
    assert await reads_all(await Secrets.open(database, NEW, at=clock.now()))


class DyingWrites:
    """Ends a change before one of its writes, be it to the database or to a file, as if it was killed there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        """How many writes are left until then; None: no end."""
        for owner, name in ((Database, "begin"), (Database, "write"), (SecretsKey, "keep")):
            monkeypatch.setattr(owner, name, self._dying(getattr(owner, name)))

    def _dying(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if self.left == 0:
                raise asyncio.CancelledError
            if self.left is not None:
                self.left -= 1
            return write(*arguments)

        return counted


class AttendedClock(HurriedClock):
    """While one process waits, another frontend hears of what it did."""

    meanwhile: Callable[[], Awaitable[None]]

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self.meanwhile()


async def test_a_change_that_is_killed_before_any_of_its_writes_loses_nothing(
    database: Database, stored: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each death both frontends read everything, so do those that start with their files, and the change ends
    when it is begun again."""
    clock, writes, files = AttendedClock(), DyingWrites(monkeypatch), [tmp_path / "one.key", tmp_path / "two.key"]
    for file in files:
        OLD.keep(file)

    async def started(file: Path) -> FrontendInRotation:
        key = SecretsKey.load_or_create(file)
        return await FrontendInRotation.start(database, clock, key=key, file=file)

    async def is_killed(after: int | None) -> bool:
        one, two = [await started(file) for file in files]
        await two.keys.look()
        clock.meanwhile, writes.left = two.keys.look, after
        try:
            outcome = await change_key(one.rotation, clock, one.keys, following=SecretsKey.generate(), by="test")
        except asyncio.CancelledError:
            return True
        else:
            assert list(outcome.behind) == []
            return False
        finally:
            writes.left = None
            readers = [two, *[await started(file) for file in files]]
            assert [await reader.rotation.unreadable() for reader in readers] == [[], [], []], after
            assert {await reader.secrets.get("node/7") for reader in readers} == {STORED["node/7"]}, after
            await clock.advance(timedelta(minutes=2))  # what ended without a word is forgotten

    survived = 0
    while await is_killed(survived):
        assert not await is_killed(None)
        survived += 1
    assert survived > 6


async def test_a_change_does_not_end_where_its_own_key_was_not_kept(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know the next key then: also when the sealing took so long that this process seems to be gone."""
    (tmp_path / "no directory").touch()
    frontend = await FrontendInRotation.start(database, clock, file=tmp_path / "no directory" / "secrets.key")
    reseal = KeyRotation.reseal

    async def slow(self: KeyRotation, **options: Any) -> Any:
        clock.jump(timedelta(minutes=2))
        return await reseal(self, **options)

    monkeypatch.setattr(KeyRotation, "reseal", slow)
    assert len((await change(frontend, clock)).behind) == 1
    assert await reads_all(await Secrets.open(database, OLD, at=clock.now()))


async def test_the_key_of_a_change_that_is_over_is_not_the_next_one(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    """The command was killed before it removed the file: a change to that key would change nothing, and say it did."""
    file = tmp_path / "secrets.key.next"
    following = key_for_people(file, stored)
    assert key_for_people(file, stored) == following, "it is told again until the change is over"
    frontend = await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key")
    await frontend.rotation.begin(following, at=clock.now(), also=nothing_more)
    await stored.look_for_change()
    assert key_for_people(file, stored) == following, "and while it is under way"
    await change(frontend, clock)

    changed = await Secrets.open(database, following, at=clock.now())
    assert key_for_people(file, changed) != following


async def test_no_change_ends_before_its_key_is_on_the_disk(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was renamed into place has its old content again after a loss of power, and the database has not."""
    file = tmp_path / "secrets.key"
    OLD.keep(file)
    frontend = await FrontendInRotation.start(database, clock, file=file)

    def failing(path: Path) -> None:
        raise PathNotUsable(f"cannot write the directory {path} to the disk")

    monkeypatch.setattr("corral.frontend.store.secrets.sync_directory", failing)
    assert len((await change(frontend, clock)).behind) == 1
    assert await reads_all(await Secrets.open(database, OLD, at=clock.now()))


async def test_what_somebody_changed_meanwhile_is_not_overwritten(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    frontend = await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key")
    (column,) = [each for each in SEALED_COLUMNS if each.sealed.table is secrets_table]
    before = stored.seal("node/1", "read before it was changed", at=clock.now()).sealed
    await stored.replace("node/1", "newer", at=clock.now())
    await frontend.rotation._replace(column, [("node/1", before, b"older")])
    assert await stored.get("node/1") == "newer"


async def test_both_keys_are_stored_only_meanwhile_and_sealed(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    frontend = await FrontendInRotation.start(database, clock)
    await change(frontend, clock)
    bridge = [NEXT_KEY, KEY_BEFORE]
    async with database.read() as connection:
        rows = await connection.execute(select(secrets_table.c.sealed).where(secrets_table.c.name.in_(bridge)))
        sealed = [bytes(each) for each in rows.scalars()]
    assert len(sealed) == 2, "the key of this frontend came from a setting"
    texts = [key.to_text().encode() for key in (OLD, NEW)] + [OLD.raw, NEW.raw]
    assert not any(text in each for each in sealed for text in texts)
    stranger = Secrets(database, SecretsKey.generate())
    with pytest.raises(SecretsKeyMismatch):
        await stranger.look_for_change()


async def test_a_frontend_that_missed_the_change_ends_before_it_destroys_anything(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    """It was cut off for longer than the change waits for it."""
    missed = await FrontendInRotation.start(database, clock, file=tmp_path / "missed.key")
    await missed.keys.look()
    await clock.advance(timedelta(minutes=2))
    await change(await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key"), clock)

    with pytest.raises(SecretsKeyMismatch, match="was changed") as failed:
        await missed.keys.look()
    assert not failed.value.retryable, "its loop ends control"


async def test_a_frontend_that_missed_a_change_does_not_take_part_in_the_next_one(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    missed = await FrontendInRotation.start(database, clock, file=tmp_path / "missed.key")
    frontend = await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key")
    await change(frontend, clock)
    await frontend.rotation.begin(SecretsKey.generate(), at=clock.now(), also=nothing_more)
    with pytest.raises(SecretsKeyMismatch):
        await missed.keys.look()


async def nothing_more(_: object) -> None: ...


async def test_no_change_ends_while_a_frontend_runs_that_has_not_heard_of_it(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    """Twice: that it took part in the change before says nothing of this one."""
    one, two = [await FrontendInRotation.start(database, clock, file=tmp_path / name) for name in ("one", "two")]
    await two.keys.look()
    for following in (NEW, SecretsKey.generate()):
        await one.rotation.begin(following, at=clock.now(), also=nothing_more)
        await one.keys.look()
        assert not await one.rotation.is_known(now=clock.now())
        assert not await one.rotation.finish(now=clock.now(), also=nothing_more)
        await two.keys.look()
        assert await one.rotation.is_known(now=clock.now())
        await one.rotation.reseal()
        assert await one.rotation.finish(now=clock.now(), also=nothing_more)


async def test_the_change_waits_for_a_frontend_that_hears_late(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    one, late = [await FrontendInRotation.start(database, clock, file=tmp_path / name) for name in ("one", "late")]
    await late.keys.look()
    work = asyncio.ensure_future(change_key(one.rotation, clock, one.keys, following=NEW, by="test"))
    await clock.until_sleeping(1)
    await clock.advance(timedelta(seconds=5))
    await clock.until_sleeping(1)
    await late.secrets.replace("node/written", "with the key before", at=clock.now())
    await late.keys.look()
    await clock.advance(timedelta(seconds=1))

    assert list((await work).behind) == []
    assert await (await Secrets.open(database, NEW, at=clock.now())).get("node/written") == "with the key before"


async def test_a_frontend_that_starts_at_the_end_of_a_change_keeps_the_new_key(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    """It saw the bridge when it opened its secrets, and no longer when it looked."""
    file = tmp_path / "late.key"
    OLD.keep(file)
    one = await FrontendInRotation.start(database, clock, file=tmp_path / "one.key")
    await one.rotation.begin(NEW, at=clock.now(), also=nothing_more)
    late = await FrontendInRotation.start(database, clock, file=file)
    await change(one, clock)
    await late.keys.look()
    assert SecretsKey.load_or_create(file) == NEW


async def test_who_stops_holds_up_nothing(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path
) -> None:
    one = await FrontendInRotation.start(database, clock, file=tmp_path / "one.key")
    stopped = await FrontendInRotation.start(database, clock)
    await stopped.keys.look()
    await stopped.keys.leave()
    assert list((await change(one, clock)).behind) == []


@pytest.mark.parametrize("discard", [False, True])
async def test_what_neither_key_opens_is_named_and_holds_up_nothing(
    database: Database, clock: ManualClock, stored: Secrets, tmp_path: Path, discard: bool
) -> None:
    lost = Secrets(database, SecretsKey.generate()).seal("node/7", "sealed with a lost key", at=clock.now())
    async with database.begin() as connection:
        await store_sealed(connection, lost)
    frontend = await FrontendInRotation.start(database, clock, file=tmp_path / "secrets.key")
    work = asyncio.ensure_future(
        change_key(frontend.rotation, clock, frontend.keys, following=NEW, by="test", discard=discard)
    )
    await clock.until_sleeping(1)
    await clock.advance(timedelta(seconds=10))
    outcome = await work

    assert (list(outcome.unreadable), list(outcome.behind)) == (["node/7"], [])
    assert outcome.sealed == len(STORED), "all others, and the check"
    now = await Secrets.open(database, NEW, at=clock.now())
    assert await now.get("node/8") == STORED["node/8"]
    assert await now.unreadable() == ([] if discard else ["node/7"])
