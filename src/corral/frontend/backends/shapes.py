"""Answers about backends and galleries: what is installed where, LocalAI's page of galleries, what nodes can use."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, convert
from msgspec.structs import asdict

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import Holding, Inventory, holdings_by_backend, traits_of
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation, compat_status
from corral.frontend.operations.shapes import cache_key
from corral.galleries.catalogue import DEFAULT, BackendCatalogue
from corral.galleries.fit import NodeTraits
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.galleries.places import without_secrets
from corral.galleries.readings import Readings, entry_view, fit_view, gallery_views
from corral.wire.backends import Gallery, InstalledBackend
from corral.wire.galleries import (
    AvailableBackend,
    BackendMetadata,
    BackendNodeRow,
    BackendRow,
    FleetBackends,
    FleetBackendView,
    FleetGalleryListing,
    FleetOfferView,
    GalleryItem,
    GalleryPage,
    KnownBackend,
    NodeBackendView,
    NodesFitView,
    ReportAge,
    Reports,
)
from corral.wire.go_json import format_time


class Reported(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What nodes last said, looked at now."""

    nodes: Sequence[SeenNode]
    inventories: Mapping[NodeId, Inventory]
    at: datetime

    @cached_property
    def by_name(self) -> dict[str, list[Holding]]:
        return holdings_by_backend(self.nodes, self.inventories)

    @cached_property
    def by_traits(self) -> dict[NodeTraits, list[str]]:
        """Names of the nodes, by what decides which builds of a gallery suit them."""
        by_traits: dict[NodeTraits, list[str]] = {}
        for seen in self.nodes:
            traits = traits_of(seen.node)
            decisive = NodeTraits(capability=traits.effective_capability, needs_scheme=traits.needs_scheme)
            by_traits.setdefault(decisive, []).append(seen.node.name)
        return by_traits

    @property
    def unheard(self) -> list[str]:
        """Names of nodes that never said anything."""
        return [seen.node.name for seen in self.nodes if seen.node.id not in self.inventories]

    @property
    def oldest_seconds(self) -> float:
        return max((self.age(report.seen_at) for report in self.inventories.values()), default=0.0)

    def age(self, reported_at: datetime) -> float:
        return round(max((self.at - reported_at).total_seconds(), 0.0), 3)


# LocalAI's.


def backend_rows(reported: Reported) -> list[BackendRow]:
    """At the top what the first node says."""
    return [
        BackendRow(
            name=name,
            is_meta=held[0].entry.is_meta,
            is_system=held[0].entry.is_system,
            metadata=convert(held[0].entry, BackendMetadata, from_attributes=True),
            nodes=node_rows(held, reported),
        )
        for name, held in reported.by_name.items()
    ]


def node_rows(held: Sequence[Holding], reported: Reported) -> list[BackendNodeRow]:
    return [
        BackendNodeRow(
            node_id=installed.seen.node.id,
            node_name=installed.seen.node.name,
            node_status=installed.seen.status.value,
            version=installed.entry.version,
            digest=installed.entry.digest,
            uri=installed.entry.uri,
            installed_at=installed.entry.installed_at,
            corral=ReportAge(
                seen_at=format_time(installed.reported_at), age_seconds=reported.age(installed.reported_at)
            ),
        )
        for installed in held
    ]


def installed_backends(inventory: Inventory) -> list[InstalledBackend]:
    """The entries as `backend.list` answers them, sorted by name."""
    entries = sorted(inventory.entries, key=lambda entry: entry.name)
    return [convert(entry, InstalledBackend, from_attributes=True) for entry in entries]


# Corral's own.


def fleet_backends(reported: Reported) -> FleetBackends:
    items = [
        FleetBackendView(
            name=name, is_meta=held[0].entry.is_meta, nodes=[_node_view(installed, reported) for installed in held]
        )
        for name, held in reported.by_name.items()
    ]
    return FleetBackends(items=items, unheard=reported.unheard)


