"""Which machines builds are measured by, which entries the fleet has, and which galleries may be added. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from corral.base.errors import Conflict, InvalidInput
from corral.frontend.backends.decide.backend import traits_of
from corral.frontend.models.decide.stored import StoredModel
from corral.frontend.nodes.decide.node import Node
from corral.frontend.record.decide import Event, EventKind
from corral.galleries.gallery import GallerySource
from corral.galleries.model_entries import GalleryModel
from corral.galleries.model_variants import MachineFacts
from corral.galleries.places import read_place, without_secrets

_MOST_GALLERIES: Final = 50
_LONGEST_NAME: Final = 100
_LONGEST_URL: Final = 2048


def machines_of(nodes: Iterable[Node]) -> tuple[MachineFacts, ...]:
    """Return one machine of each kind, the first one by name, and how many there are of it: thousands of nodes are of a
    few kinds."""
    kinds: dict[tuple[str, int, int], MachineFacts] = {}
    counts: Counter[tuple[str, int, int]] = Counter()
    for node in nodes:
        capacity = node.capacity
        vram = node.vram_budget_bytes or capacity.total_vram
        capability = traits_of(node).effective_capability
        kind = (capability, vram, capacity.total_ram)
        counts[kind] += 1
        kinds.setdefault(
            kind, MachineFacts(name=node.name, capability=capability, vram_bytes=vram, ram_bytes=capacity.total_ram)
        )
    return tuple(replace(machine, count=counts[kind]) for kind, machine in kinds.items())


def installed_entries(models: Iterable[StoredModel]) -> frozenset[str]:
    """Return the names of models, and the ids of the galleries' entries that they come from."""
    installed = {
        name for model in models for name in (model.name, "" if model.origin is None else model.origin.gallery)
    }
    return frozenset(installed - {""})


def is_installed(entry: GalleryModel, installed: Collection[str]) -> bool:
    """Whether the fleet has the model of an entry, or one of its name."""
    return entry.name in installed or entry.id in installed


def checked_addition(source: GallerySource, galleries: Sequence[GallerySource]) -> GallerySource:
    """Return a gallery that may be added to others. InvalidInput says what is wrong with it, Conflict what is in its
    way."""
    name = source.name.strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable() or "@" in name or "/" in name:
        raise InvalidInput(
            "name", f"must be one word of up to {_LONGEST_NAME} characters without @ and /, got {name!r}"
        )
    for field, url in (("url", source.url), *(("mirrors", mirror) for mirror in source.mirrors)):
        if len(url) > _LONGEST_URL:
            raise InvalidInput(field, f"must have at most {_LONGEST_URL} characters")
        if without_secrets(read_place(url).url) != read_place(url).url:
            knob = "name such a gallery in the setting gallery.model_galleries"
            raise InvalidInput(field, f"carries a login or a query, which would be kept in the database; {knob}")
    if name.lower() in (other.name.lower() for other in galleries):
        raise Conflict(f"{name} already exists")
    if len(galleries) >= _MOST_GALLERIES:
        raise Conflict(f"there are {len(galleries)} galleries already, and {_MOST_GALLERIES} are the most")
    return GallerySource(name=name, url=source.url.strip(), mirrors=source.mirrors)


def gallery_event(kind: EventKind, name: str, *, at: datetime, by: str) -> Event:
    return Event(kind=kind, at=at, actor=by, data={"gallery": name})
