"""Backends on nodes: what a node reports to have, what is wanted of it, and what proves that the one is the other.

Proof is the first rung that the node's own report can give:

| rung      | proves                                                                                          |
|-----------|-------------------------------------------------------------------------------------------------|
| `digest`  | the wanted digest is there; a reinstall must also have a new date                               |
| `version` | a new date since the request, with the wanted version or from the wanted uri                    |
| `renewed` | a new date, where neither version nor uri is known                                              |
| `present` | it is there: enough for an install that replaces nothing                                        |
| `absent`  | it is not there: all that a delete wants                                                        |

Dates are compared for being different, not for being later: the clock of a node may have been set back. Where a report
proves a wish before the node was asked for anything, nothing was changed there, and the proof is shown as `already …`.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import fields, replace

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import Node, SeenNode
from corral.frontend.operations.decide.intent import (
    Before,
    Intent,
    IntentKind,
    IntentState,
    Payload,
    Proof,
    Proven,
    Sighting,
    Unproven,
    Verb,
)
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.galleries.build_uris import BackendRef, is_same_source
from corral.galleries.fit import NodeTraits, read_platform

BACKEND_VERBS: Final = tuple(verb for verb in Verb if verb.kind is IntentKind.BACKEND)


class BackendEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One backend of a node, in the node's own words."""

    name: str
    is_system: bool = False
    """Came with the machine; nobody can replace or delete it."""
    is_meta: bool = False
    installed_at: str = ""
    gallery_url: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""
    """Digest that the uri resolved to: the index's, where there is one."""
    platform_digest: str = ""
    """Digest of the image for the node's platform; LocalAI's workers do not report it."""
    source_digest: str = ""
    """What an upgrade would bring, where the source is an image on the node's own disk, as of what ships with
    Corral."""

    @property
    def digests(self) -> frozenset[str]:
        return frozenset({self.digest, self.platform_digest} - {""})


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """A node's report of what is on its disk."""

    entries: tuple[BackendEntry, ...] = ()
    seen_at: datetime

    def find(self, name: str) -> BackendEntry | None:
        for entry in self.entries:  # a generator would take twice as long, and every look at a node comes here
            if entry.name == name:
                return entry
        return None

    def among(self, names: Collection[str]) -> list[BackendEntry]:
        return [entry for entry in self.entries if entry.name in names]


BuildIdentity = tuple[str, str]
"""Version and digest: what makes two installed backends the same. Either is empty when unknown."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A backend on one node."""

    seen: SeenNode
    entry: BackendEntry
    reported_at: datetime

    @property
    def build(self) -> BuildIdentity:
        return self.entry.version, self.entry.digest

    @property
    def is_telling(self) -> bool:
        return any(self.build)


def holdings_by_backend(nodes: Iterable[SeenNode], inventories: Mapping[NodeId, Inventory]) -> dict[str, list[Holding]]:
    """What nodes last said to have, sorted by the names of backends; the nodes of each in their own order."""
    holdings: dict[str, list[Holding]] = {}
    for seen in nodes:
        if (report := inventories.get(seen.node.id)) is not None:
            for entry in report.entries:
                holding = Holding(seen=seen, entry=entry, reported_at=report.seen_at)
                holdings.setdefault(entry.name, []).append(holding)
    return dict(sorted(holdings.items()))


class Artefact(BackendRef, frozen=True, kw_only=True):
    """The backend that a node is asked for, kept whole: a retry sends exactly this. Its name is without a gallery."""

    digests: frozenset[str] = frozenset()
    """Digests of the image: its index and the member for the node's platform. Empty when no registry answered."""
    image: str = ""
    """The uri that named these digests when it was asked for; its tag may move."""
    version: str = ""
    renewal: str = ""
    """When set, what is there must be replaced. New for each demand, so that a retry is not a second demand."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a node should do about one backend."""

    verb: Verb
    key: str
    """The canonical name: the directory that the backend is in."""
    artefact: Artefact

    @property
    def must_renew(self) -> bool:
        return self.verb is Verb.UPGRADE or (self.verb is Verb.INSTALL and bool(self.artefact.renewal))

    @property
    def names(self) -> frozenset[str]:
        """All that must be gone after a delete: a meta backend goes with the build that it points to."""
        return frozenset({self.key, self.artefact.backend})


_FIELDS: Final = tuple(field.name for field in fields(Artefact))


def payload_of(artefact: Artefact) -> Payload:
    """The artefact as the payload of an intent or an operation about a backend."""
    values = {name: getattr(artefact, name) for name in _FIELDS}
    return {**values, "digests": sorted(artefact.digests)}


def artefact_of(payload: Payload) -> Artefact:
    """The artefact in the payload of an intent or an operation about a backend. Unknown fields are ignored."""
    return msgspec.convert(payload, Artefact)


def wish_of(intent: Intent) -> Wish:
    """What an intent of the kind `backend` wants."""
    return Wish(verb=intent.verb, key=intent.subject, artefact=artefact_of(intent.payload))


def before_of(inventory: Inventory, key: str) -> Before:
    entry = inventory.find(key)
    return Before(present=False) if entry is None else Before(present=True, installed_at=entry.installed_at)


class Rung(StrEnum):
    DIGEST = "digest"
    VERSION = "version"
    RENEWED = "renewed"
    PRESENT = "present"
    ABSENT = "absent"


