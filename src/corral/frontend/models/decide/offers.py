"""Which machines of the fleet the builds of a gallery's model are measured by. Pure."""

from collections.abc import Iterable

from corral.frontend.backends.decide.backend import traits_of
from corral.frontend.nodes.decide.node import Node
from corral.galleries.model_variants import MachineFacts


def machines_of(nodes: Iterable[Node]) -> tuple[MachineFacts, ...]:
    """Return one machine of each kind, the first one by name: thousands of nodes are of a few kinds."""
    kinds: dict[tuple[str, int, int], MachineFacts] = {}
    for node in nodes:
        capacity = node.capacity
        vram = node.vram_budget_bytes or capacity.total_vram
        capability = traits_of(node).effective_capability
        kinds.setdefault(
            (capability, vram, capacity.total_ram),
            MachineFacts(name=node.name, capability=capability, vram_bytes=vram, ram_bytes=capacity.total_ram),
        )
    return tuple(kinds.values())
