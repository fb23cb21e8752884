"""Galleries and their backends as programs see them: what `corral gallery --json` prints."""

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


class BackendView(msgspec.Struct, kw_only=True):
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
    fit: FitView


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
    """Backends, and the galleries that they come from."""

    capability: str
    """Of the machine that `fit` is about."""
    items: list[BackendView]
    galleries: list[GalleryView]
