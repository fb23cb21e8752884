"""A node as the columns of its row, and back. Only this package calls this; outlines are known outside, too."""

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import JSON, ColumnElement, RowMapping, Text, cast

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import (
    Capacity,
    Gpu,
    GpuCard,
    Node,
    NodeFacts,
    NodeStatus,
    NodeType,
    Peer,
    Suspicion,
)
from corral.frontend.store.dialect import from_json, microseconds
from corral.frontend.store.schema import nodes
from corral.wire.confinement import ConfinementReport
from corral.wire.labels import NodeLabels
from corral.wire.registration import CAPACITY_FIELDS, Feature


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to find a node among thousands, and to count it: a quarter of the work that a whole node is."""

    id: NodeId
    name: str
    type: NodeType
    facts: NodeFacts
    """Only those that status follows from."""


def registered_values(node: Node) -> dict[str, object]:
    """The columns of people and of registration."""
    facts, labels, peer = node.facts, node.labels, None
    if node.peer is not None:
        peer = {**msgspec.to_builtins(node.peer), "features": sorted(node.peer.features)}
    return {
        "name": node.name,
        "type": node.type.value,
        "address": node.address,
        "http_address": node.http_address,
        "stated_interval": facts.stated_interval,
        "gpu_compute_capability": node.gpu.compute_capability,
        "capability": node.capability,
        "reported_labels": dict(labels.reported),
        "reported_max_replicas": node.reported_max_replicas,
        "reported_vram_budget": node.reported_vram_budget,
        "peer": peer,
        "secret_hash": node.secret_hash,
        "fingerprint": node.fingerprint or None,
        "invitation_id": node.invitation_id,
        "nats_login": node.nats_login,
        "confinement": None if node.confinement is None else msgspec.to_builtins(node.confinement),
        "registered_at": node.registered_at,
        "registered_from": node.registered_from,
        "suspicion": facts.suspicion,
        "approved_at": facts.approved_at,
        "approved_by": facts.approved_by,
        "draining_since": facts.draining_since,
        "draining_by": facts.draining_by,
        "deregistered_at": facts.deregistered_at,
        "admin_labels": dict(labels.admin),
        "removed_labels": sorted(labels.removed),
        "admin_max_replicas": node.admin_max_replicas,
        "admin_vram_budget": node.admin_vram_budget,
        "cards_out": sorted(node.cards_out),
        "updated_at": node.updated_at,
    }


def heartbeat_values(node: Node) -> dict[str, object]:
    """The columns that a heartbeat writes, with this node's values."""
    return {
        "last_heartbeat": node.facts.last_heartbeat,
        "recent_gaps": [microseconds(gap) for gap in node.facts.recent_gaps],
        "no_responders_at": node.facts.no_responders_at,
        "incarnation": node.facts.incarnation,
        **{name: getattr(node.capacity, name) for name in CAPACITY_FIELDS},
        "gpu_vendor": node.gpu.vendor,
        "cards": [_card_document(card) for card in node.cards],
        "problems": list(node.problems),
    }


def _selected(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Documents come as text: reading them here takes half the time that it takes the driver."""
    return cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column


NODE: Final = tuple(_selected(column) for column in nodes.c)
"""What to select for `node_from`."""
PEER: Final = _selected(nodes.c.peer)
"""What to select for `has_feature`."""

OUTLINE: Final = tuple(
    _selected(nodes.c[name])
    for name in (
        "id",
        "name",
        "type",
        "approved_at",
        "draining_since",
        "deregistered_at",
        "last_heartbeat",
        "stated_interval",
        "recent_gaps",
        "no_responders_at",
    )
)
"""What to select for `outline_from`, in its order."""


def has_feature(peer: str | None, feature: Feature) -> bool:
    """Whether what a worker said of itself names an extension."""
    return peer is not None and feature in from_json(peer).get("features", ())


def node_from(row: RowMapping) -> Node:
    cards_out = frozenset(from_json(row["cards_out"]) if row["cards_out"] else ())
    return Node(
        id=row["id"],
        name=row["name"],
        type=NodeType(row["type"]),
        address=row["address"],
        http_address=row["http_address"],
        registered_from=row["registered_from"] or "",
        facts=NodeFacts(
            approved_at=row["approved_at"],
            approved_by=row["approved_by"],
            suspicion=None if row["suspicion"] is None else Suspicion(row["suspicion"]),
            draining_since=row["draining_since"],
            draining_by=row["draining_by"],
            deregistered_at=row["deregistered_at"],
            last_heartbeat=row["last_heartbeat"],
            stated_interval=row["stated_interval"],
            recent_gaps=_gaps_from(row["recent_gaps"]),
            no_responders_at=row["no_responders_at"],
            incarnation=row["incarnation"],
        ),
        capacity=Capacity(**{name: row[name] for name in CAPACITY_FIELDS}),
        gpu=Gpu(vendor=row["gpu_vendor"], compute_capability=row["gpu_compute_capability"]),
        cards=_cards_from(row["cards"], cards_out),
        cards_out=cards_out,
        capability=row["capability"],
        labels=NodeLabels(
            reported=from_json(row["reported_labels"]),
            admin=from_json(row["admin_labels"]),
            removed=frozenset(from_json(row["removed_labels"])),
        ),
        reported_max_replicas=row["reported_max_replicas"],
        admin_max_replicas=row["admin_max_replicas"],
        reported_vram_budget=row["reported_vram_budget"],
        admin_vram_budget=row["admin_vram_budget"],
        peer=None if row["peer"] is None else _peer_from(row["peer"]),
        secret_hash=row["secret_hash"],
        invitation_id=row["invitation_id"],
        nats_login=row["nats_login"],
        confinement=None if row["confinement"] is None else _confinement_from(row["confinement"]),
        problems=tuple(from_json(row["problems"])),
        announced=None if row["announced"] is None else NodeStatus(row["announced"]),
        created_at=row["created_at"],
        registered_at=row["registered_at"] or row["updated_at"],
        updated_at=row["updated_at"],
        revision=row["revision"],
    )


@lru_cache(maxsize=256)  # a fleet of thousands has few kinds of machines
def _peer_from(text: str) -> Peer:
    return msgspec.convert(from_json(text), Peer)


@lru_cache(maxsize=256)
def _confinement_from(text: str) -> ConfinementReport:
    return msgspec.convert(from_json(text), ConfinementReport)


def outline_from(row: Sequence[Any]) -> Outline:
    id, name, type, approved, draining, deregistered, last_heartbeat, interval, gaps, no_responders = row
    return Outline(
        id=id,
        name=name,
        type=NodeType(type),
        facts=NodeFacts(
            approved_at=approved,
            draining_since=draining,
            deregistered_at=deregistered,
            last_heartbeat=last_heartbeat,
            stated_interval=interval,
            recent_gaps=_gaps_from(gaps),
            no_responders_at=no_responders,
        ),
    )


def _card_document(card: GpuCard) -> dict[str, object]:
    """What a node reports; whether it is out of service is a column of its own, since people own that."""
    return {
        "id": card.id,
        "index": card.index,
        "name": card.name,
        "vendor": card.vendor,
        "total": card.total,
        "free": card.free,
        "shares_ram": card.shares_ram,
    }


def _cards_from(document: str | None, out: frozenset[str]) -> tuple[GpuCard, ...]:
    """Empty in rows from before there was this column."""
    cards = from_json(document) if document else ()
    return tuple(msgspec.convert({**card, "is_out": card["id"] in out}, GpuCard) for card in cards)


def _gaps_from(document: str) -> tuple[timedelta, ...]:
    return tuple(timedelta(microseconds=gap) for gap in from_json(document))
