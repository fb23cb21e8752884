"""Replicas and load jobs.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
LIVING = sa.text("state NOT IN ('failed', 'idle', 'lost')")


def upgrade() -> None:
    op.create_table(
        "replicas",
        _required("id", WORDS),
        _required("node_id", WORDS),
        _required("model", WORDS),
        _required("index", sa.BigInteger()),
        _required("revision", WORDS),
        _required("backend", WORDS),
        _required("created_at", TIME),
        _required("state", WORDS),
        _required("reason", WORDS),
        _required("changed_at", TIME),
        _required("address", WORDS),
        _required("url", WORDS),
        sa.Column("sealed_key", sa.LargeBinary),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
    )
    op.create_index(
        "ix_replicas_place",
        "replicas",
        ["node_id", "model", "index"],
        unique=True,
        postgresql_where=LIVING,
        sqlite_where=LIVING,
    )
    op.create_index("ix_replicas_state_changed_at", "replicas", ["state", "changed_at"])
    op.create_table(
        "load_jobs",
        _required("model", WORDS),
        _required("id", WORDS),
        _required("revision", WORDS),
        _required("state", WORDS),
        sa.Column("node_id", WORDS),
        sa.Column("replica_id", WORDS),
        _required("failures", sa.BigInteger()),
        _required("message", WORDS),
        _required("retry_at", TIME),
        sa.Column("lease_token", WORDS),
        sa.Column("lease_until", TIME),
        _required("created_at", TIME),
        _required("changed_at", TIME),
        sa.PrimaryKeyConstraint("model", name="pk_load_jobs"),
    )


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
