"""`corral gallery`: which backends can be installed, and which nodes, or whether this machine, can run them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from corral.base.errors import NotFound
from corral.base.settings import settings_of
from corral.cli.client import ApiClient
from corral.cli.connection import NoFrontendKnown, open_client
from corral.cli.options import CorralCommand, given_flags, settings_options, sources, warn
from corral.cli.output import (
    Column,
    console,
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
    GalleryEntryView,
    GalleryListing,
    GalleryView,
)

if TYPE_CHECKING:
    from corral.cli.gallery_survey import Survey
    from corral.processes.settings_sources import SettingSources

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=GalleryEntryView)
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
    or with an option about galleries or this machine, galleries are read here and judged for this machine.
    """


@gallery.command("list", cls=CorralCommand)
@click.option("--builds", is_flag=True, help="List the builds behind meta backends as well.")
@click.option("--development", is_flag=True, help="List development versions as well.")
@click.option("--fitting", is_flag=True, help="List only what fits some node, or this machine.")
@json_option
@_surveying
def list_backends(builds: bool, development: bool, fitting: bool, local: bool, as_json: bool) -> None:
    """List the backends of all galleries.

    Whether one fits is told for the nodes of the fleet. Without one it is told for this machine, or for the capability
    that --capability names.
    """
    nothing = "There is no such backend in any gallery."
    client = _fleet(local=local)
    if client is not None:
        from corral.cli.gallery_fleet import fits_somewhere, offer_columns, offered, whose

        listing = offered(client)
        items = _visible(listing.items, builds=builds, development=development)
        listing.items = [view for view in items if not fitting or fits_somewhere(view)]
        _print(listing, listing.items, offer_columns(), whose=whose(client), nothing=nothing, as_json=as_json)
        return
    survey = _survey()
    listing_here = survey.listing(survey.catalogue.entries)
    visible = _visible(listing_here.items, builds=builds, development=development)
    listing_here.items = [view for view in visible if not fitting or view.fit.verdict == "fits"]
    _print(listing_here, listing_here.items, _columns(), whose=_whose(listing_here), nothing=nothing, as_json=as_json)


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
        from corral.cli.gallery_fleet import offer_columns, offered, whose

        listing = offered(client, term=term)
        nothing = _nothing_mentions(term, listing.near)
        _print(listing, listing.items, offer_columns(), whose=whose(client), nothing=nothing, as_json=as_json)
        return
    survey = _survey()
    listing_here = survey.listing(survey.catalogue.search(term))
    nothing = _nothing_mentions(term, survey.catalogue.near(term))
    _print(listing_here, listing_here.items, _columns(), whose=_whose(listing_here), nothing=nothing, as_json=as_json)


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
        from corral.cli.gallery_fleet import fit_facts, offer

        view = fleet_view = offer(client, name)
        fits = fit_facts(client, fleet_view)
    else:
        view, fits = _backend_here(name)
    show_view(view, lambda: facts(_facts(view, fits)), as_json=as_json)


def _backend_here(name: str) -> tuple[BackendView, list[tuple[str, str]]]:
    """A backend as read on this machine, and the facts whether it fits here."""
    survey = _survey()
    resolved = survey.catalogue.resolve(name, survey.node.effective_capability)
    if resolved.entry is None:
        raise NotFound(". ".join([resolved.message, *survey.readings.failures]))
    view = survey.backend(resolved.entry)
    view.fit = survey.fit(name)
    fits = [
        ("This machine", survey.node.effective_capability),
        ("Fits", _fit_words(view.fit)),
        ("Would fit", ", ".join(view.fit.would_fit)),
    ]
    return view, fits


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
        from corral.cli.gallery_fleet import offered

        views, read_by = offered(client, refresh=True).galleries, f"the fleet at {client.target.url}"
    else:
        from corral.cli.gallery_survey import fresh_survey

        views, read_by = _survey(fresh_survey).galleries(), "this machine"
    if as_json:
        print_json_list(views)
    else:
        show(table(_refresh_columns(), views, width=console().width))
        say(f"Read by {read_by}.")
        _say_skipped(views)
    failed = any(view.stale or not view.read_from for view in views)
    return ExitCode.UNAVAILABLE if failed else ExitCode.OK


def _fleet(*, local: bool) -> ApiClient | None:
    """A client of the fleet to ask; None when the command is about this machine, or there is no fleet."""
    flags = given_flags(click.get_current_context())
    about_machine = ["--local"] if local else sorted(_machine_flags() & flags.keys())
    if about_machine and "--url" in flags:
        raise click.UsageError(f"--url asks a fleet, and {about_machine[0]} is about this machine; give one of them.")
    if about_machine:
        return None
    try:
        return open_client()
    except NoFrontendKnown:
        return None


def _machine_flags() -> set[str]:
    """Flags that only matter when galleries are read on this machine."""
    settings = [setting for name in _OF_MACHINES for setting in settings_of(section(name))]
    flags = {setting.flag for setting in settings if setting.name in _OF_MACHINES[setting.section]}
    return flags - {"", "--data"}


def _survey(take: "Callable[[SettingSources], Survey] | None" = None) -> "Survey":
    from corral.cli.gallery_survey import survey

    given = sources()
    result = (take or survey)(given)
    warn(given.warnings)
    return result


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
    whose: str,
    nothing: str,
    as_json: bool,
) -> None:
    """Print the items, then what they apply to and the state of each gallery."""
    if as_json:
        print_json(listing)
        return
    if items:
        show(table(columns, items, width=console().width))
    else:
        say(nothing)
    say("")
    say(whose)
    for view in listing.galleries:
        say(f"{view.name}: {_state(view)}")
    _say_skipped(listing.galleries)


def _whose(listing: GalleryListing) -> str:
    return f"This machine is {listing.capability}."


def _columns() -> list[Column[BackendView]]:
    return [
        Column(title="NAME", cell=lambda backend: plain(backend.name)),
        Column(title="GALLERY", cell=lambda backend: plain(backend.gallery), least_width=70),
        Column(title="FITS", cell=lambda backend: _fits(backend.fit)),
        Column(title="BUILD, OR WHY NOT", cell=lambda backend: plain(backend.fit.build or backend.fit.reason)),
        Column(title="TAGS", cell=lambda backend: plain(", ".join(backend.tags)), least_width=150),
    ]


def _fits(fit: FitView) -> str:
    if fit.installed:
        return "[green]installed[/]"
    return "[green]yes[/]" if fit.verdict == "fits" else "[red]no[/]"


def _facts(view: GalleryEntryView, fits: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is known about a backend; empty fields are left out."""
    pairs = [
        ("Name", view.name),
        ("Gallery", view.gallery),
        ("Kind", _kind(view)),
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


def _kind(view: GalleryEntryView) -> str:
    kind = "meta backend: a name for one of several builds" if view.meta else "build"
    return f"{kind}, in development" if view.development else kind


def _fit_words(fit: FitView) -> str:
    if fit.verdict != "fits":
        return f"no: {fit.reason}"
    return f"yes, and it is installed: {fit.build}" if fit.installed else f"yes: {fit.build}"


def _refresh_columns() -> list[Column[GalleryView]]:
    return [
        Column(title="GALLERY", cell=lambda view: plain(view.name)),
        Column(title="ENTRIES", cell=lambda view: str(view.entries), right=True),
        Column(title="STATE", cell=lambda view: plain(_news(view))),
    ]


def _news(view: GalleryView) -> str:
    if view.stale or not view.read_from or view.problem:
        return _state(view)
    return "new version" if view.changed else "always as its file is" if view.checked_at is None else "unchanged"


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
