"""The first schema: nodes, secrets, API keys, events, leases, hearing, marks.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    _create_nodes()
    _create_secrets_and_keys()
    _create_events()
    _create_coordination()


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def _create_nodes() -> None:
    op.create_table(
        "nodes",
        _required("id", WORDS),
        _required("created_at", TIME),
        _required("name", WORDS),
        _required("type", WORDS),
        _required("address", WORDS),
        _required("http_address", WORDS),
        sa.Column("stated_interval", sa.BigInteger),
        _required("gpu_compute_capability", WORDS),
        _required("capability", WORDS),
        _required("reported_labels", sa.JSON()),
        _required("reported_max_replicas", sa.BigInteger()),
        _required("reported_vram_budget", WORDS),
        sa.Column("peer", sa.JSON),
        sa.Column("secret_hash", WORDS),
        sa.Column("approved_at", TIME),
        _required("approved_by", WORDS),
        sa.Column("draining_since", TIME),
        _required("draining_by", WORDS),
        sa.Column("deregistered_at", TIME),
        _required("admin_labels", sa.JSON()),
        _required("removed_labels", sa.JSON()),
        sa.Column("admin_max_replicas", sa.BigInteger),
        sa.Column("admin_vram_budget", WORDS),
        _required("updated_at", TIME),
        _required("revision", sa.BigInteger()),
        _required("last_heartbeat", TIME),
        _required("recent_gaps", sa.JSON()),
        _required("incarnation", WORDS),
        _required("total_vram", sa.BigInteger()),
        _required("available_vram", sa.BigInteger()),
        _required("total_ram", sa.BigInteger()),
        _required("available_ram", sa.BigInteger()),
        _required("total_disk", sa.BigInteger()),
        _required("available_disk", sa.BigInteger()),
        _required("gpu_vendor", WORDS),
        _required("problems", sa.JSON()),
        sa.Column("no_responders_at", TIME),
        sa.Column("announced", WORDS),
        sa.Column("announced_at", TIME),
        sa.Column("next_look", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )
    op.create_index("ix_nodes_name_id", "nodes", ["name", "id"])
    op.create_index(
        "ix_nodes_name_without_secret",
        "nodes",
        ["name"],
        unique=True,
        postgresql_where=sa.text("secret_hash IS NULL"),
        sqlite_where=sa.text("secret_hash IS NULL"),
    )
    op.create_index("ix_nodes_secret_hash", "nodes", ["secret_hash"], unique=True)
    op.create_index("ix_nodes_next_look", "nodes", ["next_look"])


def _create_secrets_and_keys() -> None:
    op.create_table(
        "secrets",
        _required("name", WORDS),
        _required("sealed", sa.LargeBinary()),
        _required("created_at", TIME),
        _required("updated_at", TIME),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
    )
    op.create_table(
        "api_keys",
        _required("id", WORDS),
        _required("name", WORDS),
        _required("hash", WORDS),
        _required("scopes", sa.JSON()),
        _required("created_at", TIME),
        _required("created_by", WORDS),
        sa.Column("expires_at", TIME),
        sa.Column("node_id", WORDS),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_hash", "api_keys", ["hash"], unique=True)
    op.create_index("ix_api_keys_name", "api_keys", ["name"])
    op.create_index("ix_api_keys_node_id", "api_keys", ["node_id"])


def _create_events() -> None:
    op.create_table(
        "events",
        _required("sequence", sa.BigInteger()),
        _required("kind", WORDS),
        _required("at", TIME),
        _required("actor", WORDS),
        sa.Column("node_id", WORDS),
        _required("data", sa.JSON()),
        sa.PrimaryKeyConstraint("sequence", name="pk_events"),
    )
    op.create_index("ix_events_node_id_sequence", "events", ["node_id", "sequence"])
    op.create_index("ix_events_at", "events", ["at"])
    counter = op.create_table(
        "event_sequence",
        _required("id", sa.BigInteger()),
        _required("last", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_event_sequence"),
    )
    op.bulk_insert(counter, [{"id": 1, "last": 0}])


def _create_coordination() -> None:
    op.create_table(
        "leases",
        _required("name", WORDS),
        _required("token", WORDS),
        _required("holder", WORDS),
        _required("claimed_at", TIME),
        _required("until", TIME),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "hearing",
        _required("id", sa.BigInteger()),
        _required("since", TIME),
        _required("until", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_hearing"),
    )
    op.create_table(
        "marks",
        _required("name", WORDS),
        _required("made_at", TIME),
        sa.PrimaryKeyConstraint("name", name="pk_marks"),
    )
