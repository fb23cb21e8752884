"""Answers about nodes, and registrations as values."""

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from corral.base.errors import InvalidInput
from corral.base.ids import Incarnation
from corral.frontend.nodes.decide.liveness import Heartbeat, LivenessPolicy, heartbeat_interval
from corral.frontend.nodes.decide.node import SUSPICIONS, GpuCard, Node, NodeLoad, NodeType, Peer, SeenNode
from corral.frontend.nodes.decide.registration import Registration
from corral.frontend.nodes.decide.reports import read_cards, shown
from corral.frontend.record.decide import Event
from corral.wire.confinement import read_confinement
from corral.wire.go_json import format_time, read_object
from corral.wire.keys import MAX_SECRET, MIN_SECRET, hash_secret
from corral.wire.labels import label_problem
from corral.wire.nodes import MAX_VRAM_BUDGET, CardView, NodeChangeView, NodeDetail, NodeView, PeerView, VramBudget
from corral.wire.registration import (
    CAPACITY_FIELDS,
    MAX_ADDRESS,
    MAX_NAME,
    CorralHello,
    Feature,
    NatsLogin,
    RegisterRequest,
)

_LARGEST: Final = 2**63 - 1
_LONGEST_INTERVAL: Final = timedelta(hours=1)
_SHOWN: Final = 40
_MOST_PROBLEMS: Final = 10
_LONGEST_PROBLEM: Final = 500
"""Problems with labels that one registration reports at most."""


def node_view(seen: SeenNode, load: NodeLoad) -> NodeView:
    node = seen.node
    capacity = node.capacity
    return NodeView(
        id=node.id,
        name=node.name,
        node_type=node.type.value,
        address=node.address,
        http_address=node.http_address,
        status=seen.status.value,
        total_vram=capacity.total_vram,
        available_vram=node.usable_vram,
        reserved_vram=0,
        total_ram=capacity.total_ram,
        available_ram=capacity.available_ram,
        total_disk=capacity.total_disk,
        available_disk=capacity.available_disk,
        gpu_vendor=node.gpu.vendor,
        gpu_compute_capability=node.gpu.compute_capability,
        capability=node.capability or UNSET,
        max_replicas_per_model=node.max_replicas_per_model,
        max_replicas_per_model_manually_set=node.admin_max_replicas is not None,
        vram_budget=node.vram_budget or UNSET,
        vram_budget_bytes=node.vram_budget_bytes or UNSET,
        vram_budget_manually_set=node.admin_vram_budget is not None,
        last_heartbeat=format_time(node.facts.last_heartbeat),
        created_at=format_time(node.created_at),
        updated_at=format_time(max(node.updated_at, node.facts.last_heartbeat)),
        model_count=load.loaded,
        in_flight_count=load.in_flight,
        labels=node.labels.effective,
    )


def node_detail(seen: SeenNode, load: NodeLoad, policy: LivenessPolicy) -> NodeDetail:
    node, facts, peer = seen.node, seen.node.facts, None
    if node.peer is not None:
        features = sorted(node.peer.features)
        peer = PeerView(version=node.peer.version, features=features, platform=node.peer.platform)
    suspicions = [] if facts.suspicion is None else [f"only a person may approve it: {SUSPICIONS[facts.suspicion]}"]
    return NodeDetail(
        **asdict(node_view(seen, load)),
        in_flight=load.in_flight if load.is_known else None,
        approved=facts.approved_at is not None,
        approved_by=facts.approved_by,
        approved_at=_time(facts.approved_at),
        draining=facts.draining_since is not None,
        draining_by=facts.draining_by,
        draining_since=_time(facts.draining_since),
        deregistered_at=_time(facts.deregistered_at),
        silent_seconds=round(seen.silent_seconds, 3),
        heard_seconds_ago=round(seen.heard_seconds_ago, 3),
        heartbeat_seconds=heartbeat_interval(facts, policy).total_seconds(),
        has_secret=node.secret_hash is not None,
        incarnation=facts.incarnation,
        corral=peer,
        problems=[*suspicions, *node.problems],
        admin_labels=dict(node.labels.admin),
        removed_labels=sorted(node.labels.removed),
        cards=[card_view(card) for card in node.cards],
        fingerprint=node.fingerprint,
        nats_login=node.nats_login,
        confinement=node.confinement,
        invitation=node.invitation_id,
    )


