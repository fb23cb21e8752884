"""Fixtures for all tests."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from corral.bus.port import Bus
from corral.state.db import Database
from corral.testing.bus import MemoryBus, MemoryServer
from corral.testing.clock import ManualClock
from corral.testing.databases import DatabaseSource

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def database_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseSource]:
    """Where databases come from. PostgreSQL starts when the first test needs it."""
    with DatabaseSource(tmp_path_factory.mktemp("databases")) as source:
        yield source


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, database_source: DatabaseSource) -> AsyncIterator[Database]:
    """A migrated database without rows, on SQLite and on PostgreSQL; choose one by indirect parametrisation."""
    async with database_source.fresh_database(request.param) as database:
        yield database


@pytest.fixture(params=DATABASES)
async def database_url(request: pytest.FixtureRequest, database_source: DatabaseSource) -> AsyncIterator[str]:
    """The same, closed: for programs that open it themselves."""
    async with database_source.fresh_url(request.param) as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """A bus without a network, which passes the conformance suite of the real one."""
    async with MemoryBus(MemoryServer()) as opened:
        yield opened


@pytest.fixture
def golden() -> Path:
    """Messages recorded from LocalAI's binaries, beside the checkout; CI always has them."""
    folder = Path(__file__).parents[2] / "shared" / "golden"
    if not folder.is_dir() and not os.environ.get("CI"):
        pytest.skip("the recordings are not beside this checkout")
    return folder