def _node_view(held: Holding, reported: Reported) -> NodeBackendView:
    return NodeBackendView(
        node_id=held.seen.node.id,
        node_name=held.seen.node.name,
        node_status=held.seen.status.value,
        is_system=held.entry.is_system,
        installed_at=held.entry.installed_at,
        version=held.entry.version,
        uri=held.entry.uri,
        digest=held.entry.digest,
        seen_at=format_time(held.reported_at),
        age_seconds=reported.age(held.reported_at),
    )


# LocalAI's page of the galleries.

_USUAL_ITEMS: Final = 9


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of the galleries a browser asks for; what cannot be understood is taken for its default."""

    term: str = ""
    tag: str = ""
    page: str = ""
    items: str = ""
    sort: str = ""
    order: str = ""


class PagedEntry(Protocol):
    """An entry of a gallery, as far as the order of a page depends on it."""

    @property
    def name(self) -> str: ...
    @property
    def gallery(self) -> str: ...
    @property
    def license(self) -> str: ...


E = TypeVar("E", bound=PagedEntry)


class CataloguePage(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    entries: Sequence[E]
    matching: int
    """On all pages."""
    number: int
    pages: int

    @property
    def previous(self) -> int:
        return max(self.number - 1, 1)

    @property
    def next(self) -> int:
        return min(self.number + 1, self.pages)


def paged(matches: Sequence[E], query: PageQuery, is_installed: Callable[[E], bool]) -> CataloguePage[E]:
    """The entries of one page. Those that are installed come first when the status counts."""
    keys: Mapping[str, Callable[[E], tuple[object, ...]]] = {
        "name": lambda entry: (entry.name.lower(),),
        "repository": lambda entry: (entry.gallery.lower(),),
        "license": lambda entry: (not entry.license, entry.license.lower()),
        "status": lambda entry: (not is_installed(entry), entry.name.lower()),
    }
    key = keys.get(query.sort)
    ordered = matches if key is None else sorted(matches, key=key, reverse=query.order == "desc")
    number, size = _positive(query.page, 1), _positive(query.items, _USUAL_ITEMS)
    return CataloguePage(
        entries=ordered[(number - 1) * size : number * size],
        matching=len(ordered),
        number=number,
        pages=-(-len(ordered) // size),
    )


def _positive(text: str, otherwise: int) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return max(int(text), 0) or otherwise if is_number else otherwise


def page_of(catalogue: BackendCatalogue, query: PageQuery, installed: Collection[str]) -> CataloguePage[GalleryEntry]:
    """The backends of one page. `installed` are names that some node has."""
    entries = catalogue.search(query.term)
    if query.tag:
        entries = [entry for entry in entries if query.tag.lower() in map(str.lower, entry.tags)]
    unique = list({entry.id: entry for entry in reversed(entries)}.values())[::-1]
    return paged(unique, query, lambda entry: entry.name in installed)


def all_tags(entries: Iterable[GalleryEntry]) -> list[str]:
    return sorted({tag for entry in entries for tag in entry.tags})


def meta_by_build(entries: Iterable[GalleryEntry]) -> dict[str, str]:
    """For each build that some meta backend stands for, the first of these."""
    metas: dict[str, str] = {}
    for meta in entries:
        for build in meta.capabilities.values() if meta.is_meta else ():
            metas.setdefault(build, meta.name)
    return metas


InstalledByName = Mapping[str, Sequence[Holding]]


def gallery_page(
    catalogue: BackendCatalogue, query: PageQuery, reported: Reported, current: Iterable[Operation]
) -> GalleryPage:
    page = page_of(catalogue, query, reported.by_name)
    metas = meta_by_build(catalogue.entries)
    moving = {cache_key(operation): operation for operation in current if not compat_status(operation).processed}
    return GalleryPage(
        backends=[
            _item(entry, metas.get(entry.name, ""), moving.get(entry.id, moving.get(entry.name)), reported)
            for entry in page.entries
        ],
        repositories=repositories(gallery.source for gallery in catalogue.galleries),
        all_tags=all_tags(catalogue.entries),
        processing_backends={key: operation.id for key, operation in moving.items()},
        task_types={
            key: "Deletion" if operation.verb is Verb.DELETE else "Installation" for key, operation in moving.items()
        },
        available_backends=page.matching,
        installed_backends=len(reported.by_name),
        current_page=page.number,
        total_pages=page.pages,
        prev_page=page.previous,
        next_page=page.next,
        # Of the frontend itself, which runs no backends.
        system_capability=DEFAULT,
        prefer_development_backends=False,
        corral=Reports(oldest_seconds=reported.oldest_seconds, unheard=reported.unheard),
    )


def _item(entry: GalleryEntry, meta: str, operation: Operation | None, reported: Reported) -> GalleryItem:
    held = reported.by_name.get(entry.name)
    return GalleryItem(
        id=entry.id,
        name=entry.name,
        description=entry.description,
        icon=entry.icon,
        license=entry.license,
        urls=list(entry.urls) or None,
        tags=list(entry.tags) or None,
        gallery=entry.gallery,
        installed=held is not None,
        version=entry.version,
        processing=operation is not None,
        job_id="" if operation is None else operation.id,
        is_deletion=operation is not None and operation.verb is Verb.DELETE,
        is_meta=entry.is_meta,
        is_alias=bool(meta),
        is_development=entry.is_development,
        capabilities=dict(entry.capabilities) or None,
        meta_backend_for=meta,
        nodes=None if held is None else node_rows(held, reported),
    )


def repositories(sources: Iterable[GallerySource]) -> list[Gallery]:
    return [_gallery(source) for source in sources]


def _gallery(source: GallerySource) -> Gallery:
    """Without the logins that a URL may have."""
    return Gallery(
        url=without_secrets(source.url),
        name=source.name,
        mirrors=list(map(without_secrets, source.mirrors)),
        verification=dict(source.verification),
    )


def available_backends(
    catalogue: BackendCatalogue, capabilities: Iterable[str], installed: InstalledByName
) -> list[AvailableBackend]:
    galleries = [_gallery(gallery.source) for gallery in catalogue.galleries]
    return [
        AvailableBackend(
            name=entry.name,
            description=entry.description,
            license=entry.license,
            urls=list(entry.urls),
            icon=entry.icon,
            tags=list(entry.tags),
            size=entry.size,
            gallery=galleries[catalogue.position_of(entry)],
            installed=entry.name in installed,
            alias=entry.alias,
            uri=entry.uri,
            mirrors=list(entry.mirrors),
            capabilities=dict(entry.capabilities),
            version=entry.version,
        )
        for entry in catalogue.offered(capabilities)
    ]


def known_backends(catalogue: BackendCatalogue, installed: InstalledByName) -> list[KnownBackend]:
    """Without the builds that a meta backend stands for, unless some node has them."""
    builds = meta_by_build(catalogue.entries)
    described = {
        entry.name: entry.description
        for entry in reversed(catalogue.entries)
        if entry.name not in builds or entry.name in installed
    }
    return [
        KnownBackend(name=name, description=described.get(name) or UNSET, installed=name in installed)
        for name in sorted({*described, *installed})
    ]


# Corral's own.


def fleet_listing(readings: Readings, reported: Reported, entries: Iterable[GalleryEntry]) -> FleetGalleryListing:
    return FleetGalleryListing(
        items=[fleet_offer(readings.catalogue, entry, entry.id, reported) for entry in entries],
        galleries=gallery_views(readings, reported.at),
    )


def fleet_offer(catalogue: BackendCatalogue, entry: GalleryEntry, name: str, reported: Reported) -> FleetOfferView:
    """An entry, and which nodes can use what `name` means there."""
    fits = []
    for traits, nodes in reported.by_traits.items():
        fit = fit_view(catalogue, name, traits)
        having = {held.seen.node.name for held in reported.by_name.get(fit.build, ())}
        installed_on = [node for node in nodes if node in having]
        fit.installed = bool(installed_on)
        fits.append(NodesFitView(**asdict(fit), nodes=nodes, installed_on=installed_on))
    return FleetOfferView(**asdict(entry_view(entry)), fits=fits)
