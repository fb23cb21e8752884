"""Replicas in LocalAI's form: `GET /api/node/<id>/models` and `GET /api/nodes/<id>/models`.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it.
"""

import msgspec


class ReplicaRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str = msgspec.field(default_factory=str)
    node_id: str = msgspec.field(default_factory=str)
    model_name: str = msgspec.field(default_factory=str)
    replica_index: int = msgspec.field(default_factory=int)
    address: str = msgspec.field(default_factory=str)
    state: str = msgspec.field(default_factory=str)
    """`staging`, `loading`, `loaded`, `unloading` or `idle`."""
    in_flight: int = msgspec.field(default_factory=int)
    last_used: str = msgspec.field(default_factory=str)
    loading_by: str = ""
    backend_type: str = ""
    config_revision: str = ""
    effective_options_hash: str = ""
    cleanup_error: str = ""
    cleanup_attempts: int = 0
    cleanup_next_retry_at: str = ""
    created_at: str = msgspec.field(default_factory=str)
    updated_at: str = msgspec.field(default_factory=str)
