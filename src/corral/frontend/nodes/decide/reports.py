"""What a node says of itself: the addresses that may be its own, its processes, and its GPUs."""

import ipaddress
import re
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple, TypeGuard

import msgspec

from corral.base.values import PartlyPrinted
from corral.frontend.nodes.decide.node import Node, ReportedCard
from corral.wire.registration import Feature

_ZONE: Final = r"(?:%[A-Za-z0-9._~-]+)?"
"""Of addresses that only hold on one link: the name of the interface that leads there."""
_HOST_PORT: Final = rf"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+{_ZONE})\]|(?P<plain>[^\[\]:/@?#\\\s]*)):(?P<port>[0-9]{{1,5}})"
_ADDRESS: Final = re.compile(_HOST_PORT)
_PORTLESS: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#\\\s]+")
_URL: Final = re.compile(rf"https?://{_HOST_PORT}(?:/[A-Za-z0-9._~/-]*)?")
_LOCAL_NAMES: Final = frozenset({"", "localhost"})
_LARGEST_PORT: Final = 65535


class NodeContact(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of a node before it is contacted, and before its answers are believed."""

    name: str
    is_approved: bool
    address: str
    http_address: str
    joined_at: datetime
    """When it registered or was approved, whichever came last."""
    has_tls: bool = False
    """The worker speaks only TLS, at its HTTP address: see `wire/fleet_tls.py`."""
    can_confine: bool = False
    """The worker applies the confinement policies that it gets."""

    def has_address(self, address: str) -> bool:
        """Whether this `host:port` is on the node's registered host."""
        return _is_on(_ADDRESS.fullmatch(address), self.address)

    def dialled(self, address: str) -> str | None:
        """The `host:port` to dial for an address that the node answers with; None if it is not on the node's host.

        A LocalAI worker that was told to advertise a host without a port answers with loopback and the port.
        """
        if self.has_address(address):
            return with_host(address)
        match, host = _ADDRESS.fullmatch(address), _PORTLESS.fullmatch(self.address.strip())
        if match is None or host is None or not _is_loopback(match):
            return None
        return f"{self.address.strip()}:{match['port']}"

    def has_own_address(self, address: str) -> bool:
        """Whether it is on that host, or on loopback as workers list their processes: nobody may dial the latter."""
        if self.has_address(address):
            return True
        match = _ADDRESS.fullmatch(address)
        return match is not None and _is_loopback(match)

    def has_url(self, url: str) -> bool:
        """Whether this is a plain HTTP URL with a port on the node's registered host."""
        return _is_on(_URL.fullmatch(url), self.address)


def with_host(address: str) -> str:
    """The `host:port` to dial. Without a host it means this machine, as it does for Go."""
    return f"localhost{address}" if address.startswith(":") else address


def contact_of(node: Node) -> NodeContact:
    features = frozenset() if node.peer is None else node.peer.features
    return NodeContact(
        name=node.name,
        is_approved=node.facts.approved_at is not None,
        address=node.address,
        http_address=with_host(node.http_address),
        joined_at=node.joined_at,
        has_tls=Feature.FLEET_TLS in features,
        can_confine=Feature.CONFINEMENT in features,
    )


def _is_on(match: re.Match[str] | None, registered: str) -> bool:
    if match is None or not 1 <= int(match["port"]) <= _LARGEST_PORT:
        return False
    node_address = _ADDRESS.fullmatch(registered)
    return node_address is not None and _host(match) == _host(node_address)


def _is_loopback(match: re.Match[str]) -> bool:
    try:
        return 1 <= int(match["port"]) <= _LARGEST_PORT and ipaddress.ip_address(_host(match)).is_loopback
    except ValueError:
        return False


def _host(match: re.Match[str]) -> str:
    return _one_spelling(match["plain"] if match["bracketed"] is None else match["bracketed"])


@lru_cache(maxsize=4096)  # every answer to an install has one
def _one_spelling(host: str) -> str:
    """One spelling per host: IP addresses in their shortest form, names in lower case, no name is this machine."""
    text = host.lower().removesuffix(".")
    try:
        ip = ipaddress.ip_address("127.0.0.1" if text in _LOCAL_NAMES else text)
    except ValueError:
        return text
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)


