"""The tables. The comment above each group of columns names its one owner; nobody else writes them.

No foreign keys: removing a node must never be blocked, and what belongs to it is removed in the same transaction.
JSON is the plain text type on PostgreSQL as well: it keeps every value exactly, and is hardly ever searched inside.
"""

from typing import Final

from sqlalchemy import JSON, Column, Double, Index, LargeBinary, MetaData, Table, text

from corral.frontend.store.dialect import DurationColumn, UtcTime, Whole, Words

metadata: Final = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"},
)


def _document(name: str) -> Column[object]:
    return Column(name, JSON(none_as_null=True), nullable=False)


nodes: Final = Table(
    "nodes",
    metadata,
    # Owner: the first registration (Nodes.admit). Never changes.
    Column("id", Words, primary_key=True),
    Column("created_at", UtcTime, nullable=False),
    # Owner: registration (Nodes.admit, Nodes.register, Nodes.suspect), guarded by the revision.
    Column("name", Words, nullable=False),
    Column("type", Words, nullable=False),
    Column("address", Words, nullable=False),
    Column("http_address", Words, nullable=False),
    Column("stated_interval", DurationColumn),
    Column("gpu_compute_capability", Words, nullable=False),
    Column("capability", Words, nullable=False),
    _document("reported_labels"),
    Column("reported_max_replicas", Whole, nullable=False),
    Column("reported_vram_budget", Words, nullable=False),
    Column("peer", JSON(none_as_null=True)),
    Column("secret_hash", Words),
    # Owner: people, and the worker for its own drain and deregistration (Nodes.replace), guarded by the revision. A
    # registration may approve, and takes an approval away from a suspect (Nodes.suspect).
    Column("approved_at", UtcTime),
    Column("approved_by", Words, nullable=False),
    Column("draining_since", UtcTime),
    Column("draining_by", Words, nullable=False),
    Column("deregistered_at", UtcTime),
    _document("admin_labels"),
    _document("removed_labels"),
    Column("admin_max_replicas", Whole),
    Column("admin_vram_budget", Words),
    Column("updated_at", UtcTime, nullable=False),
    # Owner: every write but heartbeats, marks and announcements; the guard of writes decided on an earlier read.
    Column("revision", Whole, nullable=False),
    # Owner: heartbeats (Nodes.beat), guarded by the last heartbeat; a registration counts as one.
    Column("last_heartbeat", UtcTime, nullable=False),
    _document("recent_gaps"),
    Column("incarnation", Words, nullable=False),
    Column("total_vram", Whole, nullable=False),
    Column("available_vram", Whole, nullable=False),
    Column("total_ram", Whole, nullable=False),
    Column("available_ram", Whole, nullable=False),
    Column("total_disk", Whole, nullable=False),
    Column("available_disk", Whole, nullable=False),
    Column("gpu_vendor", Words, nullable=False),
    _document("problems"),
    # Owner: control sets the mark (Nodes.mark_no_responders), a later heartbeat takes it away.
    Column("no_responders_at", UtcTime),
    # Owner: health (Nodes.judge).
    Column("announced", Words),
    Column("announced_at", UtcTime),
    # Owner: the writer of a fact that status follows from; health moves it on (Nodes.judge).
    Column("next_look", UtcTime),
    # Owner: registration, as above. Not known of nodes that have not registered since there is this column.
    Column("registered_at", UtcTime),
    Column("registered_from", Words),
    # Owner: registration sets it, an approval by a person takes it away.
    Column("suspicion", Words),
    # Owner: heartbeats, and a registration: each GPU. Empty for nodes that tell only sums.
    Column("cards", JSON(none_as_null=True)),
    # Owner: people: ids of GPUs that get nothing new.
    Column("cards_out", JSON(none_as_null=True)),
    # Owner: registration, as above. The fingerprint that the worker shows on its own screen, the invitation it came
    # with, how it logs in to NATS, and how it confines backends. Empty where it does not say.
    Column("fingerprint", Words),
    Column("invitation_id", Words),
    Column("nats_login", Words),
    Column("confinement", JSON(none_as_null=True)),
    Index(None, "name", "id"),
    # A node is found by its secret, or without one by its name: neither may mean two nodes.
    Index("ix_nodes_secret_hash", "secret_hash", unique=True),
    Index(
        "ix_nodes_name_without_secret",
        "name",
        unique=True,
        postgresql_where=text("secret_hash IS NULL"),
        sqlite_where=text("secret_hash IS NULL"),
    ),
    Index(None, "next_look"),
)

