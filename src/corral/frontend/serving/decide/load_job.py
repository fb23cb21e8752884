"""Load jobs: the durable cold load of one model. There is at most one for each model, shared by all who wait for it.

    pending  waits for a node that can take it, or for somebody to work on it
    loading  a frontend works on it: it holds the lease
    failed   given up for now; asked for again after `retry_at`, it starts anew

A job that succeeded is gone: the replica is what is left of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from corral.base.ids import LeaseToken, LoadJobId, NodeId, ReplicaId
from corral.base.retry import Backoff
from corral.base.setting_kinds import duration
from corral.base.settings import setting
from corral.frontend.operations.decide.intent import Intent, IntentState, Verb, together
from corral.wire.models import LoadReason


class LoadState(StrEnum):
    PENDING = "pending"
    LOADING = "loading"
    FAILED = "failed"


NEXT: Final[Mapping[LoadState, frozenset[LoadState]]] = {
    LoadState.PENDING: frozenset({LoadState.LOADING}),
    LoadState.LOADING: frozenset({LoadState.PENDING, LoadState.FAILED, LoadState.LOADING}),
    LoadState.FAILED: frozenset({LoadState.PENDING}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPolicy:
    """How long what may take."""

    fixed_load: timedelta | None = setting(
        duration("1s", "24h"),
        """How long a backend may take to load a model's weights. By default it depends on their size, as in LocalAI;
        a value holds for all, whether it is more or less.""",
        name="load_timeout",
        aliases=("LOCALAI_NATS_MODEL_LOAD_TIMEOUT",),
        default=None,
        default_text="5 minutes and 20 s per GiB, at most 6 h",
    )
    install: timedelta = timedelta(minutes=15)
    """A node's answer to an install; LocalAI's own bound, since it may have to download."""
    load: timedelta = timedelta(minutes=5)
    """LoadModel of weights whose size is not known."""
    load_per_gib: timedelta = timedelta(seconds=20)
    longest_load: timedelta = timedelta(hours=6)
    lease: timedelta = timedelta(seconds=30)
    """After so long without a sign of the frontend that works on it, another one goes on."""
    look_again: timedelta = timedelta(seconds=2)
    """Until a model that found no node is tried again."""
    cooldown: Backoff = Backoff(first=timedelta(seconds=5), cap=timedelta(minutes=5), spread=0.0)
    attempts: int = 3
    """Nodes that are tried before a job fails."""

    def load_time(self, size_bytes: int) -> timedelta:
        """The deadline of LoadModel for weights of this size."""
        if self.fixed_load is not None:
            return self.fixed_load
        return min(self.load + self.load_per_gib * (size_bytes / 1024**3), self.longest_load)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    id: LoadJobId
    model: str
    revision: str
    state: LoadState
    node_id: NodeId | None = None
    replica_id: ReplicaId | None = None
    """The place that was reserved; whoever takes over goes on with it."""
    preferred_node_id: NodeId | None = None
    """Where an upgrade ended it."""
    failures: int = 0
    """Times in a row that this model could not be loaded."""
    message: str = ""
    """What it waits for, or why it failed, with names and addresses: for administrators."""
    reason: LoadReason | None = None
    """Code of what it waits for or why it failed, for every client; None while there is nothing to say."""
    engine_lines: tuple[str, ...] = ()
    """What the engine wrote last before the load failed: for administrators."""
    retry_at: datetime
    """Not worked on before."""
    lease_token: LeaseToken | None = None
    lease_until: datetime | None = None
    created_at: datetime
    changed_at: datetime


def due_at(job: LoadJob) -> datetime:
    """When somebody may claim it, unless it changes before."""
    return job.lease_until or job.retry_at if job.state is LoadState.LOADING else job.retry_at


def may_claim(job: LoadJob, now: datetime) -> bool:
    """Whether somebody may begin to work on it, or go on where another one went silent."""
    match job.state:
        case LoadState.PENDING:
            return job.retry_at <= now
        case LoadState.LOADING:
            return job.lease_until is None or job.lease_until <= now
        case LoadState.FAILED:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load is."""

    phase: str = ""
    """`installing` or the word of the node, then `staging` and `loading`; empty when it is not known."""
    current_bytes: int | None = None
    total_bytes: int | None = None
    """The size of what the node downloads or is sent, or of the weights."""
    bytes_per_second: float | None = None
    eta_seconds: float | None = None
    file_index: int | None = None
    """Which file is sent, counted from 1."""
    total_files: int | None = None
    file: str = ""
    """Its path, for administrators."""


NO_LOAD_PROGRESS: Final = LoadProgress()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus:
    """How far a model is, for those who wait for it."""

    model: str
    state: str
    """`loaded`, `failed`, or what is being done."""
    node: str = ""
    message: str = ""
    reason: LoadReason | None = None
    engine_lines: tuple[str, ...] = ()
    progress: LoadProgress = NO_LOAD_PROGRESS
    retry_after: timedelta = timedelta(seconds=5)


class LoadNeed(StrEnum):
    """What an intent about a backend or a model on a node means for a cold load there."""

    FREE = "free"
    """Nothing speaks against it."""
    REPLACE = "replace"
    """It was deleted, and that is done: from now on it is wanted there again."""
    REFUSED = "refused"
    """It is about to be deleted."""


def needed_by_load(intent: Intent | None, *, since: datetime, now: datetime) -> LoadNeed:
    """Whether a load may begin beside this intent; `since` is when the model's file was last written."""
    if intent is None or not intent.verb.deletes:
        return LoadNeed.FREE
    if intent.verb is Verb.REMOVE:
        return LoadNeed.REFUSED if _may_take_files(intent, since, now) else LoadNeed.FREE
    match intent.state:
        case IntentState.SATISFIED:
            return LoadNeed.REPLACE
        case IntentState.OPEN | IntentState.BLOCKED:
            return LoadNeed.REFUSED
        case IntentState.CANCELLED:
            return LoadNeed.FREE


def _may_take_files(removal: Intent, since: datetime, now: datetime) -> bool:
    """Whether a load would leave files that nobody deletes later, or lose its files to a removal under way.

    After a removal that is not open, the same model was added again, unless this frontend does not know it yet.
    """
    unanswered = together(removal.outstanding, removal.doubt)
    if removal.state is IntentState.OPEN or (unanswered is not None and unanswered.until > now):
        return True
    return removal.state is not IntentState.CANCELLED and since <= removal.accepted_at