def evidence_of(intent: Intent, inventory: Inventory) -> Sighting:
    """What a report of its node says about an intent of the kind `backend`."""
    wish = wish_of(intent)
    return Sighting(
        proof=prove(wish, inventory, intent.before),
        had=before_of(inventory, wish.key),
        renews=wish.must_renew,
        payload=intent.payload,
        report=inventory,
    )


def with_alias_kept(new: Intent, old: Intent) -> Payload:
    """The payload of a new intent, with the alias of the install that it replaces.

    No worker reports aliases, and LocalAI's workers forget them unless they are sent again. An upgrade from another uri
    than ours replaces what somebody else has installed since, with an alias of its own.
    """
    is_there = new.verb is Verb.UPGRADE or old.state is IntentState.SATISFIED
    if new.kind is not IntentKind.BACKEND or new.verb.deletes or not is_there:
        return new.payload
    artefact, replaced = artefact_of(new.payload), artefact_of(old.payload)
    # An empty uri can be any source.
    is_other = bool(artefact.uri and replaced.uri) and not is_same_source(artefact.uri, replaced.uri)
    if artefact.alias or (new.verb is Verb.UPGRADE and is_other):
        return new.payload
    return payload_of(replace(artefact, alias=replaced.alias))


def prove(wish: Wish, inventory: Inventory, before: Before | None) -> Proof:
    """Whether the report shows that the wish is fulfilled; `before` is what the node had when it came up."""
    if wish.verb is Verb.DELETE:
        return _absent(wish, inventory)
    entry = inventory.find(wish.key)
    if entry is None:
        return Unproven(reason=because(ReasonCode.BACKEND_MISSING, backend=wish.key))
    is_new = before is not None and bool(entry.installed_at) and entry.installed_at != before.installed_at
    return _renewed(wish, entry, is_new=is_new) if wish.must_renew else _present(wish.artefact, entry, is_new=is_new)


def _absent(wish: Wish, inventory: Inventory) -> Proof:
    remaining = inventory.among(wish.names)
    if not remaining:
        return Proven(rung=Rung.ABSENT)
    names = ", ".join(sorted(entry.name for entry in remaining))
    if all(entry.is_system for entry in remaining):
        return Unproven(reason=because(ReasonCode.CANNOT_DELETE, backends=names), is_hopeless=True)
    return Unproven(reason=because(ReasonCode.BACKEND_LEFT, backends=names))


def _present(artefact: Artefact, entry: BackendEntry, *, is_new: bool) -> Proof:
    if artefact.uri and entry.uri and not is_same_source(entry.uri, artefact.uri):
        code = ReasonCode.INSTALLED_FROM_ELSEWHERE
        return Unproven(reason=because(code, backend=entry.name, uri=entry.uri, wanted=artefact.uri))
    if artefact.digests and entry.digests:
        return _by_digest(artefact, entry, is_new=is_new)
    return Proven(rung=Rung.PRESENT)


def _renewed(wish: Wish, entry: BackendEntry, *, is_new: bool) -> Proof:
    artefact = wish.artefact
    if entry.is_system:
        return Unproven(reason=because(ReasonCode.CANNOT_REPLACE, backend=entry.name), is_hopeless=True)
    if entry.digests and (is_new or not artefact.renewal):
        if artefact.digests:
            return _by_digest(artefact, entry, is_new=is_new)
        if entry.source_digest in entry.digests:
            return Proven(rung=Rung.DIGEST)
    if not entry.installed_at:
        return Unproven(reason=because(ReasonCode.UNPROVABLE, backend=entry.name), is_hopeless=True)
    if not is_new:
        reason = because(ReasonCode.NOT_REPLACED, backend=entry.name, installed_at=entry.installed_at)
        return Unproven(reason=reason)
    return _by_version(artefact, entry)


def _by_digest(artefact: Artefact, entry: BackendEntry, *, is_new: bool) -> Proof:
    if entry.digests & artefact.digests:
        return Proven(rung=Rung.DIGEST)
    digest, digests = entry.digest or entry.platform_digest, " or ".join(sorted(artefact.digests))
    reason = because(ReasonCode.OTHER_DIGEST, backend=entry.name, digest=digest, wanted=digests)
    return Unproven(reason=reason, is_other_digest=is_new)


def _by_version(artefact: Artefact, entry: BackendEntry) -> Proof:
    if artefact.version and entry.version:
        if entry.version != artefact.version:
            code = ReasonCode.OTHER_VERSION
            return Unproven(reason=because(code, backend=entry.name, version=entry.version, wanted=artefact.version))
        return Proven(rung=Rung.VERSION)
    if artefact.uri and entry.uri:
        if not is_same_source(entry.uri, artefact.uri):
            code = ReasonCode.OTHER_SOURCE
            return Unproven(reason=because(code, backend=entry.name, uri=entry.uri, wanted=artefact.uri))
        return Proven(rung=Rung.VERSION)
    return Proven(rung=Rung.RENEWED)


def traits_of(node: Node) -> NodeTraits:
    """What a node registered with, as far as it decides which backends fit there.

    LocalAI's workers report neither their platform nor whether backends are on the disk that they measure, which is
    the disk of the models.
    """
    capacity, peer = node.capacity, node.peer
    is_measured = capacity.total_disk > 0 and (peer is None or peer.has_one_disk)
    return NodeTraits(
        capability=node.capability,
        platform=None if peer is None else read_platform(peer.platform),
        gpu_vendor=node.gpu.vendor,
        total_vram=capacity.total_vram,
        disk_free=capacity.available_disk if is_measured else None,
        is_disk_certain=peer is not None,
        needs_scheme=peer is None,
    )
