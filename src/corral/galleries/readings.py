"""What reading a gallery gave: its entries, where they came from, and how old they are."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from corral.domain.backend_catalogue import BackendCatalogue
from corral.domain.gallery import GalleryContent, GallerySource


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryReading:
    """One gallery as it is known now."""

    gallery: GalleryContent
    """Without entries when nothing is known of it."""
    url: str = ""
    """Where it came from, the source itself or a mirror; empty when nothing is known."""
    fetched_at: datetime | None = None
    """When this version came. None for files of this machine, which are always as they are."""
    checked_at: datetime | None = None
    """When it was last known to be the newest version."""
    is_stale: bool = False
    """An old copy, because no place answers."""
    is_new: bool = False
    """This reading brought a version that was not known before."""
    problem: str = ""
    """Why the places that were tried failed; may be there although a mirror helped out."""

    @property
    def source(self) -> GallerySource:
        return self.gallery.source

    @property
    def is_known(self) -> bool:
        return bool(self.url)

    def age(self, now: datetime) -> timedelta:
        """Since it was last known to be the newest version."""
        return timedelta(0) if self.checked_at is None else max(now - self.checked_at, timedelta(0))


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Several galleries, in the order in which they count."""

    readings: tuple[GalleryReading, ...] = field(default=())

    @cached_property
    def catalogue(self) -> BackendCatalogue:
        return BackendCatalogue(reading.gallery for reading in self.readings)

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence for each gallery of which nothing is known: a name may be missing for that reason."""
        return tuple(
            f"the gallery {reading.source.name} cannot be read: {reading.problem}"
            for reading in self.readings
            if not reading.is_known
        )
