"""`corral gallery`: which backends there are, and which of them fit this machine. Needs no frontend."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from corral.app.exit_codes import ExitCode
from corral.app.settings_table import MACHINE_SETTINGS, GallerySettings, ImageSettings, WorkerSettings
from corral.cli.options import CorralCommand, settings_options, sources, warn
from corral.cli.output import Column, console, facts, json_option, plain, print_json, print_json_list, say, show, table

if TYPE_CHECKING:
    from corral.app.settings_sources import Sources
    from corral.cli.gallery_survey import Survey
    from corral.domain.gallery import GalleryEntry
    from corral.protocol.gallery_views import BackendView, FitView, GalleryView

F = TypeVar("F", bound=Callable[..., Any])
_MOST_TOLD: Final = 5
"""Entries that cannot be used which a listing names; `--json` has all."""


def _surveying(function: F) -> F:
    """Adds the settings by which galleries are found and machines are judged."""
    return settings_options(GallerySettings, WorkerSettings, ImageSettings, only=_SETTINGS)(function)


_OF_GALLERIES: Final = frozenset({"backend_galleries", "cache", "max_age", "timeout", "max_size"})
_OF_REGISTRIES: Final = frozenset({"registry_auth_file", "plain_registries"})
_SETTINGS: Final = MACHINE_SETTINGS | _OF_GALLERIES | _OF_REGISTRIES


@click.group()
def gallery() -> None:
    """See which backends can be had, and which fit this machine."""


@gallery.command("list", cls=CorralCommand)
@click.option("--builds", is_flag=True, help="List the builds behind meta backends as well.")
@click.option("--development", is_flag=True, help="List development versions as well.")
@click.option("--fitting", is_flag=True, help="List only what fits this machine.")
@json_option
@_surveying
def list_backends(builds: bool, development: bool, fitting: bool, as_json: bool) -> None:
    """List the backends of all galleries.

    Whether one fits is told for this machine, or for the capability that --capability names.
    """
    seen = _survey()
    entries = seen.catalogue.entries if builds else _without_builds(seen.catalogue.entries)
    shown = [entry for entry in entries if development or not entry.is_development]
    if fitting:
        shown = [entry for entry in shown if seen.fit(entry.id).verdict == "fits"]
    _print(seen, shown, nothing="There is no such backend in any gallery.", as_json=as_json)


@gallery.command(cls=CorralCommand)
@click.argument("words", nargs=-1, required=True)
@json_option
@_surveying
def search(words: tuple[str, ...], as_json: bool) -> None:
    """Find backends by their names, aliases, tags and descriptions.

    What is found mentions all words. Builds and development versions are searched too.
    """
    seen = _survey()
    term = " ".join(words)
    near = seen.catalogue.near(term)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    _print(seen, seen.catalogue.search(term), nothing=f"No backend mentions {term!r}{hint}", as_json=as_json)


@gallery.command("show", cls=CorralCommand)
@click.argument("name")
@json_option
@_surveying
def show_backend(name: str, as_json: bool) -> None:
    """Show one backend, and which build NAME means on this machine.

    NAME is that of a build, a meta backend or an alias, alone or as GALLERY@NAME.
    """
    from corral.base.errors import NotFound

    seen = _survey()
    resolved = seen.catalogue.resolve(name, seen.node.effective_capability)
    if resolved.entry is None:
        raise NotFound(". ".join([resolved.message, *seen.readings.failures]))
    view = seen.backend(resolved.entry)
    view.fit = seen.fit(name)
    if as_json:
        print_json(view)
    else:
        show(facts(_facts(view, capability=seen.node.effective_capability)))


@gallery.command(cls=CorralCommand)
@json_option
@_surveying
def refresh(as_json: bool) -> int:
    """Ask every gallery for something new, now.

    Processes of this machine that share the cache see it from then on, without a restart.
    """
    from corral.cli.gallery_survey import fresh_survey

    seen = _survey(fresh_survey)
    views = [seen.gallery(reading) for reading in seen.readings.readings]
    if as_json:
        print_json_list(views)
    else:
        show(table(_refresh_columns(), views, width=console().width))
        _tell_skipped(views)
    failed = any(view.stale or not view.read_from for view in views)
    return ExitCode.UNAVAILABLE if failed else ExitCode.OK


def _survey(take: "Callable[[Sources], Survey] | None" = None) -> "Survey":
    from corral.cli.gallery_survey import survey

    found = sources()
    seen = (take or survey)(found)
    warn(found.warnings)
    return seen


def _without_builds(entries: "Iterable[GalleryEntry]") -> "list[GalleryEntry]":
    """Meta backends, and builds that none of them names: what people would ask for."""
    listed = list(entries)
    behind = {target.lower() for entry in listed if entry.is_meta for target in entry.capabilities.values()}
    return [entry for entry in listed if entry.name.lower() not in behind]


def _print(seen: "Survey", entries: "list[GalleryEntry]", *, nothing: str, as_json: bool) -> None:
    listing = seen.listing(entries)
    if as_json:
        print_json(listing)
        return
    if listing.items:
        show(table(_columns(), listing.items, width=console().width))
    else:
        say(nothing)
    say("")
    say(f"This machine is {listing.capability}.")
    for view in listing.galleries:
        say(f"{view.name}: {_state(view)}")
    _tell_skipped(listing.galleries)


def _columns() -> "list[Column[BackendView]]":
    return [
        Column(title="NAME", cell=lambda backend: plain(backend.name)),
        Column(title="GALLERY", cell=lambda backend: plain(backend.gallery), least_width=70),
        Column(title="FITS", cell=lambda backend: _fits(backend.fit)),
        Column(title="BUILD, OR WHY NOT", cell=lambda backend: plain(backend.fit.build or backend.fit.reason)),
        Column(title="TAGS", cell=lambda backend: plain(", ".join(backend.tags)), least_width=150),
    ]


def _fits(fit: "FitView") -> str:
    if fit.installed:
        return "[green]installed[/]"
    return "[green]yes[/]" if fit.verdict == "fits" else "[red]no[/]"


def _facts(view: "BackendView", *, capability: str) -> list[tuple[str, str]]:
    """What there is nothing to say of is left out."""
    pairs = [
        ("Name", view.name),
        ("Gallery", view.gallery),
        ("Kind", _kind(view)),
        ("Alias", view.alias),
        ("Version", view.version),
        ("License", view.license),
        ("Tags", ", ".join(view.tags)),
        ("This machine", capability),
        ("Fits", _fit_words(view.fit)),
        ("Would fit", ", ".join(view.fit.would_fit)),
        ("From", view.uri),
        *(("Mirror", mirror) for mirror in view.mirrors),
        *((f"Build for {key}", build) for key, build in sorted(view.capabilities.items())),
        *(("See", url) for url in view.urls),
        ("About", " ".join(view.description.split())),
    ]
    return [(plain(name), plain(text)) for name, text in pairs if text]


def _kind(view: "BackendView") -> str:
    kind = "meta backend: a name for one of several builds" if view.meta else "build"
    return f"{kind}, in development" if view.development else kind


def _fit_words(fit: "FitView") -> str:
    if fit.verdict != "fits":
        return f"no: {fit.reason}"
    return f"yes, and it is installed: {fit.build}" if fit.installed else f"yes: {fit.build}"


def _refresh_columns() -> "list[Column[GalleryView]]":
    return [
        Column(title="GALLERY", cell=lambda view: plain(view.name)),
        Column(title="ENTRIES", cell=lambda view: str(view.entries), right=True),
        Column(title="STATE", cell=lambda view: plain(_news(view))),
    ]


def _news(view: "GalleryView") -> str:
    if view.stale or not view.read_from or view.problem:
        return _state(view)
    return "new version" if view.changed else "always as its file is" if view.checked_at is None else "unchanged"


def _state(view: "GalleryView") -> str:
    """How a gallery is known, and how well."""
    from corral.cli.humane import ago

    if not view.read_from:
        return f"cannot be read: {view.problem}"
    told = f"{view.entries} entries from {view.read_from}"
    if view.age_seconds is not None:
        told += f", checked {ago(view.age_seconds)}"
    if view.stale:
        return f"old copy, {told}: {view.problem}"
    return f"{told} (before that: {view.problem})" if view.problem else told


def _tell_skipped(views: "list[GalleryView]") -> None:
    skipped = [entry for view in views for entry in view.skipped]
    for entry in skipped[:_MOST_TOLD]:
        where = f" in line {entry.line}" if entry.line else ""
        say(f"Passed over: {entry.gallery}: {entry.name or 'an entry'}{where}: {entry.problem}")
    if len(skipped) > _MOST_TOLD:
        say(f"{len(skipped) - _MOST_TOLD} more were passed over; --json lists them.")
