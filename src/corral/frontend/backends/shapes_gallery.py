"""Galleries in the shapes of LocalAI's page and lists, and of Corral's own list."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import asdict

from corral.frontend.backends.decide.gallery_page import PageQuery, all_tags, meta_by_build, page_of
from corral.frontend.backends.shapes import InstalledOnNode, Reported, node_rows
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.localai_status import cache_key
from corral.frontend.operations.decide.operation import Operation, compat_status
from corral.galleries.capability import DEFAULT
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.galleries.places import without_secrets
from corral.galleries.readings import Readings, entry_view, fit_view, gallery_views
from corral.wire.gallery_pages import AvailableBackend, GalleryItem, GalleryPage, KnownBackend, Reports
from corral.wire.gallery_views import FitView, FleetGalleryListing, FleetOfferView, NodesFitView
from corral.wire.install import Gallery

InstalledByName = Mapping[str, Sequence[InstalledOnNode]]


def gallery_page(
    catalogue: BackendCatalogue, query: PageQuery, reported: Reported, current: Iterable[Operation]
) -> GalleryPage:
    page = page_of(catalogue, query, reported.by_name)
    metas = meta_by_build(catalogue.entries)
    moving = {cache_key(one): one for one in current if not compat_status(one).processed}
    return GalleryPage(
        backends=[
            _item(entry, metas.get(entry.name, ""), moving.get(entry.id, moving.get(entry.name)), reported)
            for entry in page.entries
        ],
        repositories=repositories(gallery.source for gallery in catalogue.galleries),
        all_tags=all_tags(catalogue.entries),
        processing_backends={key: one.id for key, one in moving.items()},
        task_types={key: "Deletion" if one.verb is Verb.DELETE else "Installation" for key, one in moving.items()},
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
    galleries = {gallery.name: _gallery(gallery.source) for gallery in catalogue.galleries}
    return [
        AvailableBackend(
            name=entry.name,
            description=entry.description,
            license=entry.license,
            urls=list(entry.urls),
            icon=entry.icon,
            tags=list(entry.tags),
            size=entry.size,
            gallery=galleries[entry.gallery],
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
    fits = [
        _nodes_fit(fit_view(catalogue, name, traits), nodes, reported) for traits, nodes in reported.by_traits.items()
    ]
    return FleetOfferView(**asdict(entry_view(entry)), fits=fits)


def _nodes_fit(fit: FitView, nodes: list[str], reported: Reported) -> NodesFitView:
    having = {held.seen.node.name for held in reported.by_name.get(fit.build, ())}
    installed_on = [name for name in nodes if name in having]
    return NodesFitView(
        verdict=fit.verdict,
        build=fit.build,
        installed=bool(installed_on),
        reason=fit.reason,
        would_fit=fit.would_fit,
        nodes=nodes,
        installed_on=installed_on,
    )