def change_view(event: Event) -> NodeChangeView:
    before, after = event.data.get("before"), event.data.get("after")
    return NodeChangeView(
        at=format_time(event.at),
        kind=event.kind.value,
        before=before if isinstance(before, dict) else {},
        after=after if isinstance(after, dict) else {},
    )


def card_views(node: Node, replicas: Mapping[str, Sequence[str]]) -> list[CardView]:
    """All GPUs of a node, also those that are out of service and not reported now. `replicas` are the process keys of
    those that may use each."""
    unreported = node.cards_out - {card.id for card in node.cards}
    cards = (*node.cards, *(GpuCard(id=id, total=0, free=0, is_out=True) for id in sorted(unreported)))
    return [card_view(card, replicas.get(card.id, ())) for card in cards]


def card_view(card: GpuCard, replicas: Sequence[str] = ()) -> CardView:
    return CardView(
        id=card.id,
        index=card.index,
        name=card.name,
        vendor=card.vendor,
        total=card.total,
        free=card.free,
        shares_ram=card.shares_ram,
        is_out=card.is_out,
        replicas=list(replicas),
    )


def _time(time: datetime | None) -> str | None:
    return None if time is None else format_time(time)


def read_registration(request: RegisterRequest) -> Registration:
    """Check everything that must hold; InvalidInput carries the sentence for the caller."""
    try:
        node_type = NodeType(request.node_type or NodeType.BACKEND)
    except ValueError:
        problem = f'invalid node_type "{request.node_type[:_SHOWN]}"; must be "backend" or "agent"'
        raise InvalidInput("", problem) from None
    _check_text("name", request.name, MAX_NAME)
    if node_type is NodeType.BACKEND and not request.address:
        raise InvalidInput("", "address is required for backend workers")
    _check_text("address", request.address, MAX_ADDRESS)
    _check_text("http_address", request.http_address, MAX_ADDRESS)
    labels, label_problems = _labels({} if request.labels is UNSET else request.labels)
    hello = None if request.corral is UNSET else request.corral
    peer = None
    if hello is not None:
        platform, features = hello.platform[:_SHOWN], frozenset(hello.features)
        peer = Peer(
            version=hello.version,
            features=features,
            platform=platform,
            has_one_disk=hello.one_disk,
            memory_pool=hello.memory_pool[:_SHOWN],
        )
    secret = secret_of(request)
    if secret is not None and not MIN_SECRET <= len(secret) <= MAX_SECRET:
        raise InvalidInput("corral.secret", f"must have {MIN_SECRET} to {MAX_SECRET} characters")
    interval, interval_problem = _interval(hello)
    budget, budget_problem = _budget(request.vram_budget)
    cards, card_problems = read_cards(None if hello is None else hello.cards)
    measured, size_problems = _sizes({name: getattr(request, name) for name in CAPACITY_FIELDS})
    return Registration(
        name=request.name,
        type=node_type,
        address=request.address,
        http_address=request.http_address,
        measured=measured,
        gpu_vendor=_said(request.gpu_vendor),
        gpu_compute_capability=_said(request.gpu_compute_capability),
        capability=_said(request.capability),
        cards=cards or (),
        max_replicas_per_model=max(request.max_replicas_per_model, 1),
        vram_budget=budget,
        labels=labels,
        peer=peer,
        confinement=None if hello is None else read_confinement(hello.confinement),
        secret_hash=None if secret is None else hash_secret(secret),
        nats_login=hello.nats_login if hello is not None and hello.nats_login in list(NatsLogin) else None,
        incarnation=Incarnation("" if hello is None else hello.incarnation),
        interval=interval,
        problems=tuple(
            filter(None, (*size_problems, *label_problems, budget_problem, interval_problem, *card_problems))
        ),
    )


def secret_of(request: RegisterRequest) -> str | None:
    """The worker's own secret, when both sides can use one."""
    hello = request.corral
    if hello is UNSET or Feature.NODE_SECRET not in hello.features or not hello.secret:
        return None
    return hello.secret


