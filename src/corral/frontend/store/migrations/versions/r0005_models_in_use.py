"""Replicas that go with their backend and are to be loaded again; models that were removed.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("load_jobs", sa.Column("preferred_node_id", WORDS))
    op.create_table(
        "restorations",
        _required("replica_id", WORDS),
        _required("node_id", WORDS),
        _required("model", WORDS),
        _required("index", sa.BigInteger()),
        _required("backend", WORDS),
        _required("replicas", sa.BigInteger()),
        _required("noted_at", TIME),
        sa.PrimaryKeyConstraint("replica_id", name="pk_restorations"),
    )
    op.create_table(
        "removed_models",
        _required("name", WORDS),
        _required("removed_at", TIME),
        _required("operation_id", WORDS),
        sa.PrimaryKeyConstraint("name", name="pk_removed_models"),
    )


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
