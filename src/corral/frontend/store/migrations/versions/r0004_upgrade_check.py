"""What galleries and registries offer of the backends that the fleet has.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "upgrade_check",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("checked_at", TIME, nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_upgrade_check"),
    )