# Owner: Secrets, and Nodes for `node/<id>`. Sealed with the secrets key, the name bound into the seal.
secrets: Final = Table(
    "secrets",
    metadata,
    Column("name", Words, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    # Owner: Keys.insert. Never changes.
    Column("id", Words, primary_key=True),
    Column("name", Words, nullable=False),
    Column("hash", Words, nullable=False),
    _document("scopes"),
    Column("created_at", UtcTime, nullable=False),
    Column("created_by", Words, nullable=False),
    Column("expires_at", UtcTime),
    Column("node_id", Words),
    # Owner: Keys.revoke, and Nodes.remove for the keys of the node. Set once.
    Column("revoked_at", UtcTime),
    # Owner: Keys.insert. Whose it is, and the only models that it opens; empty for a key of nobody in particular, and
    # for all models.
    Column("user_id", Words),
    Column("models", JSON(none_as_null=True)),
    # Owner: SessionStore.insert_key. The session of the web page that it ends with; such keys are deleted when over.
    Column("session_id", Words),
    # Owner: Keys.note_uses. Only ever later, and up to a minute old.
    Column("used_at", UtcTime),
    Index("ix_api_keys_hash", "hash", unique=True),
    Index(None, "name"),
    Index(None, "node_id"),
    Index(None, "session_id"),
)

# Owner: events.append; only Events.trim deletes.
events: Final = Table(
    "events",
    metadata,
    Column("sequence", Whole, primary_key=True, autoincrement=False),
    Column("kind", Words, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("actor", Words, nullable=False),
    Column("node_id", Words),
    _document("data"),
    Index(None, "node_id", "sequence"),
    Index(None, "kind", "sequence"),
    Index(None, "actor", "sequence"),
    Index(None, "at"),
)

# Owner: events.append; only Events.trim deletes. What each event is about: names of models, ids of operations.
event_subjects: Final = Table(
    "event_subjects",
    metadata,
    Column("subject", Words, primary_key=True),
    Column("sequence", Whole, primary_key=True, autoincrement=False),
    Index(None, "sequence"),
)

# Owner: events.append. One row, made by the migration; its lock makes order of sequence and order of commit the same.
event_sequence: Final = Table(
    "event_sequence",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=False),
    Column("last", Whole, nullable=False),
)

# Owner: Leases.
leases: Final = Table(
    "leases",
    metadata,
    Column("name", Words, primary_key=True),
    Column("token", Words, nullable=False),
    Column("holder", Words, nullable=False),
    Column("claimed_at", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),
)

# Owner: HearingPeriods. One row for the fleet.
hearing: Final = Table(
    "hearing",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=False),
    Column("since", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),
)

# Owner: the module that made the mark. Things that happen once in the life of a database.
marks: Final = Table(
    "marks",
    metadata,
    Column("name", Words, primary_key=True),
    Column("made_at", UtcTime, nullable=False),
)

_LIVING: Final = text("state NOT IN ('failed', 'idle', 'lost')")

