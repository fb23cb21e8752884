"""Which replicas their node was asked to have the backend for, and has not answered.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("replicas", sa.Column("asked_life", WORDS))
