"""Replicas as values: their states, which transition is legal, and what a node's report says about them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from corral.base.ids import NodeId, ReplicaId
from corral.base.values import PartlyPrinted
from corral.frontend.models.decide.model import Catalogue
from corral.frontend.nodes.decide.reports import Reach, ReportedProcess, port_of
from corral.frontend.operations.decide.intent import CLOCK_SKEW
from corral.frontend.serving.decide.load_job import LoadJob, LoadWhy


class ReplicaState(StrEnum):
    RESERVED = "reserved"
    STAGING = "staging"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    IDLE = "idle"
    FAILED = "failed"
    LOST = "lost"


_S = ReplicaState
NEXT: Final[Mapping[ReplicaState, frozenset[ReplicaState]]] = {
    _S.RESERVED: frozenset({_S.STAGING, _S.LOADING, _S.FAILED, _S.LOST}),
    _S.STAGING: frozenset({_S.LOADING, _S.FAILED, _S.LOST}),
    _S.LOADING: frozenset({_S.LOADED, _S.FAILED, _S.LOST}),
    _S.LOADED: frozenset({_S.UNLOADING, _S.LOST}),
    _S.UNLOADING: frozenset({_S.IDLE, _S.LOST}),
    _S.IDLE: frozenset(),
    _S.FAILED: frozenset(),
    _S.LOST: frozenset(),
}
FINAL: Final = frozenset(state for state, following in NEXT.items() if not following)
LIVE: Final = frozenset(ReplicaState) - FINAL
ON_THE_WAY: Final = (_S.RESERVED, _S.STAGING, _S.LOADING)
"""States of a replica that is being loaded, in their order."""
SERVING: Final = frozenset({_S.LOADED, _S.UNLOADING})
"""States in which requests may be under way: what is being ended may still answer the last ones."""


def before(state: ReplicaState) -> frozenset[ReplicaState]:
    """The states from which this one may be entered: the guard of every write."""
    return frozenset(earlier for earlier, following in NEXT.items() if state in following)


class Replica(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("key", "token")

    id: ReplicaId
    node_id: NodeId
    model: str
    index: int
    revision: str
    """The revision of the model's configuration that it was loaded with."""
    backend: str
    state: ReplicaState
    address: str = ""
    """The address of its gRPC port, as the node advertised it; empty before it answered."""
    url: str = ""
    """Where requests go, as its node says; empty when it says nothing, as LocalAI's never do."""
    key: str = ""
    """The bearer that its URL wants; new at every start of the process, and so the process's identity."""
    routes: tuple[str, ...] | None = None
    """Which routes of inference its URL answers; None when its node did not say."""
    front_port: int = 0
    """A port of the same host, with the same key, for requests that need care; 0 when there is none."""
    token: str = ""
    """What its process wants to hear over gRPC; empty where that is the node's secret or the shared token."""
    vram: int = 0
    ram: int = 0
    """The bytes that it counts with on its machine, from its reservation to its end."""
    cards: tuple[str, ...] = ()
    """The GPUs that it may use; none where its machine has none, or names none."""
    why: LoadWhy = LoadWhy.ASKED
    """Why the replica was loaded."""
    asked_life: str | None = None
    """The incarnation of the worker that was asked to have its backend there and has not answered; else None."""
    models_path: str = ""
    """What is the models directory on its node, as far as this model is concerned; empty where nobody knows."""
    is_unreadable: bool = False
    """Its key or token does not open, so nobody can reach it until its node tells them again."""
    reason: str = ""
    """Why it failed or was lost."""
    created_at: datetime
    changed_at: datetime

    @property
    def process_key(self) -> str:
        """How the node calls the process."""
        return f"{self.model}#{self.index}"

    def age(self, now: datetime) -> timedelta:
        """How long it has been in its state. Endless where that began before the clock was set back: nobody knows how
        long, and what waits for an age waits no longer."""
        return now - self.changed_at if self.changed_at <= now + CLOCK_SKEW else timedelta.max

    @property
    def reach(self) -> Reach:
        """How requests reach the replica: its URL, key and routes."""
        return Reach(self.url, self.key, self.routes, self.front_port, self.token)

    def is_process(self, process: ReportedProcess) -> bool:
        """Whether this process is the one that was loaded, and not another one in its place.

        A process without a key, as LocalAI's workers run them, is recognised by its port; one whose node tells no
        address either, by its place alone.
        """
        if (process.model, process.index) != (self.model, self.index):
            return False
        if process.key and self.key:
            return process.key == self.key
        return not process.address or port_of(process.address) == port_of(self.address)

    @property
    def needs_adapter(self) -> bool:
        """Whether it answers requests, and only the adapter of a frontend can put them: its node gives it no URL."""
        return self.state in SERVING and bool(self.address) and not self.url and not self.is_unreadable


def barrier(loaded: Sequence[Replica], adapter_problem: str) -> str:
    """Return why none of these loaded replicas of a model can be asked; empty when one can, or soon will."""
    return adapter_problem if all(replica.needs_adapter for replica in loaded) else ""


class Outgrown(StrEnum):
    """Why a replica serves what nobody wants any more."""

    DELETED = "the model was deleted"
    REDIRECTED = "the model became an alias"
    CHANGED = "the model's configuration was changed"


def outgrown(replica: Replica, catalogue: Catalogue) -> Outgrown | None:
    """None for what still fits, and where a file that cannot be read may hold the model."""
    spec = catalogue.models.get(replica.model)
    if spec is None:
        return None if catalogue.may_hide(replica.model) else Outgrown.DELETED
    if spec.alias_of:
        return Outgrown.REDIRECTED
    return None if spec.revision == replica.revision else Outgrown.CHANGED


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """The places that somebody takes, or is about to take, as one look at the database tells."""

    places: frozenset[tuple[NodeId, str, int]]
    loads: frozenset[tuple[NodeId, str]]

    @classmethod
    def by(cls, replicas: Iterable[Replica], jobs: Iterable[LoadJob]) -> "Explained":
        return cls(
            places=frozenset(
                (replica.node_id, replica.model, replica.index) for replica in replicas if replica.state in LIVE
            ),
            loads=frozenset((job.node_id, job.model) for job in jobs if job.node_id is not None),
        )

    def covers(self, node_id: NodeId, process: ReportedProcess) -> bool:
        """A replica in any living state explains a process in its place, also one that is still being installed."""
        return (node_id, process.model, process.index) in self.places or (node_id, process.model) in self.loads
