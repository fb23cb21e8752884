"""`corral gallery`: which backends can be installed, and which nodes, or whether this machine, can run them.

The check of galleries of models is in `gallery_check.py`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from corral.base.errors import NotFound
from corral.base.settings import settings_of
from corral.base.words import listed, sentences
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import NoFrontendKnown, open_client
from corral.cli.gallery.check import check
from corral.cli.options import CorralCommand, command_sources, given_flags, settings_options, warn
from corral.cli.output import (
    Column,
    facts,
    json_option,
    plain,
    print_json,
    print_json_list,
    say,
    show,
    show_view,
    table,
)
from corral.cli.units import ago
from corral.processes.exit_codes import ExitCode
from corral.processes.settings import MACHINE_SETTINGS, section
from corral.wire.galleries import (
    BackendView,
    FitView,
    FleetGalleryListing,
    FleetOfferView,
    GalleryEntryView,
    GalleryListing,
    GalleryView,
)

if TYPE_CHECKING:
    from corral.cli.gallery.survey import Survey

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=GalleryEntryView)
_NO_GPU: Final = "default"
"""The capability of a machine without a GPU that a build is made for."""
_MOST_NAMED: Final = 5
"""How many unusable entries a listing names; `--json` has all."""


_OF_CLIENTS: Final = frozenset({"url", "key_file", "data", "timeout"})
_OF_GALLERIES: Final = frozenset({"backend_galleries", "cache", "max_age", "timeout", "max_size"})
_OF_REGISTRIES: Final = frozenset({"registry_auth_file", "plain_registries"})
_OF_MACHINES: Final = {"gallery": _OF_GALLERIES, "worker": MACHINE_SETTINGS, "images": _OF_REGISTRIES}


def _surveying(function: F) -> F:
    """Adds --local and the settings for finding the fleet, reading galleries and judging this machine."""
    function = settings_options(client=_OF_CLIENTS, **_OF_MACHINES)(function)
    return click.option("--local", is_flag=True, help="Read galleries for this machine, though there is a fleet.")(
        function
    )


@click.group()
def gallery() -> None:
    """See which backends can be had, and which nodes can use them.

    The fleet is asked where there is one: the galleries of its frontend, and its nodes. Without a fleet, with --local,
    or with an option about galleries or this machine, galleries are read here and judged for this machine. `check` is
    for authors of galleries of models.
    """


gallery.add_command(check)


@gallery.command("list", cls=CorralCommand)
@click.option("--builds", is_flag=True, help="List the builds behind meta backends as well.")
@click.option("--development", is_flag=True, help="List development versions as well.")
@click.option("--fitting", is_flag=True, help="List only what fits some node, or this machine.")
@json_option
@_surveying
def list_backends(builds: bool, development: bool, fitting: bool, local: bool, as_json: bool) -> None:
    """List the backends of all galleries.

    The column of fit is about the nodes of the fleet. Without a fleet it is about this machine, or about the capability
    that --capability names.
    """
    nothing = "There is no such backend in any gallery."
    client = _fleet(local=local)
    if client is not None:
        listing = _offered(client)
        items = _visible(listing.items, builds=builds, development=development)
        listing.items = [view for view in items if not fitting or any(fit.verdict == "fits" for fit in view.fits)]
        _print(listing, listing.items, _OFFER_COLUMNS, about=_about_fleet(client), nothing=nothing, as_json=as_json)
        return
    survey = _survey()
    listing_here = survey.listing(survey.catalogue.entries)
    visible = _visible(listing_here.items, builds=builds, development=development)
    listing_here.items = [view for view in visible if not fitting or view.fit.verdict == "fits"]
    _print_here(listing_here, nothing=nothing, as_json=as_json)


@gallery.command(cls=CorralCommand)
@click.argument("words", nargs=-1, required=True)
@json_option
@_surveying
def search(words: tuple[str, ...], local: bool, as_json: bool) -> None:
    """Find backends by their names, aliases, tags and descriptions.

    What is found mentions all words. Builds and development versions are searched too.
    """
    term = " ".join(words)
    client = _fleet(local=local)
    if client is not None:
        listing = _offered(client, [("term", term)])
        nothing = _nothing_mentions(term, listing.near)
        _print(listing, listing.items, _OFFER_COLUMNS, about=_about_fleet(client), nothing=nothing, as_json=as_json)
        return
    survey = _survey()
    nothing = _nothing_mentions(term, survey.catalogue.near(term))
    _print_here(survey.listing(survey.catalogue.search(term)), nothing=nothing, as_json=as_json)


def _nothing_mentions(term: str, near: Sequence[str]) -> str:
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return f"No backend mentions {term!r}{hint}"


@gallery.command("show", cls=CorralCommand)
@click.argument("name")
@json_option
@_surveying
def show_backend(name: str, local: bool, as_json: bool) -> None:
    """Show one backend, and which build NAME means on the nodes of the fleet, or on this machine.

    NAME is that of a build, a meta backend or an alias, alone or as GALLERY@NAME.
    """
    client = _fleet(local=local)
    view: GalleryEntryView
    if client is not None:
        view = offer = client.get(api_path("galleries", "backends", name), FleetOfferView)
        fits = _fleet_facts(client, offer)
    else:
        view, fits = _backend_here(name)
    show_view(view, lambda: facts(_facts(view, fits)), as_json=as_json)


def _fleet_facts(client: ApiClient, offer: FleetOfferView) -> list[tuple[str, str]]:
    """Which nodes can run a backend."""
    fits = [
        ("Fits", f"{'yes' if fit.verdict == 'fits' else 'no'} on {listed(fit.nodes)}: {fit.build or fit.reason}")
        for fit in offer.fits
    ]
    would = dict.fromkeys(name for fit in offer.fits for name in fit.would_fit)
    return [
        ("Fleet", client.target.url),
        *(fits or [("Fits", "the fleet has no nodes")]),
        ("Would fit", ", ".join(would)),
        ("Installed on", listed(_installed_on(offer))),
    ]


def _backend_here(name: str) -> tuple[BackendView, list[tuple[str, str]]]:
    """A backend as read on this machine, and the facts whether it fits here."""
    survey = _survey()
    resolved = survey.catalogue.resolve(name, survey.node.effective_capability)
    if resolved.entry is None:
        raise NotFound(sentences([resolved.message, *survey.readings.failures]))
    view = survey.backend(resolved.entry)
    fit = view.fit = survey.fit(name)
    verdict = f"no: {fit.reason}"
    if fit.verdict == "fits":
        verdict = f"yes, and it is installed: {fit.build}" if fit.installed else f"yes: {fit.build}"
    machine = ("This machine", survey.node.effective_capability)
    return view, [machine, ("Fits", verdict), ("Would fit", ", ".join(fit.would_fit))]


@gallery.command(cls=CorralCommand)
@json_option
@_surveying
def refresh(local: bool, as_json: bool) -> int:
    """Ask every gallery for something new, now.

    The frontend of the fleet asks, and answers with what it found. On this machine, processes that share the cache see
    it from then on, without a restart.
    """
    client = _fleet(local=local)
    if client is not None:
        views, read_by = _offered(client, [("refresh", "1")]).galleries, f"the fleet at {client.target.url}"
    else:
        views, read_by = _survey(refresh=True).galleries(), "this machine"
    if as_json:
        print_json_list(views)
    else:
        show(table(_REFRESH_COLUMNS, views))
        say(f"Read by {read_by}.")
        _say_skipped(views)
    failed = any(view.stale or not view.read_from for view in views)
    return ExitCode.UNAVAILABLE if failed else ExitCode.OK


def _fleet(*, local: bool) -> ApiClient | None:
    """A client of the fleet to ask; None when the command is about this machine, or there is no fleet."""
    flags = given_flags(click.get_current_context())
    settings = [setting for name in _OF_MACHINES for setting in settings_of(section(name))]
    machine_flags = {setting.flag for setting in settings if setting.name in _OF_MACHINES[setting.section]}
    about_machine = ["--local"] if local else sorted((machine_flags - {"", "--data"}) & flags.keys())
    if about_machine and "--url" in flags:
        raise click.UsageError(f"--url asks a fleet, and {about_machine[0]} is about this machine; give one of them.")
    if about_machine:
        return None
    try:
        return open_client()
    except NoFrontendKnown:
        return None


def _offered(client: ApiClient, query: Sequence[tuple[str, str]] = ()) -> FleetGalleryListing:
    return client.get("/api/v1/galleries", FleetGalleryListing, query)


def _survey(*, refresh: bool = False) -> "Survey":
    """What galleries offer this machine; with `refresh`, every gallery is asked for changes."""
    from corral.cli.gallery.survey import take_survey

    sources = command_sources()
    survey = take_survey(sources, refresh=refresh)
    warn(sources.warnings)
    return survey


def _visible(views: Sequence[V], *, builds: bool, development: bool) -> list[V]:
    """Hide builds that a meta backend stands for, and development versions, unless asked for."""
    behind = {target.lower() for view in views if view.meta for target in view.capabilities.values()}
    return [
        view for view in views if (builds or view.name.lower() not in behind) and (development or not view.development)
    ]


def _print(
    listing: GalleryListing | FleetGalleryListing,
    items: Sequence[V],
    columns: Sequence[Column[V]],
    *,
    about: str,
    nothing: str,
    as_json: bool,
) -> None:
    """Print the items, then what they apply to and the state of each gallery."""
    if as_json:
        print_json(listing)
        return
    if items:
        show(table(columns, items))
    else:
        say(nothing)
    say("")
    say(about)
    for view in listing.galleries:
        say(f"{view.name}: {_state(view)}")
    _say_skipped(listing.galleries)


def _print_here(listing: GalleryListing, *, nothing: str, as_json: bool) -> None:
    about = f"This is for this machine, whose capability is {listing.capability}"
    about += ": it has no GPU that a build is made for." if listing.capability == _NO_GPU else "."
    _print(listing, listing.items, _COLUMNS, about=about, nothing=nothing, as_json=as_json)


def _about_fleet(client: ApiClient) -> str:
    return f"This is for the nodes of the fleet at {client.target.url}; --local tells it for this machine."


def _fits_here(fit: FitView) -> str:
    if fit.installed:
        return "[green]installed[/]"
    return "[green]yes[/]" if fit.verdict == "fits" else "[red]no[/]"


_COLUMNS: Final[Sequence[Column[BackendView]]] = (
    Column(title="NAME", cell=lambda backend: plain(backend.name)),
    Column(title="GALLERY", cell=lambda backend: plain(backend.gallery), least_width=70),
    Column(title="FITS", cell=lambda backend: _fits_here(backend.fit)),
    Column(title="BUILD, OR WHY NOT", cell=lambda backend: plain(backend.fit.build or backend.fit.reason)),
    Column(title="TAGS", cell=lambda backend: plain(", ".join(backend.tags)), least_width=150),
)


def _fits_where(offer: FleetOfferView) -> str:
    nodes = [name for fit in offer.fits if fit.verdict == "fits" for name in fit.nodes]
    if not offer.fits:
        return "–"
    if not nodes:
        return "[red]no node[/]"
    is_everywhere = all(fit.verdict == "fits" for fit in offer.fits)
    return "[green]all nodes[/]" if is_everywhere else f"[green]{plain(listed(nodes))}[/]"


def _builds(offer: FleetOfferView) -> str:
    if not offer.fits:
        return "the fleet has no nodes"
    builds = dict.fromkeys(fit.build for fit in offer.fits if fit.build)
    return ", ".join(builds) or offer.fits[0].reason


def _installed_on(offer: FleetOfferView) -> list[str]:
    return [name for fit in offer.fits for name in fit.installed_on]


_OFFER_COLUMNS: Final[Sequence[Column[FleetOfferView]]] = (
    Column(title="NAME", cell=lambda offer: plain(offer.name)),
    Column(title="GALLERY", cell=lambda offer: plain(offer.gallery), least_width=70),
    Column(title="FITS", cell=_fits_where),
    Column(title="BUILD, OR WHY NOT", cell=lambda offer: plain(_builds(offer))),
    Column(title="INSTALLED ON", cell=lambda offer: plain(listed(_installed_on(offer)) or "–"), least_width=100),
    Column(title="TAGS", cell=lambda offer: plain(", ".join(offer.tags)), least_width=150),
)


def _facts(view: GalleryEntryView, fits: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is known about a backend; empty fields are left out."""
    kind = "meta backend: a name for one of several builds" if view.meta else "build"
    pairs = [
        ("Name", view.name),
        ("Gallery", view.gallery),
        ("Kind", f"{kind}, in development" if view.development else kind),
        ("Alias", view.alias),
        ("Version", view.version),
        ("License", view.license),
        ("Tags", ", ".join(view.tags)),
        *fits,
        ("From", view.uri),
        *(("Mirror", mirror) for mirror in view.mirrors),
        *((f"Build for {key}", build) for key, build in sorted(view.capabilities.items())),
        *(("See", url) for url in view.urls),
        ("About", " ".join(view.description.split())),
    ]
    return [(plain(name), plain(text)) for name, text in pairs if text]


