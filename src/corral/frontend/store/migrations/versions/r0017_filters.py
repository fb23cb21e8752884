"""Indexes by which people look for operations and events, and what each event is about.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
AT_ONCE = 1000
NAMING = ("model", "operation", "backend", "name", "id", "replica", "gallery", "for")
LISTING = ("added", "changed", "removed")
LONGEST = 200
MOST = 100
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
events = sa.table("events", sa.column("sequence", sa.BigInteger()), sa.column("data", sa.JSON()))
event_subjects = sa.table("event_subjects", sa.column("subject", WORDS), sa.column("sequence", sa.BigInteger()))


def upgrade() -> None:
    op.create_index("ix_events_kind_sequence", "events", ["kind", "sequence"])
    op.create_index("ix_events_actor_sequence", "events", ["actor", "sequence"])
    op.create_index("ix_operations_subject_accepted_at", "operations", ["subject", "accepted_at"])
    op.create_index("ix_operations_asked_by_accepted_at", "operations", ["asked_by", "accepted_at"])
    op.create_index("ix_operation_targets_node_id", "operation_targets", ["node_id"])
    op.create_table(
        "event_subjects",
        sa.Column("subject", WORDS, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.PrimaryKeyConstraint("subject", "sequence", name="pk_event_subjects"),
    )
    op.create_index("ix_event_subjects_sequence", "event_subjects", ["sequence"])
    _fill(op.get_bind())


def _fill(connection: sa.Connection) -> None:
    """What the events are about that are there already. Not by SQL: their data may have what no text function takes."""
    last = -1
    while True:
        batch = sa.select(events).where(events.c.sequence > last).order_by(events.c.sequence).limit(AT_ONCE)
        rows = connection.execute(batch).all()
        if not rows:
            return
        last = rows[-1].sequence
        new_rows = [{"subject": text, "sequence": row.sequence} for row in rows for text in _subjects(row.data)]
        if new_rows:
            connection.execute(sa.insert(event_subjects), new_rows)


def _subjects(data: object) -> list[str]:
    if not isinstance(data, Mapping):
        return []
    texts = dict.fromkeys(text for text in _texts(data) if isinstance(text, str) and text)
    shortened = dict.fromkeys(UNSTORABLE.sub("\ufffd", text)[:LONGEST] for text in texts)
    return list(shortened)[:MOST]


def _texts(data: Mapping[str, Any]) -> Iterator[Any]:
    yield from (data.get(name) for name in NAMING)
    for name in LISTING:
        listed = data.get(name)
        yield from listed if isinstance(listed, list) else []
