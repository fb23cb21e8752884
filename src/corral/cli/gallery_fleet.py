"""The part of `corral gallery` that asks a fleet: what its galleries offer, and which nodes can run it."""

from typing import Final

from corral.base.words import listed
from corral.cli.client import ApiClient, api_path
from corral.cli.output import Column, plain
from corral.wire.galleries import FleetGalleryListing, FleetOfferView, NodesFitView

_PATH: Final = "/api/v1/galleries"


def offered(client: ApiClient, *, term: str = "", refresh: bool = False) -> FleetGalleryListing:
    """What the fleet's galleries offer; with a term, only what mentions all its words."""
    query = [("term", term)] if term else []
    return client.get(_PATH, FleetGalleryListing, [*query, ("refresh", "1")] if refresh else query)


def offer(client: ApiClient, name: str) -> FleetOfferView:
    """One backend of the galleries; NotFound suggests similar names."""
    return client.get(api_path("galleries", "backends", name), FleetOfferView)


def fits_somewhere(view: FleetOfferView) -> bool:
    return any(fit.verdict == "fits" for fit in view.fits)


def whose(client: ApiClient) -> str:
    """The sentence below a listing that says it is about the fleet."""
    return f"This is for the nodes of the fleet at {client.target.url}; --local tells it for this machine."


def fit_facts(client: ApiClient, view: FleetOfferView) -> list[tuple[str, str]]:
    """Which nodes can run a backend, for `corral gallery show`."""
    fits = [("Fits", f"{_verdict(fit)} on {listed(fit.nodes)}: {fit.build or fit.reason}") for fit in view.fits]
    would = dict.fromkeys(name for fit in view.fits for name in fit.would_fit)
    return [
        ("Fleet", client.target.url),
        *(fits or [("Fits", "the fleet has no nodes")]),
        ("Would fit", ", ".join(would)),
        ("Installed on", listed(_installed_on(view))),
    ]


def _verdict(fit: NodesFitView) -> str:
    return "yes" if fit.verdict == "fits" else "no"


def offer_columns() -> list[Column[FleetOfferView]]:
    return [
        Column(title="NAME", cell=lambda view: plain(view.name)),
        Column(title="GALLERY", cell=lambda view: plain(view.gallery), least_width=70),
        Column(title="FITS", cell=_where),
        Column(title="BUILD, OR WHY NOT", cell=lambda view: plain(_builds(view))),
        Column(title="INSTALLED ON", cell=lambda view: plain(listed(_installed_on(view)) or "–"), least_width=100),
        Column(title="TAGS", cell=lambda view: plain(", ".join(view.tags)), least_width=150),
    ]


def _where(view: FleetOfferView) -> str:
    nodes_that_fit = [name for fit in view.fits if fit.verdict == "fits" for name in fit.nodes]
    if not view.fits:
        return "–"
    if not nodes_that_fit:
        return "[red]no node[/]"
    is_everywhere = all(fit.verdict == "fits" for fit in view.fits)
    return "[green]all nodes[/]" if is_everywhere else f"[green]{plain(listed(nodes_that_fit))}[/]"


def _builds(view: FleetOfferView) -> str:
    if not view.fits:
        return "the fleet has no nodes"
    builds = dict.fromkeys(fit.build for fit in view.fits if fit.build)
    return ", ".join(builds) or view.fits[0].reason


def _installed_on(view: FleetOfferView) -> list[str]:
    return [name for fit in view.fits for name in fit.installed_on]
