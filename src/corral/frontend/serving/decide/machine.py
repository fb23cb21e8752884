"""What is free on a machine: what it reports, less what was promised to replicas that its report cannot know of yet.

A report that promises more than the machine has, less all that was given away there, is not believed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from corral.frontend.nodes.decide.node import Node
from corral.frontend.serving.decide.cards import CardRoom
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState

_WITHOUT_GPU: Final = "default"
"""The capability of a machine that gets builds for processors, because its GPUs are too small, or a person said so."""
ALL_CARDS: Final = ""
"""Stands for the GPUs of a machine that tells only their sums."""
_UNSEEN: Final = frozenset({ReplicaState.RESERVED, ReplicaState.STAGING, ReplicaState.LOADING})


class MachineRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What is free, in bytes. None: the machine does not say, or there is no limit."""

    cards: tuple[CardRoom, ...] = ()
    """Its GPUs; none for a machine without."""
    vram_budget: int | None = None
    """What its owner lets models take of all GPUs together, less what they have."""
    ram: int | None = None
    disk: int | None = None
    shares_ram: bool = False
    """Whether GPUs use the memory of the machine, so that what they take is taken twice."""
    free: int = 0
    """Memory of all kinds that is free together, as far as the machine says."""
    free_share: float = 0.0
    """The part of its memory that this is."""
    by_room: tuple[tuple[int, str], ...] = ()
    """The room and the id of the GPUs that are in service, the tightest first."""

    def tightest_card(self, vram: int) -> str | None:
        """The id of the GPU with the least free memory that is enough. None: no GPU has enough, or the need is
        unknown."""
        if not vram or (self.vram_budget is not None and vram > self.vram_budget):
            return None
        at = bisect_left(self.by_room, (vram, ""))
        return self.by_room[at][1] if at < len(self.by_room) else None


class KnownRoom(NamedTuple):
    """What was found to be free on a node that has these replicas."""

    node: Node
    replicas: tuple[Replica, ...]
    room: MachineRoom
    beside: tuple[Replica, ...] = ()
    """Replicas of other nodes on the same machine."""


def room_of(node: Node, replicas: Iterable[Replica], beside: Iterable[Replica] = ()) -> MachineRoom:
    """What is free on a node that has these replicas, with those `beside` it of nodes on the same machine.

    What ended on such a node counts as taken until this one reports its memory again.
    """
    living = [replica for replica in replicas if replica.state in LIVE]
    living_beside = [replica for replica in beside if replica.state in LIVE]
    unseen = [replica for replica in living if _is_unseen(replica, node)]
    unseen_beside = [replica for replica in living_beside if _is_unseen(replica, node)]
    capacity = node.capacity
    budget = node.vram_budget_bytes
    cards = _cards(node, living, unseen, beside=living_beside, unseen_beside=unseen_beside)
    vram_budget = max(budget - sum(replica.vram for replica in living), 0) if budget else None
    ram = _left(
        capacity.total_ram,
        capacity.available_ram,
        all_taken=sum(replica.ram for replica in (*living, *living_beside)),
        not_seen=sum(replica.ram for replica in (*unseen, *unseen_beside)),
    )
    free, total = _free(cards, vram_budget, ram), capacity.total_vram + capacity.total_ram
    return MachineRoom(
        cards=cards,
        vram_budget=vram_budget,
        ram=ram,
        disk=capacity.available_disk if capacity.total_disk else None,
        shares_ram=any(card.shares_ram for card in node.cards),
        free=free,
        free_share=min(free / total, 1.0) if total else 0.0,
        by_room=tuple(sorted((card.room, card.id) for card in cards if not card.is_out)),
    )


def _free(cards: Iterable[CardRoom], vram_budget: int | None, ram: int | None) -> int:
    on_cards = sum(card.room for card in cards if not card.is_out)
    return (on_cards if vram_budget is None else min(on_cards, vram_budget)) + (ram or 0)


def _is_unseen(replica: Replica, node: Node) -> bool:
    """Whether the machine's last report was made before the replica had its memory."""
    is_new = replica.state is ReplicaState.LOADED and replica.changed_at >= node.facts.last_heartbeat
    return replica.state in _UNSEEN or is_new


def _left(total: int, available: int, *, all_taken: int, not_seen: int) -> int | None:
    """None for a machine that does not report it."""
    return max(min(available - not_seen, total - all_taken), 0) if total else None


def _cards(
    node: Node,
    living: Sequence[Replica],
    unseen: Sequence[Replica],
    *,
    beside: Sequence[Replica],
    unseen_beside: Sequence[Replica],
) -> tuple[CardRoom, ...]:
    """Its GPUs. Those that tell an id are shared with other nodes of the machine; of sums nobody knows that."""
    if node.capability == _WITHOUT_GPU:
        return ()
    if not node.cards:
        total = node.capacity.total_vram
        free = _left(
            total,
            node.capacity.available_vram,
            all_taken=sum(replica.vram for replica in living),
            not_seen=sum(replica.vram for replica in unseen),
        )
        return () if free is None else (CardRoom(id=ALL_CARDS, free=free, total=total),)
    return tuple(
        CardRoom(
            id=card.id,
            free=_left(
                card.total,
                card.free,
                all_taken=_on(card.id, (*living, *beside)),
                not_seen=_at_most_on(card.id, (*unseen, *unseen_beside)),
            )
            or 0,
            total=card.total,
            is_out=card.is_out,
        )
        for card in node.cards
    )


def _on(card: str, replicas: Iterable[Replica]) -> int:
    """What these replicas take of one card. One that may use several is counted in equal parts."""
    return sum(-(-replica.vram // len(replica.cards)) for replica in replicas if card in replica.cards)


def _at_most_on(card: str, replicas: Iterable[Replica]) -> int:
    """What these replicas may take of one card: where an engine spreads a model, it alone knows how."""
    return sum(replica.vram for replica in replicas if card in replica.cards)


def given_back(node: Node, ended: Iterable[Replica]) -> Node:
    """The node as it would report itself after these replicas of its ended; those that it has not seen yet took
    nothing."""
    seen = [replica for replica in ended if replica.node_id == node.id and not _is_unseen(replica, node)]
    if not seen:
        return node
    capacity = node.capacity
    ram, vram = sum(replica.ram for replica in seen), sum(replica.vram for replica in seen)
    return replace(
        node,
        capacity=replace(
            capacity,
            available_ram=min(capacity.available_ram + ram, max(capacity.total_ram, capacity.available_ram)),
            available_vram=min(capacity.available_vram + vram, max(capacity.total_vram, capacity.available_vram)),
        ),
        cards=tuple(replace(card, free=card.free + _on(card.id, seen)) for card in node.cards),
    )
