"""A backend is replaced under models in use: who is taken out of service before, and what is loaded again after.

Replacing a backend ends its processes and starts none. What it will end is noted before anything is sent, as a
*restoration*, and loaded again when the node is done with it.

| replica on the node          | before the backend is replaced                                             |
|------------------------------|----------------------------------------------------------------------------|
| another one serves elsewhere | noted and taken out of service; its requests get their time                |
| another one is on its way    | waited for: so nodes that hold the last ones go one after the other        |
| neither                      | noted; it serves until the node ends it, with a moment for its requests    |
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.operations.decide.intent import Intent, IntentState, Verb
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because
from corral.frontend.serving.decide.load_job import LoadJob, LoadState, is_cooling
from corral.frontend.serving.decide.replica import Replica, ReplicaState

ROLLING_PATIENCE: Final = timedelta(minutes=30)
"""How long one node waits for another to serve again: an upgrade and a load may take that long."""
REQUESTS_WITHIN: Final = timedelta(seconds=30)
"""For requests under way at the only replica, while it still gets new ones."""
UNLOADED_WITHIN: Final = timedelta(seconds=60)
"""Longer than unloading gives requests; a node that does not say that it is done is not waited for."""
LOADED_WITHIN: Final = timedelta(minutes=2)
"""For a load that is under way; a longer one is not waited for."""
SPARED_AFTER: Final = timedelta(minutes=5)
"""A replica that still serves so long after its node was done was never ended."""
ABOUT_TO_BE_TRIED: Final = timedelta(seconds=10)
KEPT_FOR: Final = timedelta(days=1)
"""How long the note is kept for a node that is away; later the model is loaded when a request asks for it."""
MOST_FAILURES: Final = 5
"""In a row, of loads; then the replica is given up."""


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that goes with its backend, and is to be loaded again."""

    replica_id: ReplicaId
    node_id: NodeId
    model: str
    index: int
    backend: str
    """The canonical name, as in the intent that ends it."""
    replicas: int
    """How many there were of the model: no more are made of it."""
    noted_at: datetime


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the models in question at one moment."""

    replicas: Sequence[Replica]
    """All living replicas."""
    restorations: Sequence[Restoration]
    healthy: Collection[NodeId]
    busy: Collection[ReplicaId]
    """Replicas with requests under way, as far as gateways reported them."""

    @property
    def noted(self) -> frozenset[ReplicaId]:
        return frozenset(restoration.replica_id for restoration in self.restorations)


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done before a backend is replaced. Nothing at all: it may be sent."""

    hold: Reason | None = None
    """Why it may not be sent yet."""
    notes: tuple[Restoration, ...] = ()
    unload: frozenset[ReplicaId] = frozenset()


def prepare(ids: Collection[ReplicaId], backend: str, seen: Seen, now: datetime) -> Preparation:
    """What follows for the replicas that would end with the backend on their node."""
    ending = [replica for replica in seen.replicas if replica.id in ids]
    fresh = [replica for replica in ending if replica.state is ReplicaState.LOADED and replica.id not in seen.noted]
    alone = [replica for replica in fresh if not _serves_elsewhere(replica, seen)]
    for replica in alone:
        if _comes_back_elsewhere(replica, seen, now):
            return Preparation(hold=because(ReasonCode.RELOADED_ELSEWHERE_FIRST, model=replica.model))
    notes = tuple(note(replica, backend, seen.replicas, now, seen.restorations) for replica in fresh)
    unload = frozenset(replica.id for replica in fresh if replica not in alone)
    noted_at = {noted.replica_id: noted.noted_at for noted in (*seen.restorations, *notes)}
    if unload:
        return Preparation(hold=because(ReasonCode.DRAINED_FIRST), notes=notes, unload=unload)
    hindrances = (_hindrance(replica, noted_at.get(replica.id, now), seen, now) for replica in ending)
    return Preparation(hold=next(filter(None, hindrances), None), notes=notes)


def before_removal(replicas: Iterable[Replica], now: datetime) -> Reason | None:
    """Why the files of a model that has these replicas on a node stay for a moment."""
    ending = [replica for replica in replicas if replica.age(now) < UNLOADED_WITHIN]
    return because(ReasonCode.REPLICA_ENDS_FIRST, model=ending[0].model) if ending else None


def _serves_elsewhere(replica: Replica, seen: Seen) -> bool:
    """Whether another replica can take its requests, and will not be ended as well."""
    return any(
        other.model == replica.model
        and other.revision == replica.revision
        and other.node_id != replica.node_id
        and other.state is ReplicaState.LOADED
        and (bool(other.url) or other.needs_adapter)
        and other.node_id in seen.healthy
        and other.id not in seen.noted
        for other in seen.replicas
    )


