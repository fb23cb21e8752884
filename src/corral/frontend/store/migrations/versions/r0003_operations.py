"""Operations, their targets, intents, inventories and fleet rules.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    _operations()
    _intents()
    op.create_table(
        "backend_inventory",
        _required("node_id", WORDS),
        _required("entries", sa.JSON()),
        _required("seen_at", TIME),
        sa.PrimaryKeyConstraint("node_id", name="pk_backend_inventory"),
    )
    op.create_table(
        "fleet_rules",
        _required("id", WORDS),
        _required("artefact", sa.JSON()),
        _required("selector", sa.JSON()),
        _required("made_by", WORDS),
        _required("made_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_rules"),
    )


def _operations() -> None:
    op.create_table(
        "operations",
        _required("id", WORDS),
        _required("verb", WORDS),
        _required("backend", WORDS),
        _required("artefact", sa.JSON()),
        _required("asked_by", WORDS),
        _required("accepted_at", TIME),
        sa.Column("node_id", WORDS),
        sa.Column("idempotency_key", WORDS),
        sa.Column("dismissed_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
    )
    op.create_index("ix_operations_idempotency_key", "operations", ["idempotency_key"], unique=True)
    op.create_index("ix_operations_accepted_at_id", "operations", ["accepted_at", "id"])
    op.create_table(
        "operation_targets",
        _required("operation_id", WORDS),
        _required("node_id", WORDS),
        _required("node_name", WORDS),
        _required("backend", WORDS),
        _required("status", WORDS),
        _required("waits_for_node", sa.BigInteger()),
        _required("message", WORDS),
        _required("attempts", sa.BigInteger()),
        _required("changed_at", TIME),
        sa.PrimaryKeyConstraint("operation_id", "node_id", name="pk_operation_targets"),
    )
    op.create_index("ix_operation_targets_node_id_backend", "operation_targets", ["node_id", "backend"])
    op.create_index("ix_operation_targets_status", "operation_targets", ["status"])


def _intents() -> None:
    op.create_table(
        "backend_intents",
        _required("node_id", WORDS),
        _required("backend", WORDS),
        _required("generation", sa.BigInteger()),
        _required("operation_id", WORDS),
        _required("verb", WORDS),
        _required("artefact", sa.JSON()),
        _required("accepted_at", TIME),
        _required("state", WORDS),
        sa.Column("before", sa.JSON()),
        sa.Column("outstanding", sa.JSON()),
        sa.Column("doubt", sa.JSON()),
        _required("attempts", sa.BigInteger()),
        _required("misses", sa.BigInteger()),
        _required("next_try", TIME),
        _required("waits_for_node", sa.BigInteger()),
        _required("message", WORDS),
        _required("changed_at", TIME),
        sa.Column("lease_token", WORDS),
        sa.Column("lease_until", TIME),
        sa.PrimaryKeyConstraint("node_id", "backend", name="pk_backend_intents"),
    )
    op.create_index("ix_backend_intents_state_next_try", "backend_intents", ["state", "next_try"])
    op.create_index("ix_backend_intents_operation_id", "backend_intents", ["operation_id"])
    op.create_index("ix_backend_intents_lease_token", "backend_intents", ["lease_token"])


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
