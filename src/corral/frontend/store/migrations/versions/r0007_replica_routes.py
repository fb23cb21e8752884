"""Which routes of inference a replica answers. Replicas that are there already have not said.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("replicas", sa.Column("routes", sa.JSON(none_as_null=True)))
