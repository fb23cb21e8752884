"""The tables about who may do what: people, sessions, invitations of machines, users of NATS, and how backends are
confined."""

from typing import Final

from sqlalchemy import JSON, Column, Index, Table

from corral.frontend.store.dialect import UtcTime, Whole, Words
from corral.frontend.store.schema import metadata

# Owner: Users. Names are compared without regard to case.
users: Final = Table(
    "users",
    metadata,
    Column("id", Words, primary_key=True),
    Column("name", Words, nullable=False),
    Column("folded_name", Words, nullable=False),
    Column("role", Words, nullable=False),
    # Made by Argon2; empty for a user who has keys only.
    Column("password_hash", Words),
    Column("created_at", UtcTime, nullable=False),
    Column("created_by", Words, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("disabled_at", UtcTime),
    Index("ix_users_folded_name", "folded_name", unique=True),
)

# Owner: SessionStore. Exactly one of the key, the key of the settings and the user opened it; it is valid only as long
# as that is, and as the user was not changed since.
sessions: Final = Table(
    "sessions",
    metadata,
    Column("id", Words, primary_key=True),
    # Of the token in the cookie.
    Column("hash", Words, nullable=False),
    Column("key_id", Words),
    Column("set_key_hash", Words),
    Column("user_id", Words),
    Column("user_changed_at", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("source", Words, nullable=False),
    Column("agent", Words, nullable=False),
    Column("ended_at", UtcTime),
    Index("ix_sessions_hash", "hash", unique=True),
)

# Owner: Invitations. A code that lets machines join; only its hash is stored.
invitations: Final = Table(
    "invitations",
    metadata,
    Column("id", Words, primary_key=True),
    Column("hash", Words, nullable=False),
    Column("labels", JSON(none_as_null=True), nullable=False),
    Column("auto_approve", Whole, nullable=False),
    Column("max_uses", Whole, nullable=False),
    Column("uses", Whole, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("created_by", Words, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("revoked_at", UtcTime),
    Index("ix_invitations_hash", "hash", unique=True),
)

# Owner: NatsUsers. Users of NATS that were issued to nodes and have not expired; a removed node's are revoked.
nats_users: Final = Table(
    "nats_users",
    metadata,
    Column("public_key", Words, primary_key=True),
    Column("node_id", Words, nullable=False),
    Column("issued_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("revoked_at", UtcTime),
    Index(None, "node_id"),
    Index(None, "expires_at"),
)

# Owner: the policies of backends, by people. A backend without a row is confined, with the network of the setting.
backend_policies: Final = Table(
    "backend_policies",
    metadata,
    Column("backend", Words, primary_key=True),
    # none, loopback, any; empty: as the setting says.
    Column("network", Words, nullable=False),
    Column("is_confined", Whole, nullable=False),
    # Why it is not confined.
    Column("reason", Words, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("changed_by", Words, nullable=False),
)
