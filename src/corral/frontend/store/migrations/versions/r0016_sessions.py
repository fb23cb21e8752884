"""Sessions of the web page, and keys that end with them.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", WORDS, nullable=False),
        sa.Column("hash", WORDS, nullable=False),
        sa.Column("key_id", WORDS),
        sa.Column("set_key_hash", WORDS),
        sa.Column("user_id", WORDS),
        sa.Column("user_changed_at", TIME),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("source", WORDS, nullable=False),
        sa.Column("agent", WORDS, nullable=False),
        sa.Column("ended_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_hash", "sessions", ["hash"], unique=True)
    op.add_column("api_keys", sa.Column("session_id", WORDS))
    op.create_index("ix_api_keys_session_id", "api_keys", ["session_id"])
