"""Intents are about a subject of some kind, a backend or a model, and no longer about a backend called `models/…`.
Why they and targets stand as they do is a code with fields, and no longer a text.

All rows are kept; their texts become reasons with the code `other`. Types are spelled out here and not imported from
the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

_PREFIX = len("models/")
_KEPT = (
    "node_id, generation, operation_id, verb, accepted_at, state, before, outstanding, doubt, attempts, misses, "
    "next_try, waits_for_node, changed_at, lease_token, lease_until"
)


def upgrade() -> None:
    json_object = "json_build_object" if op.get_bind().dialect.name == "postgresql" else "json_object"
    other = f"{json_object}('code', 'other', 'fields', {json_object}('text', message))"
    reason = f"CASE WHEN message <> '' THEN {other} END"
    _create_intents()
    op.execute(
        f"INSERT INTO intents (kind, subject, payload, reason, {_KEPT}) SELECT "  # noqa: S608 - constants only
        "CASE WHEN verb = 'remove' THEN 'model' ELSE 'backend' END, "
        f"CASE WHEN verb = 'remove' THEN substr(backend, {_PREFIX + 1}) ELSE backend END, "
        f"artefact, {reason}, {_KEPT} FROM backend_intents"
    )
    op.drop_table("backend_intents")
    for table in ("operations", "operation_targets"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN backend TO subject")
    op.execute("ALTER TABLE operations RENAME COLUMN artefact TO payload")
    op.drop_index("ix_operation_targets_node_id_backend", "operation_targets")
    op.add_column("operation_targets", sa.Column("reason", sa.JSON()))
    op.execute(f"UPDATE operation_targets SET reason = {reason}")  # noqa: S608 - constants only
    op.drop_column("operation_targets", "message")
    op.execute(
        f"UPDATE operation_targets SET subject = substr(subject, {_PREFIX + 1}) "  # noqa: S608 - constants only
        "WHERE operation_id IN (SELECT id FROM operations WHERE verb = 'remove')"
    )


def _create_intents() -> None:
    op.create_table(
        "intents",
        _required("node_id", WORDS),
        _required("kind", WORDS),
        _required("subject", WORDS),
        _required("generation", sa.BigInteger()),
        _required("operation_id", WORDS),
        _required("verb", WORDS),
        _required("payload", sa.JSON()),
        _required("accepted_at", TIME),
        _required("state", WORDS),
        sa.Column("before", sa.JSON()),
        sa.Column("outstanding", sa.JSON()),
        sa.Column("doubt", sa.JSON()),
        _required("attempts", sa.BigInteger()),
        _required("misses", sa.BigInteger()),
        _required("next_try", TIME),
        _required("waits_for_node", sa.BigInteger()),
        sa.Column("reason", sa.JSON()),
        _required("changed_at", TIME),
        sa.Column("lease_token", WORDS),
        sa.Column("lease_until", TIME),
        sa.PrimaryKeyConstraint("node_id", "kind", "subject", name="pk_intents"),
    )
    op.create_index("ix_intents_state_next_try", "intents", ["state", "next_try"])
    op.create_index("ix_intents_operation_id", "intents", ["operation_id"])
    op.create_index("ix_intents_lease_token", "intents", ["lease_token"])


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
