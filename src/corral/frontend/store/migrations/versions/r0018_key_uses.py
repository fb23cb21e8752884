"""When each key was used last.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("used_at", TIME))
