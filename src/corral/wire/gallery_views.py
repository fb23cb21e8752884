"""Galleries and their backends as programs see them: what `GET /api/v1/galleries` and `corral gallery --json` give."""

import msgspec


class FitView(msgspec.Struct, kw_only=True):
    """Whether a backend can be installed on one machine."""

    verdict: str
    """`fits`, `blocked` or `unknown`."""
    build: str = ""
    """The build that the name means there."""
    installed: bool = False
    reason: str = ""
    would_fit: list[str] = []


class NodesFitView(FitView, kw_only=True):
    """The same for those nodes of a fleet for which it is the same."""

    nodes: list[str]
    """Names of the nodes."""
    installed_on: list[str] = []
    """Those of them that have the build."""


class GalleryEntryView(msgspec.Struct, kw_only=True):
    """One entry of a gallery."""

    id: str
    name: str
    gallery: str
    meta: bool
    development: bool
    alias: str
    description: str
    license: str
    version: str
    tags: list[str]
    urls: list[str]
    uri: str
    mirrors: list[str]
    capabilities: dict[str, str]


class BackendView(GalleryEntryView, kw_only=True):
    """An entry, and whether it can be installed on one machine."""

    fit: FitView


class FleetOfferView(GalleryEntryView, kw_only=True):
    """An entry, and which nodes of a fleet it can be installed on."""

    fits: list[NodesFitView]
    """Every node is in one of them; empty when the fleet has no nodes."""


class SkippedView(msgspec.Struct, kw_only=True):
    """An entry that cannot be used."""

    gallery: str
    name: str
    line: int
    problem: str


class GalleryView(msgspec.Struct, kw_only=True):
    """How a gallery is known."""

    name: str
    url: str
    read_from: str
    """The url or a mirror; empty when nothing is known of the gallery."""
    entries: int
    fetched_at: str | None
    checked_at: str | None
    age_seconds: float | None
    """Since it was last known to be the newest version; null for files of this machine."""
    stale: bool
    changed: bool
    problem: str
    skipped: list[SkippedView]


class GalleryListing(msgspec.Struct, kw_only=True):
    """Backends, and the galleries that they come from, as one machine reads them."""

    scope: str = "machine"
    capability: str
    """Of the machine that `fit` is about."""
    items: list[BackendView]
    galleries: list[GalleryView]


class FleetGalleryListing(msgspec.Struct, kw_only=True):
    """Backends, and the galleries that they come from, as the frontend of a fleet reads them."""

    scope: str = "fleet"
    items: list[FleetOfferView]
    galleries: list[GalleryView]
    near: list[str] = []
    """Names like what was searched for, when nothing was found."""
