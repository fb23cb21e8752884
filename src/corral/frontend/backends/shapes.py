"""What nodes have, in the shapes of the admin API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import BackendEntry, Inventory, traits_of
from corral.frontend.nodes.decide.node import SeenNode
from corral.galleries.fit import NodeTraits
from corral.wire.inventory import InstalledBackend
from corral.wire.operation_views import (
    BackendMetadata,
    BackendNodeRow,
    BackendRow,
    FleetBackends,
    FleetBackendView,
    NodeBackendView,
    ReportAge,
)
from corral.wire.times import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledOnNode:
    """A backend on one node, in the node's words."""

    seen: SeenNode
    entry: BackendEntry
    said: datetime


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What nodes last said, looked at now."""

    nodes: Sequence[SeenNode]
    known: Mapping[NodeId, Inventory]
    at: datetime

    @cached_property
    def by_name(self) -> dict[str, list[InstalledOnNode]]:
        """Sorted by name; the nodes of each in their own order."""
        found: dict[str, list[InstalledOnNode]] = {}
        for seen in self.nodes:
            if (report := self.known.get(seen.node.id)) is not None:
                for entry in report.entries:
                    found.setdefault(entry.name, []).append(
                        InstalledOnNode(seen=seen, entry=entry, said=report.seen_at)
                    )
        return dict(sorted(found.items()))

    @cached_property
    def by_traits(self) -> dict[NodeTraits, list[str]]:
        """Names of the nodes, by what decides which builds of a gallery suit them."""
        found: dict[NodeTraits, list[str]] = {}
        for seen in self.nodes:
            traits = traits_of(seen.node)
            decisive = NodeTraits(capability=traits.effective_capability, needs_scheme=traits.needs_scheme)
            found.setdefault(decisive, []).append(seen.node.name)
        return found

    @property
    def unheard(self) -> list[str]:
        """Names of nodes that never said anything."""
        return [one.node.name for one in self.nodes if one.node.id not in self.known]

    @property
    def oldest_seconds(self) -> float:
        return max((self.age(report.seen_at) for report in self.known.values()), default=0.0)

    def age(self, said: datetime) -> float:
        return round(max((self.at - said).total_seconds(), 0.0), 3)


# LocalAI's.


def backend_rows(reported: Reported) -> list[BackendRow]:
    """At the top what the first node says."""
    return [_row(name, held, reported) for name, held in reported.by_name.items()]


def _row(name: str, held: Sequence[InstalledOnNode], reported: Reported) -> BackendRow:
    first = held[0].entry
    metadata = BackendMetadata(
        name=name,
        gallery_url=first.gallery_url,
        installed_at=first.installed_at,
        version=first.version,
        uri=first.uri,
        digest=first.digest,
    )
    return BackendRow(
        name=name,
        is_meta=first.is_meta,
        is_system=first.is_system,
        metadata=metadata,
        nodes=node_rows(held, reported),
    )


def node_rows(held: Sequence[InstalledOnNode], reported: Reported) -> list[BackendNodeRow]:
    return [
        BackendNodeRow(
            node_id=one.seen.node.id,
            node_name=one.seen.node.name,
            node_status=one.seen.status.value,
            version=one.entry.version,
            digest=one.entry.digest,
            uri=one.entry.uri,
            installed_at=one.entry.installed_at,
            corral=ReportAge(seen_at=format_time(one.said), age_seconds=reported.age(one.said)),
        )
        for one in held
    ]


def installed_backends(inventory: Inventory) -> list[InstalledBackend]:
    """In the words of `backend.list`, by name."""
    return [
        InstalledBackend(
            name=entry.name,
            is_system=entry.is_system,
            is_meta=entry.is_meta,
            installed_at=entry.installed_at,
            gallery_url=entry.gallery_url,
            version=entry.version,
            uri=entry.uri,
            digest=entry.digest,
        )
        for entry in sorted(inventory.entries, key=lambda one: one.name)
    ]


# Corral's own.


def fleet_backends(reported: Reported) -> FleetBackends:
    items = [
        FleetBackendView(name=name, is_meta=held[0].entry.is_meta, nodes=[_node_view(one, reported) for one in held])
        for name, held in reported.by_name.items()
    ]
    return FleetBackends(items=items, unheard=reported.unheard)


def _node_view(held: InstalledOnNode, reported: Reported) -> NodeBackendView:
    return NodeBackendView(
        node_id=held.seen.node.id,
        node_name=held.seen.node.name,
        node_status=held.seen.status.value,
        is_system=held.entry.is_system,
        installed_at=held.entry.installed_at,
        version=held.entry.version,
        uri=held.entry.uri,
        digest=held.entry.digest,
        seen_at=format_time(held.said),
        age_seconds=reported.age(held.said),
    )
