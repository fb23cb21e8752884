"""What the galleries of a process can be told, and how a list of them is written."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.domain.gallery import BUILT_IN_URL, GallerySource
from corral.wire.install import Gallery

BUILT_IN: Final = GallerySource(name="corral", url=BUILT_IN_URL)
"""The backends that ship with Corral."""
LOCALAI: Final = GallerySource(
    name="localai",
    url="https://index.localai.io/backends",
    mirrors=("github:mudler/LocalAI/backend/index.yaml@master",),
)
DEFAULT_GALLERIES: Final = (BUILT_IN, LOCALAI)


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleriesConfig:
    """How galleries are read."""

    sources: tuple[GallerySource, ...] = field(default=DEFAULT_GALLERIES, repr=False)
    builtin: Path | None = None
    """Index of what ships with Corral, as images; None: the one of the checkout."""
    cache: Path
    """Directory of the last good copies. Processes may share it."""
    max_age: timedelta = timedelta(hours=1)
    """A copy that was checked within this time is used without asking again. As long as LocalAI does."""
    timeout: timedelta = timedelta(seconds=30)
    """Of one try, in all."""
    connect_timeout: timedelta = timedelta(seconds=10)
    """Of the connection alone, so that a machine which is gone does not use up the time."""
    max_bytes: int = 32 * 1024 * 1024
    """Of one index."""
    pause: timedelta = timedelta(minutes=1)
    """How long a place that failed is passed over, as long as there is a mirror or a copy."""


def sources_of(galleries: Iterable[Gallery]) -> tuple[GallerySource, ...]:
    """Galleries as requests and settings write them."""
    return tuple(
        GallerySource(
            name=gallery.name.strip(),
            url=gallery.url.strip(),
            mirrors=tuple(gallery.mirrors),
            verification=gallery.verification,
        )
        for gallery in galleries
    )