def _comes_back_elsewhere(replica: Replica, seen: Seen, now: datetime) -> bool:
    return any(
        noted.model == replica.model
        and noted.node_id != replica.node_id
        and noted.node_id in seen.healthy
        and now - noted.noted_at < ROLLING_PATIENCE
        for noted in seen.restorations
    )


def note(
    replica: Replica,
    backend: str,
    living: Iterable[Replica],
    now: datetime,
    restorations: Iterable[Restoration] = (),
) -> Restoration:
    """What is to be loaded again: not more of the model than there are now, or soon will be."""
    living_ids = {other.id for other in living if other.model == replica.model}
    lost_ids = {noted.replica_id for noted in restorations if noted.model == replica.model} - living_ids
    return Restoration(
        replica_id=replica.id,
        node_id=replica.node_id,
        model=replica.model,
        index=replica.index,
        backend=backend,
        replicas=len(living_ids) + len(lost_ids),
        noted_at=now,
    )


def _hindrance(replica: Replica, noted_at: datetime, seen: Seen, now: datetime) -> Reason | None:
    """Why one that is noted, or does not serve yet, is not ended at this moment."""
    age = replica.age(now)
    match replica.state:
        case ReplicaState.UNLOADING:
            code, holds = ReasonCode.REQUESTS_END_FIRST, age < UNLOADED_WITHIN
        case ReplicaState.LOADED:
            code = ReasonCode.REQUESTS_END_FIRST
            holds = replica.id in seen.busy and now - noted_at < REQUESTS_WITHIN
        case _:
            code, holds = ReasonCode.BEING_LOADED, age < LOADED_WITHIN
    return because(code, model=replica.model) if holds else None


# Afterwards.


class Restore(StrEnum):
    WAIT = "wait"
    LOAD = "load"
    FORGET = "forget"


class Aftermath(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one restoration when it is looked at."""

    intent: Intent | None
    """What is wanted of its backend on its node."""
    replicas: Sequence[Replica]
    """All living replicas of the model."""
    noted: Collection[ReplicaId]
    """Replicas that have a restoration, this one's among them."""
    job: LoadJob | None
    """The load job of the model."""
    has_model: bool
    node_is_there: bool
    node_is_healthy: bool


def restore(restoration: Restoration, seen: Aftermath, now: datetime) -> Restore:
    """Whether it is time to load it again, or there is no need any more."""
    intent = seen.intent
    if not seen.has_model or not seen.node_is_there or now - restoration.noted_at >= KEPT_FOR:
        return Restore.FORGET
    if intent is not None and intent.verb is Verb.DELETE and intent.state is not IntentState.CANCELLED:
        return Restore.FORGET
    if intent is not None and _is_under_way(intent, now):
        return Restore.WAIT
    itself = next((replica for replica in seen.replicas if replica.id == restoration.replica_id), None)
    if itself is not None:
        since = restoration.noted_at if intent is None else max(restoration.noted_at, intent.changed_at)
        was_spared = itself.state is ReplicaState.LOADED and now - since >= SPARED_AFTER
        return Restore.FORGET if was_spared else Restore.WAIT
    place = (restoration.node_id, restoration.index, ReplicaState.LOADED)
    is_restored = any((replica.node_id, replica.index, replica.state) == place for replica in seen.replicas)
    # Enough of them: somebody had the model loaded elsewhere meanwhile.
    lasting = [
        replica
        for replica in seen.replicas
        if replica.state is not ReplicaState.UNLOADING and replica.id not in seen.noted
    ]
    if is_restored or len(lasting) >= restoration.replicas:
        return Restore.FORGET
    return _by_job(seen.job, now) if seen.node_is_healthy else Restore.WAIT


def _is_under_way(intent: Intent, now: datetime) -> bool:
    """Not after an attempt that failed: until the next one, the old backend may serve."""
    if intent.state is not IntentState.OPEN:
        return False
    is_resting = intent.attempts > 0 and intent.outstanding is None
    return not is_resting or intent.next_try - now < ABOUT_TO_BE_TRIED


def _by_job(job: LoadJob | None, now: datetime) -> Restore:
    if job is None:
        return Restore.LOAD
    if job.state is not LoadState.FAILED:
        return Restore.WAIT
    if job.failures >= MOST_FAILURES:
        return Restore.FORGET
    return Restore.WAIT if is_cooling(job, now) else Restore.LOAD
