"""Why a load failed, in a word for every client, and the engine's last lines for administrators.

Jobs that are there already have neither: both come with their next attempt. Types are spelled out here and not imported
from the code, which may change after this has run somewhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("load_jobs", sa.Column("reason", WORDS))
    op.add_column("load_jobs", sa.Column("engine_lines", sa.JSON(none_as_null=True)))
