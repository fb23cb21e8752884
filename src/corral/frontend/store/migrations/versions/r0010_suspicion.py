"""Where a node registered from, and why only a person may approve it. Of nodes that are there already both are unknown.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("nodes", sa.Column("registered_from", WORDS))
    op.add_column("nodes", sa.Column("suspicion", WORDS))
