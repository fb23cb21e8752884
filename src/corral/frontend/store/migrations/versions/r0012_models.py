"""Models are rows, with the history of their changes, and no longer whatever each frontend finds in its directory.

Files of models are taken over when a frontend starts, since only it can read them. Types are spelled out here and not
imported from the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("removed_models", sa.Column("cleared", sa.JSON()))
    op.create_table(
        "models",
        _required("name", WORDS),
        _required("number", sa.BigInteger()),
        _required("revision", WORDS),
        _required("text", WORDS),
        _required("source", WORDS),
        sa.Column("origin", sa.JSON()),
        _required("files", sa.JSON()),
        _required("is_disabled", sa.BigInteger()),
        _required("is_pinned", sa.BigInteger()),
        _required("changed_at", TIME),
        _required("changed_by", WORDS),
        sa.PrimaryKeyConstraint("name", name="pk_models"),
    )
    op.create_table(
        "model_revisions",
        _required("name", WORDS),
        _required("number", sa.BigInteger()),
        _required("revision", WORDS),
        _required("text", WORDS),
        sa.Column("origin", sa.JSON()),
        _required("files", sa.JSON()),
        _required("change", WORDS),
        _required("changed_at", TIME),
        _required("changed_by", WORDS),
        sa.PrimaryKeyConstraint("name", "number", name="pk_model_revisions"),
    )
    op.create_table(
        "model_stores",
        _required("id", WORDS),
        _required("name", WORDS),
        _required("frontend_id", WORDS),
        _required("total_bytes", sa.BigInteger()),
        _required("free_bytes", sa.BigInteger()),
        _required("seen_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_model_stores"),
    )
    op.create_table(
        "model_imports",
        _required("store_id", WORDS),
        _required("path", WORDS),
        _required("digest", WORDS),
        _required("names", sa.JSON()),
        sa.PrimaryKeyConstraint("store_id", "path", name="pk_model_imports"),
    )


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
