"""Alembic's entry point: it runs inside the transaction that `upgrade` opened."""

from alembic import context

import corral.frontend.store.access_schema  # noqa: F401 - for its tables
from corral.frontend.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
