"""Several loads of a model at a time, what replicas reserve, GPUs one by one, rules of scheduling, engines of others.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
KEEP = """CREATE TABLE load_jobs_before AS SELECT model, id, revision, state, node_id, replica_id, failures, message,
retry_at, lease_token, lease_until, created_at, changed_at, preferred_node_id, reason, engine_lines FROM load_jobs"""
BRING_BACK = """INSERT INTO load_jobs (model, id, revision, state, node_id, replica_id, failures, message, retry_at,
lease_token, lease_until, created_at, changed_at, preferred_node_id, reason, engine_lines, ordinal, why, steps)
SELECT model, id, revision, state, node_id, replica_id, failures, message, retry_at, lease_token, lease_until,
created_at, changed_at, preferred_node_id, reason, engine_lines, 0, 'asked', '[]' FROM load_jobs_before"""


def upgrade() -> None:
    _renew_load_jobs()
    for name in ("vram", "ram"):
        op.add_column("replicas", sa.Column(name, sa.BigInteger()))
    op.add_column("replicas", sa.Column("cards", sa.JSON()))
    op.add_column("replicas", sa.Column("why", WORDS))
    op.add_column("replicas", sa.Column("models_path", WORDS))
    for name in ("cards", "cards_out"):
        op.add_column("nodes", sa.Column(name, sa.JSON()))
    _add_scheduling()
    _add_external_engines()
    op.create_table(
        "staged_models",
        _required("node_id", WORDS),
        _required("model", WORDS),
        _required("revision", WORDS),
        _required("bytes", sa.BigInteger()),
        _required("files", sa.JSON()),
        _required("staged_at", TIME),
        _required("used_at", TIME),
        sa.PrimaryKeyConstraint("node_id", "model", name="pk_staged_models"),
    )


def _renew_load_jobs() -> None:
    """Have jobs by their ids, since a model may have several; those that are there stay."""
    op.execute(KEEP)
    op.drop_table("load_jobs")
    op.create_table(
        "load_jobs",
        _required("id", WORDS),
        _required("model", WORDS),
        _required("ordinal", sa.BigInteger()),
        _required("revision", WORDS),
        _required("why", WORDS),
        _required("state", WORDS),
        _required("steps", sa.JSON()),
        sa.Column("node_id", WORDS),
        sa.Column("replica_id", WORDS),
        sa.Column("preferred_node_id", WORDS),
        _required("failures", sa.BigInteger()),
        _required("message", WORDS),
        sa.Column("reason", WORDS),
        sa.Column("engine_lines", sa.JSON()),
        _required("retry_at", TIME),
        sa.Column("lease_token", WORDS),
        sa.Column("lease_until", TIME),
        _required("created_at", TIME),
        _required("changed_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_load_jobs"),
    )
    op.create_index("ix_load_jobs_place", "load_jobs", ["model", "ordinal"], unique=True)
    op.execute(BRING_BACK)
    op.drop_table("load_jobs_before")


def _add_scheduling() -> None:
    op.create_table(
        "scheduling",
        _required("model", WORDS),
        _required("id", WORDS),
        _required("node_selector", sa.JSON()),
        _required("pinned_nodes", sa.JSON()),
        _required("min_replicas", sa.BigInteger()),
        _required("max_replicas", sa.BigInteger()),
        _required("spread_all", sa.BigInteger()),
        _required("route_policy", WORDS),
        _required("balance_abs_threshold", sa.BigInteger()),
        _required("balance_rel_threshold", sa.Double()),
        _required("min_prefix_match", sa.Double()),
        sa.Column("idle_seconds", sa.BigInteger()),
        _required("source", WORDS),
        _required("created_at", TIME),
        _required("updated_at", TIME),
        _required("updated_by", WORDS),
        sa.PrimaryKeyConstraint("model", name="pk_scheduling"),
    )


def _add_external_engines() -> None:
    op.create_table(
        "external_engines",
        _required("id", WORDS),
        _required("model", WORDS),
        _required("name", WORDS),
        _required("url", WORDS),
        _required("remote_model", WORDS),
        _required("uses", sa.JSON()),
        sa.Column("sealed_key", sa.LargeBinary()),
        _required("ca", WORDS),
        _required("health_path", WORDS),
        _required("max_concurrent", sa.BigInteger()),
        _required("weight", sa.BigInteger()),
        _required("fallback_order", sa.BigInteger()),
        _required("is_enabled", sa.BigInteger()),
        _required("created_at", TIME),
        _required("created_by", WORDS),
        _required("changed_at", TIME),
        _required("changed_by", WORDS),
        sa.PrimaryKeyConstraint("id", name="pk_external_engines"),
    )
    op.create_index("ix_external_engines_name", "external_engines", ["model", "name"], unique=True)


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
