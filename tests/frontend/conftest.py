"""Fixtures that the rooms of the frontend share."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import AsyncAdaptedQueuePool, event

from corral.bus.port import Bus
from corral.frontend.access.store.keys import Keys
from corral.frontend.nodes.store.liveness import HearingPeriods
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.store.intents import cancel_intents_of
from corral.frontend.record.store import Events
from corral.frontend.serving.store.replicas import lose_replicas_of
from corral.frontend.store.db import Database
from corral.frontend.store.leases import Leases
from corral.frontend.store.secrets import SecretsKey
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend, frontend_config, open_frontend
from tests.kit.galleries import PublishedGallery, open_published_gallery
from tests.kit.held_hash import HeldHash
from tests.kit.world import World, open_world


@pytest.fixture
async def frontend(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Frontend]:
    config = frontend_config(tmp_path)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        yield opened


@pytest.fixture
async def gallery(tmp_path: Path) -> AsyncIterator[PublishedGallery]:
    async with open_published_gallery(tmp_path) as gallery:
        yield gallery


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path) as world:
        yield world


StatementCounter = Callable[[], AbstractContextManager[list[str]]]


@pytest.fixture
def nodes(database: Database) -> Nodes:
    return Nodes(database, on_removal=(lose_replicas_of, cancel_intents_of), on_suspicion=(lose_replicas_of,))


@pytest.fixture
def events(database: Database) -> Events:
    return Events(database)


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


@pytest.fixture
def leases(database: Database) -> Leases:
    return Leases(database)


@pytest.fixture
def hearing(database: Database) -> HearingPeriods:
    return HearingPeriods(database)


@pytest.fixture
def statements(database: Database) -> StatementCounter:
    """`with statements() as seen:` collects what is sent to the database, without the BEGINs."""

    @contextmanager
    def record() -> Iterator[list[str]]:
        seen: list[str] = []

        def note(*arguments: object) -> None:
            statement = str(arguments[2])
            if not statement.startswith("BEGIN"):
                seen.append(statement)

        for engine in database.engines:
            event.listen(engine.sync_engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            for engine in database.engines:
                event.remove(engine.sync_engine, "before_cursor_execute", note)

    return record


@pytest.fixture(autouse=True)
def no_connection_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checked before the database is closed."""
    if "database" not in request.fixturenames:
        yield
        return
    database: Database = request.getfixturevalue("database")
    yield
    for engine in database.engines:
        assert isinstance(engine.pool, AsyncAdaptedQueuePool)
        assert engine.pool.checkedout() == 0


@pytest.fixture
def held_hash(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldHash]:
    held = HeldHash(monkeypatch)
    yield held
    held.end()
