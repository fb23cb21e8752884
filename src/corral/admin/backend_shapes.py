"""What nodes have, in the shapes of the admin API."""

from collections.abc import Mapping, Sequence

from corral.base.ids import NodeId
from corral.control.fleet import SeenNode
from corral.domain.backend import BackendEntry, Inventory
from corral.protocol.inventory import InstalledBackend
from corral.protocol.operation_views import (
    BackendMetadata,
    BackendNodeRow,
    BackendRow,
    FleetBackends,
    FleetBackendView,
    NodeBackendView,
)
from corral.protocol.times import format_time

Known = Mapping[NodeId, Inventory]
Held = list[tuple[SeenNode, BackendEntry]]


def backend_rows(nodes: Sequence[SeenNode], known: Known) -> list[BackendRow]:
    """LocalAI's list: at the top what the first node says."""
    return [_row(name, held) for name, held in sorted(_by_name(nodes, known).items())]


def _row(name: str, held: Held) -> BackendRow:
    first = held[0][1]
    metadata = BackendMetadata(
        name=name,
        gallery_url=first.gallery_url,
        installed_at=first.installed_at,
        version=first.version,
        uri=first.uri,
        digest=first.digest,
    )
    nodes = [
        BackendNodeRow(
            node_id=seen.node.id,
            node_name=seen.node.name,
            node_status=seen.status.value,
            version=entry.version,
            digest=entry.digest,
            uri=entry.uri,
            installed_at=entry.installed_at,
        )
        for seen, entry in held
    ]
    return BackendRow(name=name, is_meta=first.is_meta, is_system=first.is_system, metadata=metadata, nodes=nodes)


def fleet_backends(nodes: Sequence[SeenNode], known: Known) -> FleetBackends:
    items = [
        FleetBackendView(
            name=name,
            is_meta=held[0][1].is_meta,
            nodes=[_node_view(seen, entry, known[seen.node.id]) for seen, entry in held],
        )
        for name, held in sorted(_by_name(nodes, known).items())
    ]
    return FleetBackends(items=items, unheard=[one.node.name for one in nodes if one.node.id not in known])


def _node_view(seen: SeenNode, entry: BackendEntry, inventory: Inventory) -> NodeBackendView:
    return NodeBackendView(
        node_id=seen.node.id,
        node_name=seen.node.name,
        node_status=seen.status.value,
        is_system=entry.is_system,
        installed_at=entry.installed_at,
        version=entry.version,
        uri=entry.uri,
        digest=entry.digest,
        seen_at=format_time(inventory.seen_at),
    )


def _by_name(nodes: Sequence[SeenNode], known: Known) -> dict[str, Held]:
    found: dict[str, Held] = {}
    for seen in nodes:
        for entry in known[seen.node.id].entries if seen.node.id in known else ():
            found.setdefault(entry.name, []).append((seen, entry))
    return found


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
