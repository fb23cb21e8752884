"""Galleries of models that people added while the fleet runs, beside those of the settings."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "model_galleries",
        sa.Column("name", WORDS, nullable=False),
        sa.Column("url", WORDS, nullable=False),
        sa.Column("mirrors", sa.JSON(), nullable=False),
        sa.Column("added_at", TIME, nullable=False),
        sa.Column("added_by", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_model_galleries"),
    )
