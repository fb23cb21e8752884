"""Where models run, why, and what a change would do, each in one sentence. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from corral.base.ids import NodeId
from corral.base.words import counted, listed
from corral.frontend.serving.decide.load_job import LoadJob, LoadState
from corral.frontend.serving.decide.placement import Placement, PlacementRefusal
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.what_if import (
    BackendDeleted,
    Change,
    Consequence,
    Fate,
    ModelScaled,
    NodeDown,
    NodeDrained,
    has_cure,
)


def why_summary(
    model: str,
    choice: Placement | PlacementRefusal,
    replicas: Sequence[Replica],
    jobs: Sequence[LoadJob],
    names: Mapping[NodeId, str],
) -> str:
    """Where a model is, how its loads are, and where one more replica would go."""
    return "; ".join([_whereabouts(model, replicas, names), *_loads(jobs), _next_place(choice)])


def _whereabouts(model: str, replicas: Sequence[Replica], names: Mapping[NodeId, str]) -> str:
    loaded = sorted(
        names.get(replica.node_id, replica.node_id) for replica in replicas if replica.state is ReplicaState.LOADED
    )
    return f"{model} is loaded on {listed(loaded)}" if loaded else f"{model} is not loaded"


def _loads(jobs: Sequence[LoadJob]) -> list[str]:
    counts = Counter(job.state for job in jobs)
    words = {
        LoadState.LOADING: "{} under way",
        LoadState.PENDING: "{} waiting for a place",
        LoadState.FAILED: "{} failed",
    }
    clauses = [text.format(counted(counts[state], "load")) for state, text in words.items() if counts[state]]
    return [", ".join(clauses)] if clauses else []


def _next_place(choice: Placement | PlacementRefusal) -> str:
    if isinstance(choice, Placement):
        return f"one more would go to {choice.node.name}"
    cure = ", unless something else ends" if has_cure(choice) else ""
    return f"no node can take one more{cure}" if choice.verdicts else "no node has joined yet"


def change_in_words(change: Change, names: Mapping[NodeId, str]) -> str:
    match change:
        case NodeDown(node_id=id):
            return f"{names.get(id, id)} goes down"
        case NodeDrained(node_id=id):
            return f"{names.get(id, id)} is drained"
        case ModelScaled(model=model, count=count):
            return f"{model} has {counted(count, 'replica')}"
        case BackendDeleted(backend=backend):
            return f"the backend {backend} is deleted everywhere"


_TOLD: Final = {
    Fate.SERVICE_LOST: "{} without any replica",
    Fate.REPLICA_LOST: "{} lost without a place elsewhere",
    Fate.STAYS: "{} staying until forced",
    Fate.NOT_ADDED: "no place for one more",
    Fate.MOVES: "{} loaded elsewhere",
    Fate.ADDED: "{} added",
    Fate.ENDED: "{} ended",
}


def what_if_summary(consequences: Sequence[Consequence]) -> str:
    """How many replicas move, and what is lost; the worst first."""
    counts = Counter(each.fate for each in consequences)
    clauses: list[str] = []
    for fate, text in _TOLD.items():
        if counts[fate]:
            word = "model" if fate is Fate.SERVICE_LOST else "replica"
            clauses.append(text.format(counted(counts[fate], word)))
    if interrupted := sorted({each.model for each in consequences if each.is_interrupted}):
        clauses.append(f"no answers from {listed(interrupted)} until loaded again")
    return "; ".join(clauses) if clauses else "nothing would change"