def moved(place: str, before: Node, after: Node) -> str:
    """A `host:port` or a URL of a process on a node, after the node moved; what is elsewhere stays as it is."""
    match = _ADDRESS.fullmatch(place) or _URL.fullmatch(place)
    new_address = _ADDRESS.fullmatch(after.address)
    if match is None or new_address is None or not _is_on(match, before.address):
        return place
    host = after.address[: new_address.start("port")]
    scheme = place[: match.start("bracketed" if match["bracketed"] is not None else "plain")].removesuffix("[")
    return f"{scheme}{host}{place[match.start('port') :]}"


class Reach(NamedTuple):
    """How requests reach a process. Two are compared to see whether a node reports something new."""

    url: str
    key: str
    routes: tuple[str, ...] | None
    front_port: int
    token: str


class ReportedProcess(PartlyPrinted, frozen=True, kw_only=True):
    """What a node reports of one process that runs for a model."""

    unprinted = ("key", "token")

    model: str
    index: int
    address: str
    url: str = ""
    key: str = ""
    routes: tuple[str, ...] | None = None
    front_port: int = 0
    token: str = ""
    """What it wants to hear over gRPC; empty where that is the node's secret or the shared token."""

    @property
    def reach(self) -> Reach:
        """How requests reach the replica that this process serves."""
        return Reach(self.url, self.key, self.routes, self.front_port, self.token)

    @property
    def process_key(self) -> str:
        """The name that the node has for it."""
        return f"{self.model}#{self.index}"


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


MOST_CARDS: Final = 64
"""More than any machine has; who reports more is lying or broken."""
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""UUIDs and addresses on PCI. Ids stand in URLs, in the database and, on their own machine, in the environment."""
_LONGEST_NAME: Final = 128
_LARGEST: Final = 2**63 - 1
_MOST_PROBLEMS: Final = 5
_SHOWN: Final = 40


class CardsRead(NamedTuple):
    cards: tuple[ReportedCard, ...] | None
    """None when nothing was said of GPUs, or nothing that can be read: what is known stays."""
    problems: tuple[str, ...] = ()


def read_cards(document: object) -> CardsRead:
    """A list of `CardReport` as it came over the wire."""
    if document is None:
        return CardsRead(None)
    if not isinstance(document, list):
        return CardsRead(None, (f"corral.cards: expected a list, got {shown(document)}; ignored",))
    cards: dict[str, ReportedCard] = {}
    problems: list[str] = []
    for number, entry in enumerate(document[:MOST_CARDS]):
        card = _read_card(entry)
        if isinstance(card, str):
            problems.append(f"corral.cards[{number}]: {card}; ignored")
        elif card.id in cards:
            problems.append(f"corral.cards[{number}].id: {card.id!r} is there twice; ignored")
        else:
            cards[card.id] = card
    problems = problems[:_MOST_PROBLEMS]
    if len(document) > MOST_CARDS:
        problems.append(f"corral.cards: {len(document)} GPUs; those after the first {MOST_CARDS} are ignored")
    return CardsRead(tuple(cards.values()), tuple(problems))


def _read_card(entry: object) -> ReportedCard | str:
    """One card, or what is wrong with it."""
    if not isinstance(entry, dict):
        return f"expected an object, got {shown(entry)}"
    id, total, free = entry.get("id"), entry.get("total"), entry.get("free")
    if not isinstance(id, str) or _ID.fullmatch(id) is None:
        return f"id: expected letters, digits and . _ : - (at most 128), got {shown(id)}"
    if not _is_size(total) or total == 0:
        return f"total: expected a number of bytes, got {shown(total)}"
    if free is not None and not _is_size(free):
        return f"free: expected a number of bytes, got {shown(free)}"
    index = entry.get("index", 0)  # workers leave out a zero
    return ReportedCard(
        id=id,
        index=index if _is_size(index) and index < MOST_CARDS else None,
        name=_text(entry.get("name")),
        vendor=_text(entry.get("vendor")),
        total=total,
        free=free,
        shares_ram=entry.get("shares_ram") is True,
    )


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _text(value: object) -> str:
    """A name for people: cut, and without what would spoil a terminal."""
    text = value[:_LONGEST_NAME] if isinstance(value, str) else ""
    return text if text.isprintable() else "".join(filter(str.isprintable, text))


def shown(value: object) -> str:
    """The beginning of a value that was sent, for a sentence about it."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
