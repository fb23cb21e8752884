"""`backend.list`: which backends a node has on its disk. The node's own report, and so the only proof.

Corral's workers also say it without being asked, on `corral.inventory`, whenever it changes.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it.
"""

import hashlib
from collections.abc import Iterable
from typing import Protocol

import msgspec


def _nothing() -> "list[InstalledBackend] | None":
    """LocalAI's workers say `null` when they have none."""
    return None


class InstalledDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What Corral's workers add."""

    platform_digest: str = ""
    """Of the image for the node's platform, where `digest` is that of an index of several."""
    source_digest: str = ""
    """What an upgrade would bring, where the source is an image on the node's own disk."""


class InstalledBackend(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One backend. Those of the system path say nothing of where they came from."""

    name: str = msgspec.field(default_factory=str)
    is_system: bool = msgspec.field(default_factory=bool)
    is_meta: bool = msgspec.field(default_factory=bool)
    installed_at: str = ""
    gallery_url: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""
    corral: InstalledDetails | None = None


class ListReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `backend.list`, in no order."""

    backends: list[InstalledBackend] | None = msgspec.field(default_factory=_nothing)
    error: str = ""
    """When set, the list says nothing."""


class InventoryReport(msgspec.Struct, kw_only=True):
    """On `corral.inventory`, of a node that told so by itself."""

    backends: list[InstalledBackend] = []


class Described(Protocol):
    """What both sides know of a backend."""

    @property
    def name(self) -> str: ...
    @property
    def is_system(self) -> bool: ...
    @property
    def is_meta(self) -> bool: ...
    @property
    def installed_at(self) -> str: ...
    @property
    def gallery_url(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def uri(self) -> str: ...
    @property
    def digest(self) -> str: ...


def fingerprint(backends: Iterable[Described]) -> str:
    """The same for the same backends in any order, and hardly ever for others."""
    told = sorted(
        (one.name, one.is_system, one.is_meta, one.installed_at, one.gallery_url, one.version, one.uri, one.digest)
        for one in backends
    )
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]
