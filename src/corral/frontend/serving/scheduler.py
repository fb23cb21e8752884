"""Looks at the fleet and has `domain.placement` choose. Reserving what was chosen is the load job's guarded write."""

from corral.frontend.nodes.fleet import Fleet
from corral.frontend.serving.decide.placement import CandidateNode, Placement, PlacementRefusal, PlacementRequest, place
from corral.frontend.serving.store.replicas import ReplicaStore


class Scheduler:
    """Reads only."""

    def __init__(self, fleet: Fleet, replicas: ReplicaStore) -> None:
        self._fleet = fleet
        self._replicas = replicas

    async def choose(self, wanted: PlacementRequest) -> Placement | PlacementRefusal:
        living = await self._replicas.living()
        return place(
            wanted,
            [
                CandidateNode(
                    node=seen.node,
                    status=seen.status,
                    replicas=tuple(replica for replica in living if replica.node_id == seen.node.id),
                )
                for seen in await self._fleet.all()
            ],
        )