replicas: Final = Table(
    "replicas",
    metadata,
    # Owner: LoadJobs.reserve. Never changes.
    Column("id", Words, primary_key=True),
    Column("node_id", Words, nullable=False),
    Column("model", Words, nullable=False),
    Column("index", Whole, nullable=False),
    Column("revision", Words, nullable=False),
    Column("backend", Words, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # Owner of reserved to loading, loaded and failed: the holder of the load job (LoadJobs). Of lost: replica health
    # (Replicas.lose), and Nodes.remove for the replicas of the node. Of unloading: Unloading (Replicas.unload), and
    # Restorations.prepare. Of idle: Unloading (Replicas.end). stop_serving unloads, and fails what is not loaded yet.
    # Always guarded by the state before.
    Column("state", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    # Owner: LoadJobs.finish, and replica health (Replicas.learn) while it is loaded. The key is sealed.
    Column("address", Words, nullable=False),
    Column("url", Words, nullable=False),
    Column("sealed_key", LargeBinary),
    # Which routes of inference its URL answers; empty when its node does not say.
    Column("routes", JSON(none_as_null=True)),
    # A second port of the same host, for requests that need care; empty or 0 when there is none.
    Column("front_port", Whole),
    # Owner: LoadJobs.reserve, as above: the bytes that it counts with on its node until its end, the GPUs that it may
    # use, and who wanted it. Empty in rows from before there were these columns.
    Column("vram", Whole),
    Column("ram", Whole),
    Column("cards", JSON(none_as_null=True)),
    Column("why", Words),
    # Owner: LoadJobs.finish. Where its node has what is the models directory here; empty where that is not known.
    Column("models_path", Words),
    # Owner: LoadJobs.finish, and replica health (Replicas.learn). What its process wants to hear over gRPC, sealed;
    # empty where that is the node's secret or the shared token.
    Column("sealed_token", LargeBinary),
    # Owner: the holder of the load job (LoadJobs.advance and abandon), and Rollout (Replicas.answered) once it has
    # ended: the incarnation of the worker that was asked to have the backend there and has not answered; else empty.
    Column("asked_life", Words),
    # One process at a time in each place of a node: this is what makes a reservation.
    Index(
        "ix_replicas_place", "node_id", "model", "index", unique=True, postgresql_where=_LIVING, sqlite_where=_LIVING
    ),
    Index(None, "state", "changed_at"),
)

# Owner: LoadJobs. The holder of the lease writes, everybody else only claims, or opens a failed one again. A model that
# is removed takes its jobs along (stop_serving). Each job loads one replica; requests that wait for a model join
# ordinal 0.
load_jobs: Final = Table(
    "load_jobs",
    metadata,
    Column("id", Words, primary_key=True),
    Column("model", Words, nullable=False),
    Column("ordinal", Whole, nullable=False),
    Column("revision", Words, nullable=False),
    Column("why", Words, nullable=False),
    Column("state", Words, nullable=False),
    _document("steps"),
    Column("node_id", Words),
    Column("replica_id", Words),
    Column("preferred_node_id", Words),
    Column("failures", Whole, nullable=False),
    Column("message", Words, nullable=False),
    Column("reason", Words),
    Column("engine_lines", JSON(none_as_null=True)),
    Column("retry_at", UtcTime, nullable=False),
    Column("lease_token", Words),
    Column("lease_until", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Index("ix_load_jobs_place", "model", "ordinal", unique=True),
)

# Owner: the rules of scheduling. How many replicas a model should have, and where they may be.
scheduling: Final = Table(
    "scheduling",
    metadata,
    Column("model", Words, primary_key=True),
    Column("id", Words, nullable=False),
    _document("node_selector"),
    _document("pinned_nodes"),
    Column("min_replicas", Whole, nullable=False),
    # 0 is without limit.
    Column("max_replicas", Whole, nullable=False),
    Column("spread_all", Whole, nullable=False),
    Column("route_policy", Words, nullable=False),
    Column("balance_abs_threshold", Whole, nullable=False),
    Column("balance_rel_threshold", Double, nullable=False),
    Column("min_prefix_match", Double, nullable=False),
    # Empty: as the setting says.
    Column("idle_seconds", Whole),
    Column("source", Words, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("updated_by", Words, nullable=False),
)

# Owner: the store of external engines, by administrators. The key is sealed.
external_engines: Final = Table(
    "external_engines",
    metadata,
    Column("id", Words, primary_key=True),
    Column("model", Words, nullable=False),
    Column("name", Words, nullable=False),
    Column("url", Words, nullable=False),
    Column("remote_model", Words, nullable=False),
    _document("uses"),
    Column("sealed_key", LargeBinary),
    Column("ca", Words, nullable=False),
    Column("health_path", Words, nullable=False),
    Column("max_concurrent", Whole, nullable=False),
    Column("weight", Whole, nullable=False),
    Column("fallback_order", Whole, nullable=False),
    Column("is_enabled", Whole, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("created_by", Words, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("changed_by", Words, nullable=False),
    Index("ix_external_engines_name", "model", "name", unique=True),
)

# Owner: Staging, and Nodes.remove for those of the node. What was brought to a node for a model, and when it was last
# needed there.
staged_models: Final = Table(
    "staged_models",
    metadata,
    Column("node_id", Words, primary_key=True),
    Column("model", Words, primary_key=True),
    Column("revision", Words, nullable=False),
    Column("bytes", Whole, nullable=False),
    _document("files"),
    Column("staged_at", UtcTime, nullable=False),
    Column("used_at", UtcTime, nullable=False),
)

# Owner: Restorations, and stop_serving for the model. Written before the request that ends the replica is sent.
restorations: Final = Table(
    "restorations",
    metadata,
    Column("replica_id", Words, primary_key=True),
    Column("node_id", Words, nullable=False),
    Column("model", Words, nullable=False),
    Column("index", Whole, nullable=False),
    Column("backend", Words, nullable=False),
    Column("replicas", Whole, nullable=False),
    Column("noted_at", UtcTime, nullable=False),
)

# Owner: ModelRemovals. Files of this model are deleted on every frontend that has some.
removed_models: Final = Table(
    "removed_models",
    metadata,
    Column("name", Words, primary_key=True),
    Column("removed_at", UtcTime, nullable=False),
    Column("operation_id", Words, nullable=False),
    # Owner: ModelRemovals.clear. The stores whose files of the model are gone, each with the files that were kept and
    # why; nothing is known of removals that are older than this column.
    Column("cleared", JSON(none_as_null=True)),
)

# Owner: write_model and remove_model, guarded by the number; one row for each model that there is. The files alone are
# also written by StoredModels.measure.
models: Final = Table(
    "models",
    metadata,
    Column("name", Words, primary_key=True),
    # Counts the changes of the model, for ever: a model that is removed and added again goes on counting.
    Column("number", Whole, nullable=False),
    Column("revision", Words, nullable=False),
    Column("text", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("origin", JSON(none_as_null=True)),
    _document("files"),
    Column("is_disabled", Whole, nullable=False),
    Column("is_pinned", Whole, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("changed_by", Words, nullable=False),
)

# Owner: StoredModels and remove_model. The way back: what each model was after each change, its removal included.
model_revisions: Final = Table(
    "model_revisions",
    metadata,
    Column("name", Words, primary_key=True),
    Column("number", Whole, primary_key=True, autoincrement=False),
    Column("revision", Words, nullable=False),
    Column("text", Words, nullable=False),
    Column("origin", JSON(none_as_null=True)),
    _document("files"),
    Column("change", Words, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("changed_by", Words, nullable=False),
)

# Owner: ModelStores. The directories with files of models, as the frontends that have them last saw them.
model_stores: Final = Table(
    "model_stores",
    metadata,
    Column("id", Words, primary_key=True),
    Column("name", Words, nullable=False),
    Column("frontend_id", Words, nullable=False),
    Column("total_bytes", Whole, nullable=False),
    Column("free_bytes", Whole, nullable=False),
    Column("seen_at", UtcTime, nullable=False),
)

# Owner: AddedGalleries. Galleries of models that people added, beside those of the settings.
model_galleries: Final = Table(
    "model_galleries",
    metadata,
    Column("name", Words, primary_key=True),
    Column("url", Words, nullable=False),
    _document("mirrors"),
    Column("added_at", UtcTime, nullable=False),
    Column("added_by", Words, nullable=False),
)

# Owner: ModelImports. What each YAML file of a store said when it was last taken over: a digest of its content, and of
# what it says about each model.
model_imports: Final = Table(
    "model_imports",
    metadata,
    Column("store_id", Words, primary_key=True),
    Column("path", Words, primary_key=True),
    Column("digest", Words, nullable=False),
    _document("names"),
)

# Owner: Operations. Everything but the dismissal is written once.
operations: Final = Table(
    "operations",
    metadata,
    Column("id", Words, primary_key=True),
    Column("verb", Words, nullable=False),
    Column("subject", Words, nullable=False),
    _document("payload"),
    Column("asked_by", Words, nullable=False),
    Column("accepted_at", UtcTime, nullable=False),
    Column("node_id", Words),
    Column("idempotency_key", Words),
    Column("dismissed_at", UtcTime),
    Index("ix_operations_idempotency_key", "idempotency_key", unique=True),
    Index(None, "accepted_at", "id"),
    Index(None, "subject", "accepted_at"),
    Index(None, "asked_by", "accepted_at"),
)

# Owner: Operations makes and supersedes them; the writer of an intent writes its target in the same transaction.
operation_targets: Final = Table(
    "operation_targets",
    metadata,
    Column("operation_id", Words, primary_key=True),
    Column("node_id", Words, primary_key=True),
    Column("node_name", Words, nullable=False),
    Column("subject", Words, nullable=False),
    Column("status", Words, nullable=False),
    Column("waits_for_node", Whole, nullable=False),
    Column("attempts", Whole, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("reason", JSON(none_as_null=True)),
    Index(None, "status"),
    Index(None, "node_id"),
)

intents: Final = Table(
    "intents",
    metadata,
    Column("node_id", Words, primary_key=True),
    Column("kind", Words, primary_key=True),
    Column("subject", Words, primary_key=True),
    # Owner: Operations.start, which replaces the whole row and counts the generation up.
    Column("generation", Whole, nullable=False),
    Column("operation_id", Words, nullable=False),
    Column("verb", Words, nullable=False),
    _document("payload"),
    Column("accepted_at", UtcTime, nullable=False),
    # Owner: the holder of the lease (Intents.store). People cancel and retry (Operations), Nodes.remove cancels.
    Column("state", Words, nullable=False),
    Column("before", JSON(none_as_null=True)),
    Column("outstanding", JSON(none_as_null=True)),
    Column("doubt", JSON(none_as_null=True)),
    Column("attempts", Whole, nullable=False),
    Column("misses", Whole, nullable=False),
    Column("next_try", UtcTime, nullable=False),
    Column("waits_for_node", Whole, nullable=False),
    Column("reason", JSON(none_as_null=True)),
    Column("changed_at", UtcTime, nullable=False),
    # Owner: Intents.claim and extend; a replaced row keeps its lease.
    Column("lease_token", Words),
    Column("lease_until", UtcTime),
    Index(None, "state", "next_try"),
    Index(None, "operation_id"),
    Index(None, "lease_token"),
)

# Owner: Inventories (write_reports, which Intents.store calls in its transaction). What a node last said, and when.
backend_inventory: Final = Table(
    "backend_inventory",
    metadata,
    Column("node_id", Words, primary_key=True),
    _document("entries"),
    Column("seen_at", UtcTime, nullable=False),
)

# Owner: UpgradeChecks. One row: what galleries and registries offered of all that the fleet had, when last looked at.
upgrade_check: Final = Table(
    "upgrade_check",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=False),
    Column("checked_at", UtcTime, nullable=False),
    _document("findings"),
)

# Owner: FleetRules.
fleet_rules: Final = Table(
    "fleet_rules",
    metadata,
    Column("id", Words, primary_key=True),
    _document("artefact"),
    _document("selector"),
    Column("made_by", Words, nullable=False),
    Column("made_at", UtcTime, nullable=False),
)