def _check_text(field: str, text: str, longest: int) -> None:
    if field == "name" and not text.strip():
        raise InvalidInput("", "name is required")
    if len(text) > longest:
        raise InvalidInput("", f"{field} exceeds {longest} characters")
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise InvalidInput("", f"{field} contains control characters")


def _interval(hello: CorralHello | None) -> tuple[timedelta | None, str]:
    if hello is None or hello.heartbeat_seconds == 0:
        return None, ""
    if not 0 < hello.heartbeat_seconds <= _LONGEST_INTERVAL.total_seconds():
        return None, f"corral.heartbeat_seconds: {hello.heartbeat_seconds} is not between 0 and 3600; ignored"
    return timedelta(seconds=hello.heartbeat_seconds), ""


def _budget(text: str) -> tuple[str, str]:
    """LocalAI admits a node with a budget that makes no sense; so do we, but it is shown."""
    try:
        VramBudget.read(text)
    except ValueError as error:
        return text[:MAX_VRAM_BUDGET], f"vram_budget: {error}; no budget is applied"
    return text, ""


def _labels(reported: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """LocalAI's frontends turn no worker away for its labels: those that cannot be kept are left out and shown."""
    usable: dict[str, str] = {}
    problems: list[str] = []
    for key, value in reported.items():
        if problem := label_problem({**usable, key: value}):
            problems.append(f"labels: {problem}; ignored")
        else:
            usable[key] = value
    return usable, problems[:_MOST_PROBLEMS]


def _sizes(reported: Mapping[str, object]) -> tuple[dict[str, int], list[str]]:
    """The sizes that can be used and stored, and what is wrong with the others."""
    usable: dict[str, int] = {}
    problems: list[str] = []
    for name, value in reported.items():
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
            usable[name] = value
        elif value is not UNSET:
            problems.append(f"{name}: expected a number of bytes, got {shown(value)}; ignored")
    return usable, problems


def _said(text: str | UnsetType) -> str | None:
    return None if text is UNSET else text


def read_heartbeat(body: bytes, at: datetime) -> Heartbeat:
    """Never refuses: what cannot be used is named in `problems`, and the known value stays."""
    if not body:
        return Heartbeat(at=at)
    try:
        document = read_object(body)
    except InvalidInput as error:
        return Heartbeat(at=at, problems=(f"heartbeat body: {error.problem}",))
    # As LocalAI does: whatever the case of names, the exact one before others, and null as if nothing were said.
    lowered = {key.lower(): value for key, value in document.items() if value is not None}
    fields = {name: document.get(name, value) for name, value in lowered.items()}
    measured, problems = _sizes({name: fields.get(name, UNSET) for name in CAPACITY_FIELDS})
    corral = fields.get("corral")
    extension = corral if isinstance(corral, dict) else {"incarnation": corral}
    gpu_vendor = _take_text("gpu_vendor", fields.get("gpu_vendor"), problems)
    incarnation = _take_text("corral.incarnation", extension.get("incarnation"), problems)
    inventory = _take_text("corral.inventory", extension.get("inventory"), problems)
    cards, card_problems = read_cards(extension.get("cards"))
    problems += _own_problems(extension.get("problems"))
    return Heartbeat(
        at=at,
        measured=measured,
        gpu_vendor=gpu_vendor,
        cards=cards,
        incarnation=Incarnation(incarnation) if incarnation else None,
        inventory=inventory or "",
        problems=(*problems, *card_problems),
    )


def _own_problems(value: object) -> list[str]:
    """What a worker found wrong with itself, as far as it is text."""
    problems = value if isinstance(value, list) else []
    return [text[:_LONGEST_PROBLEM] for text in problems if isinstance(text, str) and text][:_MOST_PROBLEMS]


def _take_text(name: str, value: object, problems: list[str]) -> str | None:
    if value is None or (isinstance(value, str) and len(value) <= MAX_NAME):
        return value
    problems.append(f"{name}: expected a short text, got {shown(value)}; ignored")
    return None
