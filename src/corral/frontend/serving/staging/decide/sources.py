"""Who sends a file to a node: the frontend, a node that has it, or the server that it came from. Pure.

Of each file, a source serves only a few nodes at a time. The others wait for the first of these to have it, which serve
it then: the number of sources grows with every round, so forty nodes do not wait for the cable of one frontend.
Whatever the source is, the digest of the file decides whether it is taken.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec

from corral.base.ids import NodeId
from corral.base.setting_kinds import SettingKind, duration, items, size, whole
from corral.base.settings import setting
from corral.hubs.plans import PlannedFile


class SourceKind(StrEnum):
    """Where the bytes of a file come from."""

    FRONTEND = "frontend"
    """It sends them itself, or through the object storage."""
    PEERS = "peers"
    """Nodes that have the file."""
    ORIGIN = "origin"
    """The public server that the model was downloaded from."""


SOURCES: Final = SettingKind(
    placeholder="SOURCE[,SOURCE…]",
    allowed="one or several of frontend, peers and origin, comma-separated, the first choice first",
    read=items(lambda word: SourceKind(word.lower())),
)
_TIB: Final = "1048576GiB"
_OPEN_HUBS: Final = frozenset({"", "hf"})
"""Hubs that give public files to everybody who has the URL."""
_NO_NODE: Final = NodeId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingPolicy:
    """Where nodes get the files of models from, and how much of their disks these may fill."""

    order: tuple[SourceKind, ...] = setting(
        SOURCES,
        """Where a node gets a large file of a model from, the first choice first: `frontend` sends it, `peers` are
        nodes that have it, `origin` is the public server that it was downloaded from. By default the frontend, and
        other nodes once several want the same file. The frontend is also asked when everything else fails; only
        Corral's workers fetch by themselves.""",
        name="staging_sources",
        default="frontend,peers",
    )
    fan_out: int = setting(
        whole(1, 64),
        """How many nodes get the same file from one source at the same time; others wait until one more node has it.
        2: with each round three times as many nodes can serve it.""",
        name="staging_fan_out",
        default=2,
    )
    least_bytes: int = setting(
        size("0", _TIB),
        """Files smaller than this are always sent by the frontend: asking around takes longer than sending them.
        64 MiB takes half a second over a line of one gigabit.""",
        name="staging_peer_min_size",
        default="64MiB",
    )
    patience: timedelta = setting(
        duration("0s", "24h"),
        """How long a node waits for another one to have a file before the frontend sends it all the same. 5 minutes:
        a slow machine at the head of the queue holds the others up no longer than that.""",
        name="staging_patience",
        default="5m",
    )
    reserve_bytes: int = setting(
        size("0", _TIB),
        """What stays free on the disk of a node, at least, when files of models are brought there; 5 % of these files
        if that is more. To make room, files that were brought there before and that nothing needs are deleted, the
        longest unused first. 1 GiB, as LocalAI has it.""",
        name="node_min_free",
        default="1GiB",
    )


class FileSource(msgspec.Struct, frozen=True):
    """One place that serves a file."""

    kind: SourceKind
    node_id: NodeId = _NO_NODE
    """Which node, for a peer."""


FRONTEND: Final = FileSource(SourceKind.FRONTEND)
ORIGIN: Final = FileSource(SourceKind.ORIGIN)


class WantedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a model that a node shall have."""

    node_id: NodeId
    model: str
    path: str
    key: str
    """What the file is called on the node."""
    digest: str
    """SHA-256."""
    size: int


def choose_source(
    want: WantedFile,
    holders: Iterable[NodeId],
    serving: Mapping[FileSource, int],
    policy: StagingPolicy,
    failed: frozenset[FileSource] = frozenset(),
    *,
    has_origin: bool = False,
) -> FileSource | None:
    """Who serves the file next; None: wait until one of those who are being served has it.

    `holders` are the nodes that have it and may be asked; `serving` says to how many nodes each source sends this file
    at the moment, `has_origin` whether a public server has it. Of several peers the least busy one is taken, and each
    node begins elsewhere in their row. Nobody waits when nobody is being served.
    """
    if want.size < max(policy.least_bytes, 1):
        return FRONTEND
    peers = [FileSource(SourceKind.PEERS, id) for id in holders if id != want.node_id]
    is_crowded = any(serving.values())
    for kind in _order(policy, is_crowded=is_crowded):
        match kind:
            case SourceKind.FRONTEND:
                options = [FRONTEND]
            case SourceKind.PEERS:
                options = sorted(peers, key=lambda peer: (serving.get(peer, 0), _rank(want, peer)))
            case SourceKind.ORIGIN:
                options = [ORIGIN] if has_origin else []
        for source in options:
            is_free = kind is SourceKind.ORIGIN or serving.get(source, 0) < policy.fan_out
            if source not in failed and is_free:
                return source
    return None if is_crowded and FRONTEND not in failed else FRONTEND


def _order(policy: StagingPolicy, *, is_crowded: bool) -> list[SourceKind]:
    """The sources in the order of the setting. Where several nodes want a file, others come before the frontend."""
    order = list(dict.fromkeys((*policy.order, SourceKind.FRONTEND)))
    return sorted(order, key=lambda kind: kind is SourceKind.FRONTEND) if is_crowded else order


def _rank(want: WantedFile, peer: FileSource) -> bytes:
    """Another order for every node, and always the same one for the same."""
    return hashlib.sha256(f"{want.node_id} {peer.node_id}".encode()).digest()


def public_url(files: Iterable[PlannedFile], path: str, digest: str) -> str:
    """Where a node may get a file that was downloaded: by HTTPS, whole, and without a token; empty: nowhere."""
    for file in files:
        is_open = file.hub in _OPEN_HUBS and file.url.startswith("https://") and "#member=" not in file.url
        if is_open and file.path == path and file.digest == f"sha256:{digest}":
            return file.url
    return ""
