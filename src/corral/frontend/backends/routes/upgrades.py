"""Which backends are outdated: LocalAI's routes, and Corral's own. No route waits for galleries or registries."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.frontend.api.answers import answer
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, Dialect, RouteSpec
from corral.frontend.backends.decide.upgrades import Comparison, Judged
from corral.frontend.backends.upgrades import Findings
from corral.frontend.nodes.decide.node import SeenNode
from corral.wire.galleries import BackendUpgradeView, NodeDrift, NodeUpgradeView, UpgradeInfo, UpgradesView
from corral.wire.go_json import format_time


async def list_compat(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(_infos(await context.backends.upgrades.found()))


async def check_compat(context: AdminContext, request: Request, caller: Caller) -> Response:
    """As LocalAI does it: what is known is answered, and the look happens meanwhile."""
    context.backends.upgrades.ask()
    return await list_compat(context, request, caller)


async def list_native(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(_view(await context.backends.upgrades.found()))


async def check_native(context: AdminContext, request: Request, caller: Caller) -> Response:
    context.backends.upgrades.ask()
    return answer(_view(await context.backends.upgrades.found()), 202)


def _infos(found: Findings) -> dict[str, UpgradeInfo]:
    return {one.backend: _info(one) for one in found.backends if one.needs_upgrade}


def _info(one: Comparison) -> UpgradeInfo:
    version, digest = one.usual
    return UpgradeInfo(
        backend_name=one.backend,
        installed_version=version,
        available_version="" if one.offer is None else one.offer.version,
        installed_digest=digest,
        available_digest="" if one.offer is None else one.offer.digest,
        node_drift=[_drift(judged) for judged in one.differing],
    )


def _drift(judged: Judged) -> NodeDrift:
    holding = judged.holding
    version, digest = holding.build
    return NodeDrift(node_id=holding.node_id, node_name=holding.node_name, version=version, digest=digest)


def _view(found: Findings) -> UpgradesView:
    check = found.check
    items = [_backend_view(one, found) for one in found.backends]
    if check is None:
        return UpgradesView(checked_at=None, items=items)
    return UpgradesView(checked_at=format_time(check.at), problem=check.problem, items=items)


def _backend_view(one: Comparison, found: Findings) -> BackendUpgradeView:
    view = BackendUpgradeView(
        name=one.backend,
        needs_upgrade=one.needs_upgrade,
        installed_version=one.usual[0],
        installed_digest=one.usual[1],
        nodes=[_node_view(judged, found.nodes[judged.holding.node_id]) for judged in one.nodes],
    )
    if one.offer is not None:
        view.available_version, view.available_digest, view.uri = one.offer.version, one.offer.digest, one.offer.uri
        view.looked_at = None if one.offer.looked_at is None else format_time(one.offer.looked_at)
    return view


def _node_view(judged: Judged, seen: SeenNode) -> NodeUpgradeView:
    version, digest = judged.holding.build
    return NodeUpgradeView(
        node_id=seen.node.id,
        node_name=seen.node.name,
        node_status=seen.status.value,
        version=version,
        digest=digest,
        freshness=judged.freshness.value,
        reason=judged.reason,
        differs=judged.differs,
    )


_LIST = RouteSpec(
    method="GET",
    path="/api/backends/upgrades",
    handler=list_compat,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI_UI,
    summary="Backends of which something newer is to be had, or that differ between nodes.",
    gives=dict[str, UpgradeInfo],
    codes={200: "a map from names to what is known"},
)
_CHECK = replace(
    _LIST,
    method="POST",
    path="/api/backends/upgrades/check",
    handler=check_compat,
    summary="Look for newer versions soon; answers what is known already.",
)

ROUTES = [
    _LIST,
    _CHECK,
    replace(_LIST, path="/backends/upgrades", dialect=Dialect.LOCALAI),
    replace(_CHECK, path="/backends/upgrades/check", dialect=Dialect.LOCALAI),
    replace(
        _LIST,
        path="/api/v1/backends/upgrades",
        handler=list_native,
        dialect=Dialect.NATIVE,
        summary="How what each node has stands against what galleries and registries offer, and when they were asked.",
        gives=UpgradesView,
        codes={200: "all backends that can be upgraded, by name"},
    ),
    replace(
        _CHECK,
        path="/api/v1/backends/upgrades/check",
        handler=check_native,
        dialect=Dialect.NATIVE,
        summary="Look for newer versions soon; `checked_at` changes when that is done.",
        gives=UpgradesView,
        codes={202: "accepted, with what is known already"},
    ),
]
