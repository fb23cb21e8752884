"""What should not be there any more: replicas that their model has outgrown, processes that nothing explains. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from corral.base.ids import NodeId
from corral.frontend.models.decide.model import Catalogue
from corral.frontend.nodes.decide.process import ReportedProcess
from corral.frontend.serving.decide.load_job import LoadJob
from corral.frontend.serving.decide.replica import LIVE, Replica


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The places that somebody takes, or is about to take, as one look at the database tells."""

    places: frozenset[tuple[NodeId, str, int]]
    loads: frozenset[tuple[NodeId, str]]

    @classmethod
    def by(cls, replicas: Iterable[Replica], jobs: Iterable[LoadJob]) -> "Explained":
        return cls(
            places=frozenset((one.node_id, one.model, one.index) for one in replicas if one.state in LIVE),
            loads=frozenset((one.node_id, one.model) for one in jobs if one.node_id is not None),
        )

    def covers(self, node_id: NodeId, process: ReportedProcess) -> bool:
        """A replica in any living state explains a process in its place, also one that is still being installed."""
        return (node_id, process.model, process.index) in self.places or (node_id, process.model) in self.loads
