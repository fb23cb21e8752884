"""People with roles, invitations of machines, users of NATS per node, and how backends are confined.

Types are spelled out here and not imported from the code, which may change after this has run somewhere.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

TIME = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    for name in ("fingerprint", "invitation_id", "nats_login"):
        op.add_column("nodes", sa.Column(name, WORDS))
    op.add_column("nodes", sa.Column("confinement", sa.JSON()))
    op.add_column("api_keys", sa.Column("user_id", WORDS))
    op.add_column("api_keys", sa.Column("models", sa.JSON()))
    op.add_column("replicas", sa.Column("sealed_token", sa.LargeBinary()))
    _add_users()
    _add_invitations()
    _add_nats_users()
    op.create_table(
        "backend_policies",
        _required("backend", WORDS),
        _required("network", WORDS),
        _required("is_confined", sa.BigInteger()),
        _required("reason", WORDS),
        _required("changed_at", TIME),
        _required("changed_by", WORDS),
        sa.PrimaryKeyConstraint("backend", name="pk_backend_policies"),
    )


def _add_users() -> None:
    op.create_table(
        "users",
        _required("id", WORDS),
        _required("name", WORDS),
        _required("folded_name", WORDS),
        _required("role", WORDS),
        sa.Column("password_hash", WORDS),
        _required("created_at", TIME),
        _required("created_by", WORDS),
        _required("changed_at", TIME),
        sa.Column("disabled_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
    )
    op.create_index("ix_users_folded_name", "users", ["folded_name"], unique=True)


def _add_invitations() -> None:
    op.create_table(
        "invitations",
        _required("id", WORDS),
        _required("hash", WORDS),
        _required("labels", sa.JSON()),
        _required("auto_approve", sa.BigInteger()),
        _required("max_uses", sa.BigInteger()),
        _required("uses", sa.BigInteger()),
        _required("created_at", TIME),
        _required("created_by", WORDS),
        _required("expires_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_invitations"),
    )
    op.create_index("ix_invitations_hash", "invitations", ["hash"], unique=True)


def _add_nats_users() -> None:
    op.create_table(
        "nats_users",
        _required("public_key", WORDS),
        _required("node_id", WORDS),
        _required("issued_at", TIME),
        _required("expires_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("public_key", name="pk_nats_users"),
    )
    op.create_index("ix_nats_users_node_id", "nats_users", ["node_id"])
    op.create_index("ix_nats_users_expires_at", "nats_users", ["expires_at"])


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
