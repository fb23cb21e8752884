"""What the suite over both databases shares."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from sqlalchemy import AsyncAdaptedQueuePool, event

from corral.state.db import Database
from corral.state.events import Events
from corral.state.hearing import HearingPeriods
from corral.state.intents import cancel_intents_of
from corral.state.keys import Keys
from corral.state.leases import Leases
from corral.state.nodes import Nodes
from corral.state.replicas import lose_replicas_of

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
