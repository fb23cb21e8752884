"""What is installed, what galleries offer and what is outdated: LocalAI's routes and Corral's own."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import CorralError, NotFound
from corral.base.words import sentences
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import QueryField, number, one_of
from corral.frontend.api.route import AdminContext, Caller, Dialect, RouteSpec, answer
from corral.frontend.backends.decide.backend import traits_of
from corral.frontend.backends.decide.upgrades import Comparison, Judged
from corral.frontend.backends.inventory import is_listed, may_have_backends
from corral.frontend.backends.shapes import (
    PageQuery,
    Reported,
    available_backends,
    backend_rows,
    fleet_backends,
    fleet_listing,
    fleet_offer,
    gallery_page,
    known_backends,
    repositories,
)
from corral.frontend.backends.upgrades import Findings
from corral.frontend.nodes.decide.node import NodeStatus, SeenNode
from corral.galleries.catalogue import DEFAULT, BackendCatalogue
from corral.galleries.readings import Readings
from corral.wire.backends import Gallery
from corral.wire.galleries import (
    AvailableBackend,
    BackendRow,
    BackendUpgradeView,
    FleetBackends,
    FleetGalleryListing,
    FleetOfferView,
    GalleryPage,
    KnownBackend,
    NodeDrift,
    NodeUpgradeView,
    UpgradeInfo,
    UpgradesView,
)
from corral.wire.go_json import format_time


class GalleriesUnread(CorralError):
    """None of the galleries can be read; see LOCALAI_BACKEND_GALLERIES and the log."""

    code = "galleries_unread"
    retryable = True


async def list_installed(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(backend_rows(await _reported(context, request)))


async def list_native(context: AdminContext, request: Request, caller: Caller) -> Response:
    nodes = [seen for seen in await context.nodes.fleet.all() if may_have_backends(seen)]
    return answer(fleet_backends(await _reports_of(context, request, nodes)))


async def list_page(context: AdminContext, request: Request, caller: Caller) -> Response:
    query = PageQuery(**{name: request.query_params.get(name, "") for name in _PAGE_QUERY})
    catalogue = await _catalogue(context)
    reported = await _reported(context, request)
    return answer(gallery_page(catalogue, query, reported, await context.operations.stores.operations.current()))


async def list_available(context: AdminContext, request: Request, caller: Caller) -> Response:
    reported = await _reported(context, request)
    healthy = (seen.node for seen in reported.nodes if seen.status is NodeStatus.HEALTHY)
    capabilities = {traits_of(node).effective_capability for node in healthy}
    catalogue = await _catalogue(context)
    return answer(available_backends(catalogue, {DEFAULT, *capabilities}, reported.by_name))


async def list_known(context: AdminContext, request: Request, caller: Caller) -> Response:
    reported = await _reported(context, request)
    return answer(known_backends(await _catalogue(context), reported.by_name))


async def list_galleries(context: AdminContext, request: Request, caller: Caller) -> Response:
    config = context.config.galleries
    return answer(repositories([] if config is None else config.sources))


async def list_fleet_galleries(context: AdminContext, request: Request, caller: Caller) -> Response:
    readings = await _readings(context, newest=request.query_params.get("refresh") == "1")
    term = request.query_params.get("term", "")
    entries = readings.catalogue.search(term)
    listing = fleet_listing(readings, await _fleet(context), entries)
    listing.near = [] if entries else list(readings.catalogue.near(term))
    return answer(listing)


async def get_fleet_offer(context: AdminContext, request: Request, caller: Caller) -> Response:
    readings = await _readings(context, newest=False)
    reported, name = await _fleet(context), request.path_params["name"]
    capabilities = [*(traits.effective_capability for traits in reported.by_traits), DEFAULT]
    resolved = readings.catalogue.resolve(name, capabilities[0])
    if resolved.entry is None:
        raise NotFound(sentences([resolved.message, *readings.failures]))
    return answer(fleet_offer(readings.catalogue, resolved.entry, name, reported))


async def _readings(context: AdminContext, *, newest: bool) -> Readings:
    if context.config.galleries is None or not context.config.galleries.sources:
        return Readings()
    readings = await context.backends.galleries.readings(newest=newest)
    if readings is None:
        raise GalleriesUnread
    return readings


async def _fleet(context: AdminContext) -> Reported:
    """Nodes that may have backends, with what they said last."""
    nodes = [seen for seen in await context.nodes.fleet.all() if may_have_backends(seen)]
    inventories = await context.backends.inventory.known([seen.node.id for seen in nodes])
    return Reported(nodes=nodes, inventories=inventories, at=context.clock.now())


async def _catalogue(context: AdminContext) -> BackendCatalogue:
    """Empty for a frontend that has no galleries; of one that cannot read them nothing is shown as if it were all."""
    catalogue = await context.backends.galleries.catalogue()
    if catalogue is None and context.config.galleries is not None and context.config.galleries.sources:
        raise GalleriesUnread
    return catalogue or BackendCatalogue()


async def _reported(context: AdminContext, request: Request) -> Reported:
    """The last reports of the nodes that LocalAI would ask."""
    return await _reports_of(context, request, [seen for seen in await context.nodes.fleet.all() if is_listed(seen)])


async def _reports_of(context: AdminContext, request: Request, nodes: Sequence[SeenNode]) -> Reported:
    if request.query_params.get("refresh") == "1":
        await context.backends.inventory.refresh([seen.node.id for seen in nodes if is_listed(seen)])
    inventories = await context.backends.inventory.known([seen.node.id for seen in nodes])
    return Reported(nodes=nodes, inventories=inventories, at=context.clock.now())


# What is outdated. No route waits for galleries or registries.


async def list_upgrades_localai(context: AdminContext, request: Request, caller: Caller) -> Response:
    findings = await context.backends.upgrades.findings()
    return answer({compared.backend: _info(compared) for compared in findings.backends if compared.needs_upgrade})


async def check_upgrades_localai(context: AdminContext, request: Request, caller: Caller) -> Response:
    """As LocalAI does it: what is known is answered, and the look happens meanwhile."""
    context.backends.upgrades.ask()
    return await list_upgrades_localai(context, request, caller)


async def list_upgrades(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(_view(await context.backends.upgrades.findings()))


async def check_upgrades(context: AdminContext, request: Request, caller: Caller) -> Response:
    context.backends.upgrades.ask()
    return answer(_view(await context.backends.upgrades.findings()), 202)


def _info(compared: Comparison) -> UpgradeInfo:
    version, digest = compared.usual
    drift = [
        NodeDrift(node_id=has.seen.node.id, node_name=has.seen.node.name, version=has.build[0], digest=has.build[1])
        for has in (node.holding for node in compared.differing)
    ]
    return UpgradeInfo(
        backend_name=compared.backend,
        installed_version=version,
        available_version="" if compared.offer is None else compared.offer.version,
        installed_digest=digest,
        available_digest="" if compared.offer is None else compared.offer.digest,
        node_drift=drift,
    )


def _view(findings: Findings) -> UpgradesView:
    check = findings.check
    items = list(map(_backend_view, findings.backends))
    if check is None:
        return UpgradesView(checked_at=None, items=items)
    return UpgradesView(checked_at=format_time(check.at), problem=check.problem, items=items)


def _backend_view(compared: Comparison) -> BackendUpgradeView:
    view = BackendUpgradeView(
        name=compared.backend,
        needs_upgrade=compared.needs_upgrade,
        installed_version=compared.usual[0],
        installed_digest=compared.usual[1],
        nodes=list(map(_node_upgrade_view, compared.nodes)),
    )
    if (offer := compared.offer) is not None:
        view.available_version, view.available_digest, view.uri = offer.version, offer.digest, offer.uri
        view.looked_at = None if offer.looked_at is None else format_time(offer.looked_at)
    return view


def _node_upgrade_view(node: Judged) -> NodeUpgradeView:
    seen, (version, digest) = node.holding.seen, node.holding.build
    return NodeUpgradeView(
        node_id=seen.node.id,
        node_name=seen.node.name,
        node_status=seen.status.value,
        version=version,
        digest=digest,
        freshness=node.freshness.value,
        reason=node.reason,
        differs=node.differs,
    )


_REFRESH = {"refresh": one_of("1 asks every node now", ("0", "1"))}
_PAGE_QUERY: Final[Mapping[str, str | QueryField]] = {
    "term": "words that names, tags or description mention",
    "tag": "only backends with this tag",
    "page": number("which page, from 1", least=1),
    "items": number("how many on a page; 9 by default", least=1),
    "sort": one_of("what to sort by", ("name", "repository", "license", "status")),
    "order": one_of("which way", ("asc", "desc")),
}
_UNREAD = {503: "no gallery can be read, or the database is away; try again"}

_LIST = RouteSpec(
    method="GET",
    path="/backends",
    handler=list_installed,
    access=Permission.BACKENDS_READ,
    dialect=Dialect.LOCALAI_CLI,
    summary="What is installed, and on which nodes, as they last said.",
    gives=list[BackendRow],
    query=_REFRESH,
    codes={200: "a list, by name"},
)
_UPGRADES = RouteSpec(
    method="GET",
    path="/api/backends/upgrades",
    handler=list_upgrades_localai,
    access=Permission.BACKENDS_READ,
    dialect=Dialect.LOCALAI_UI,
    summary="Backends of which something newer is to be had, or that differ between nodes.",
    gives=dict[str, UpgradeInfo],
    codes={200: "a map from names to what is known"},
)
_CHECK_UPGRADES = replace(
    _UPGRADES,
    method="POST",
    path="/api/backends/upgrades/check",
    handler=check_upgrades_localai,
    access=Permission.BACKENDS_ACT,
    summary="Look for newer versions soon; answers what is known already.",
)

ROUTES = [
    _LIST,
    replace(
        _LIST,
        path="/backends/available",
        handler=list_available,
        access=Permission.BACKENDS_READ,
        summary="What galleries offer that some healthy node can run.",
        gives=list[AvailableBackend],
        codes={200: "a list, in the order of the galleries", **_UNREAD},
    ),
    replace(
        _LIST,
        path="/backends/known",
        handler=list_known,
        access=Permission.BACKENDS_READ,
        summary="Names of backends that may be asked for, and whether some node has them.",
        gives=list[KnownBackend],
        codes={200: "a list, by name", **_UNREAD},
    ),
    replace(
        _LIST,
        path="/backends/galleries",
        handler=list_galleries,
        access=Permission.BACKENDS_READ,
        summary="Where this frontend looks for backends.",
        gives=list[Gallery],
        query={},
        codes={200: "a list, in the order in which they count"},
    ),
    replace(
        _LIST,
        path="/api/backends",
        handler=list_page,
        access=Permission.BACKENDS_READ,
        dialect=Dialect.LOCALAI_UI,
        summary="A page of the galleries, with what is installed where and what is under way.",
        gives=GalleryPage,
        query={**_PAGE_QUERY, **_REFRESH},
        codes={200: "a page", **_UNREAD},
    ),
    replace(
        _LIST,
        path="/api/v1/backends",
        handler=list_native,
        access=Permission.BACKENDS_READ,
        dialect=Dialect.NATIVE,
        summary="What is installed on each node, with the age of its word.",
        gives=FleetBackends,
    ),
    replace(
        _LIST,
        path="/api/v1/galleries",
        handler=list_fleet_galleries,
        access=Permission.BACKENDS_READ,
        dialect=Dialect.NATIVE,
        summary="What the galleries of this frontend offer, which nodes can use it, and how each gallery is known.",
        gives=FleetGalleryListing,
        query={
            "term": _PAGE_QUERY["term"],
            "refresh": one_of("1 asks every gallery for something new first", ("0", "1")),
        },
        codes={200: "a list, in the order of the galleries", **_UNREAD},
    ),
    replace(
        _LIST,
        path="/api/v1/galleries/backends/{name}",
        handler=get_fleet_offer,
        access=Permission.BACKENDS_READ,
        dialect=Dialect.NATIVE,
        summary="One backend of the galleries, by name, alias or `GALLERY@NAME`, and which build nodes would use.",
        gives=FleetOfferView,
        query={},
        codes={200: "the backend", 404: "no gallery that could be read has it", **_UNREAD},
    ),
    _UPGRADES,
    _CHECK_UPGRADES,
    replace(_UPGRADES, path="/backends/upgrades", access=Permission.BACKENDS_READ, dialect=Dialect.LOCALAI),
    replace(_CHECK_UPGRADES, path="/backends/upgrades/check", access=Permission.BACKENDS_ACT, dialect=Dialect.LOCALAI),
    replace(
        _UPGRADES,
        path="/api/v1/backends/upgrades",
        handler=list_upgrades,
        access=Permission.BACKENDS_READ,
        dialect=Dialect.NATIVE,
        summary="How what each node has stands against what galleries and registries offer, and when they were asked.",
        gives=UpgradesView,
        codes={200: "all backends that can be upgraded, by name"},
    ),
    replace(
        _CHECK_UPGRADES,
        path="/api/v1/backends/upgrades/check",
        handler=check_upgrades,
        access=Permission.BACKENDS_ACT,
        dialect=Dialect.NATIVE,
        summary="Look for newer versions soon; `checked_at` changes when that is done.",
        gives=UpgradesView,
        codes={202: "accepted, with what is known already"},
    ),
]
