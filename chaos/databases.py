"""A PostgreSQL database whose server may be killed in a round, and which runs again afterwards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.kit.databases import DatabaseSource
from tests.kit.postgres import PostgresServer


@asynccontextmanager
async def mortal_postgres(databases: DatabaseSource) -> AsyncIterator[tuple[str, PostgresServer]]:
    """Its URL, and the server. What was committed survives the server's death, as in production."""
    async with databases.fresh_url("postgres") as url:
        postgres = databases.postgres
        # The kit's databases may forget the last commits then, for speed.
        postgres.run(f'ALTER DATABASE "{url.rpartition("/")[2]}" SET synchronous_commit TO on')
        try:
            yield url, postgres
        finally:
            if not postgres.processes:
                postgres.start()
