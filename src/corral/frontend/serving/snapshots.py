"""Takes snapshots of the fleet, from what is stored and what gateways reported. Nothing is decided or changed here."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.frontend.backends.catalogue import CatalogueSource
from corral.frontend.backends.decide.backend import Inventory, traits_of
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.liveness import Brake
from corral.frontend.serving.decide.scheduling import SchedulingWish, rules_in_force
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.gateways.reports import GatewayReports
from corral.frontend.serving.staging.shared_directories import SharedDirectories
from corral.frontend.serving.staging.store import StagedModels
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore, Restorations
from corral.frontend.serving.store.scheduling import SchedulingStore
from corral.galleries.catalogue import BackendCatalogue, Missing, ResolvedBuild
from corral.galleries.fit import Blocked, NodeTraits, blocked_by, judge_build

_ENDED_LATELY: Final = timedelta(minutes=2)
"""A node is heard more often than that."""


class KnownBackends:
    """Backends on nodes, as far as inventories and galleries tell; images are not looked at."""

    def __init__(
        self, nodes: Mapping[NodeId, Node], inventories: Mapping[NodeId, Inventory], catalogue: BackendCatalogue | None
    ) -> None:
        self._inventories = inventories
        self._catalogue = catalogue
        traits = {id: traits_of(node) for id, node in nodes.items()}
        self._kinds = {id: _MachineKind(each.effective_capability, each.needs_scheme) for id, each in traits.items()}
        self._keys: dict[tuple[str, str], str] = {}
        self._reasons: dict[tuple[_MachineKind, str], str] = {}

    def is_there(self, node_id: NodeId, backend: str) -> bool:
        inventory, kind = self._inventories.get(node_id), self._kinds.get(node_id)
        if inventory is None or kind is None:
            return False
        return inventory.find(self._key_of(backend, kind.capability)) is not None

    def _key_of(self, backend: str, capability: str) -> str:
        if self._catalogue is None:
            return backend
        key = self._keys.get((backend, capability))
        if key is None:
            key = self._keys[backend, capability] = self._catalogue.key_of(backend, capability)
        return key

    def unfit(self, node_id: NodeId, backend: str) -> str:
        kind = self._kinds.get(node_id)
        if kind is None or self._catalogue is None:
            return ""
        reason = self._reasons.get((kind, backend))
        if reason is None:
            reason = self._reasons[kind, backend] = _unfit(self._catalogue, backend, kind)
        return reason if reason and not self.is_there(node_id, backend) else ""


class _MachineKind(NamedTuple):
    """What decides whether a machine can run a backend, as long as its image is not looked at."""

    capability: str
    needs_scheme: bool


def _unfit(catalogue: BackendCatalogue, backend: str, kind: _MachineKind) -> str:
    resolved = catalogue.resolve(backend, kind.capability)
    if not isinstance(resolved, ResolvedBuild):
        # The node may know galleries that are not known here.
        return "" if resolved.missing is Missing.UNKNOWN else blocked_by(resolved).reason
    traits = NodeTraits(capability=kind.capability, needs_scheme=kind.needs_scheme)
    verdict = judge_build(resolved.build, traits, None)
    return verdict.reason if isinstance(verdict, Blocked) else ""


class Snapshots:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        fleet: Fleet,
        models: Models,
        replicas: ReplicaStore,
        jobs: LoadJobs,
        inventories: InventoryKeeper,
        galleries: CatalogueSource,
        gateways: GatewayReports,
        clock: Clock,
        *,
        rules: SchedulingStore,
        staged: StagedModels,
        restorations: Restorations,
        shared: SharedDirectories,
        brake: Brake,
    ) -> None:
        self._fleet = fleet
        self._models = models
        self._replicas = replicas
        self._jobs = jobs
        self._inventories = inventories
        self._galleries = galleries
        self._gateways = gateways
        self._clock = clock
        self._rules = rules
        self._staged = staged
        self._restorations = restorations
        self._shared = shared
        self._brake = brake

    @property
    def is_braked(self) -> bool:
        return self._brake.holds

    async def is_empty(self) -> bool:
        """Whether there is neither a replica nor a load nor a rule, so that nothing follows from a snapshot."""
        return not (await self._replicas.places() or await self._jobs.all() or await self._rules.all())

    async def rules(self) -> dict[str, SchedulingWish]:
        """The rules of scheduling in force, by the models that they are about."""
        in_force = rules_in_force(await self._rules.all(), self._models.catalogue)
        return {name: rule.wish for name, rule in in_force.items()}

    async def take(self) -> FleetSnapshot:
        now = self._clock.now()
        nodes = tuple(await self._fleet.all())
        by_id = {seen.node.id: seen.node for seen in nodes}
        replicas = tuple(await self._replicas.living())
        gateways = self._gateways
        models = {name: spec for name, spec in self._models.catalogue.models.items() if not spec.alias_of}
        last_used = {replica.id: gateways.last_used(replica.id) for replica in replicas}
        return FleetSnapshot(
            at=now,
            nodes=nodes,
            replicas=replicas,
            jobs=tuple(await self._jobs.all()),
            restorations=tuple(await self._restorations.all()),
            models=models,
            needs={name: self._models.needs_of(spec) for name, spec in models.items()},
            staged=tuple(await self._staged.summaries()),
            sharing=self._shared.nodes,
            backends=KnownBackends(
                by_id, await self._inventories.known(list(by_id)), await self._galleries.catalogue()
            ),
            ended=tuple(await self._replicas.ended_since(now - _ENDED_LATELY)),
            in_flight=gateways.in_flight(),
            last_used={id: at for id, at in last_used.items() if at is not None},
            waiting=gateways.waiting(),
            is_load_known=gateways.silent() == 0,
            counting_since=gateways.counting_since,
            rules=await self.rules(),
            kept=frozenset(row.name for row in self._models.rows.values() if row.is_pinned),
            is_braked=self._brake.holds,
        )