def _news(view: GalleryView) -> str:
    if view.stale or not view.read_from or view.problem:
        return _state(view)
    return "new version" if view.changed else "always as its file is" if view.checked_at is None else "unchanged"


_REFRESH_COLUMNS: Final[Sequence[Column[GalleryView]]] = (
    Column(title="GALLERY", cell=lambda view: plain(view.name)),
    Column(title="ENTRIES", cell=lambda view: str(view.entries), right=True),
    Column(title="STATE", cell=lambda view: plain(_news(view))),
)


def _state(view: GalleryView) -> str:
    """Where the entries of a gallery come from, and how old they are."""
    if not view.read_from:
        return f"cannot be read: {view.problem}"
    text = f"{view.entries} entries from {view.read_from}"
    if view.age_seconds is not None:
        text += f", checked {ago(view.age_seconds)}"
    if view.stale:
        return f"old copy, {text}: {view.problem}"
    return f"{text} (before that: {view.problem})" if view.problem else text


def _say_skipped(views: Sequence[GalleryView]) -> None:
    skipped = [entry for view in views for entry in view.skipped]
    for entry in skipped[:_MOST_NAMED]:
        where = f" in line {entry.line}" if entry.line else ""
        say(f"Passed over: {entry.gallery}: {entry.name or 'an entry'}{where}: {entry.problem}")
    if len(skipped) > _MOST_NAMED:
        say(f"{len(skipped) - _MOST_NAMED} more were passed over; --json lists them.")
