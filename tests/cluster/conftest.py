"""Whole fleets: one frontend on SQLite, or two on one PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.cluster import Cluster
from tests.kit.databases import DatabaseSource


@pytest.fixture
async def cluster(tmp_path: Path, database_source: DatabaseSource) -> AsyncIterator[Cluster]:
    """One frontend; workers are added by the test."""
    async with database_source.fresh_url("sqlite") as url, Cluster(tmp_path, database_url=url) as cluster:
        yield cluster


@pytest.fixture
async def postgres_url(database_source: DatabaseSource) -> AsyncIterator[str]:
    """A database whose commits survive the death of the server, which the kit's usual ones need not."""
    async with database_source.fresh_url("postgres") as url:
        name = url.rpartition("/")[2]
        database_source.postgres.run(f'ALTER DATABASE "{name}" SET synchronous_commit TO on')
        yield url


@pytest.fixture
async def pair(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    """Two frontends that work as one."""
    async with Cluster(tmp_path, database_url=postgres_url, frontends=2) as cluster:
        yield cluster
