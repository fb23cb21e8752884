"""Alembic's entry point: it runs inside the transaction that `upgrade` opened."""

from alembic import context

from corral.frontend.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
