"""A second port of a replica, for requests that need care. Replicas that are there already have none.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("replicas", sa.Column("front_port", sa.BigInteger()))
