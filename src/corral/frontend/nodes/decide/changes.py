"""Events about nodes, and how a registration of a known node differs from what was stored: in address or hardware.

Neither takes it out of service: a machine gets another address by DHCP, a GPU fails. Both become events for people,
with the state before and after.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import Node
from corral.frontend.record.decide import Event, EventKind
from corral.wire.labels import AUTOMATIC

_NEGLIGIBLE: Final = 0.02
"""By which share memory may differ without an event: a new kernel keeps a little more for itself."""
TOLD_EVERY: Final = timedelta(minutes=1)
"""Least time between two events about one node's hardware: a driver that comes and goes must not fill the record."""


class Difference(NamedTuple):
    """The facts that differ, by their names, before and after. Both are empty when nothing does."""

    before: Mapping[str, object] = {}
    after: Mapping[str, object] = {}


def node_event(kind: EventKind, node: Node, actor: str, *, at: datetime, **data: object) -> Event:
    """An event about a node, with its name: it is read also when the node is gone."""
    return Event(kind=kind, at=at, actor=actor, node_id=node.id, data={"name": node.name, **data})


def move_of(before: Node, after: Node) -> Difference:
    """The addresses of a node that differ between two registrations."""
    return _difference(place_of(before), place_of(after))


def change_of(before: Node, after: Node) -> Difference:
    """What differs of its name, its labels and its hardware."""
    return _difference(_machine_of(before), _machine_of(after))


def identity_of(node: Node) -> dict[str, object]:
    """What a person looks at who is asked to approve a node again."""
    return {"type": node.type.value, **place_of(node), "registered_from": node.registered_from}


def place_of(node: Node) -> dict[str, object]:
    return {"address": node.address, "http_address": node.http_address}


def _machine_of(node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "labels": {key: value for key, value in node.labels.reported.items() if key not in AUTOMATIC},
        "total_ram": node.capacity.total_ram,
        "total_vram": node.capacity.total_vram,
        "gpu_vendor": node.gpu.vendor,
        "gpu_compute_capability": node.gpu.compute_capability,
        "gpus": {card.id: card.total for card in node.cards},
    }


def _difference(before: Mapping[str, object], after: Mapping[str, object]) -> Difference:
    names = [name for name in before if not _is_same(before[name], after[name])]
    return Difference({name: before[name] for name in names}, {name: after[name] for name in names})


def _is_same(before: object, after: object) -> bool:
    if isinstance(before, int) and isinstance(after, int):
        return abs(before - after) <= _NEGLIGIBLE * max(before, after)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and all(_is_same(before[key], after[key]) for key in before)
    return before == after


class HardwareNews:
    """Decides when a change that comes with heartbeats becomes an event: the first one at once, others of the node
    later.

    The next event is compared with the last one, so a driver that comes back causes none.
    """

    def __init__(self) -> None:
        self._told_at: dict[NodeId, datetime] = {}
        self._untold: dict[NodeId, Node] = {}
        """Nodes as their last event described them, where that has changed since."""

    def of(self, before: Node, after: Node, now: datetime) -> Difference | None:
        """What to tell of a heartbeat; None when there is nothing, or not yet."""
        last = self._untold.get(after.id)
        if last is None and _reports_the_same(before, after):
            return None
        if last is None or last.revision != before.revision:  # a registration has reported this already
            last = before
        self._untold.pop(after.id, None)
        difference = change_of(last, after)
        if not difference.before:
            return None
        told_at = self._told_at.get(after.id)
        if told_at is not None and timedelta(0) <= now - told_at < TOLD_EVERY:
            self._untold[after.id] = last
            return None
        self._told_at = {id: at for id, at in self._told_at.items() if now - at < TOLD_EVERY} | {after.id: now}
        return difference


def _reports_the_same(before: Node, after: Node) -> bool:
    """Whether a heartbeat cannot have changed the hardware: looked at for every one of them, so it must cost little."""
    totals = (before.capacity.total_vram, before.capacity.total_ram) == (
        after.capacity.total_vram,
        after.capacity.total_ram,
    )
    cards = len(before.cards) == len(after.cards) and all(
        card.id == other.id and card.total == other.total for card, other in zip(before.cards, after.cards, strict=True)
    )
    return totals and cards and before.gpu == after.gpu
