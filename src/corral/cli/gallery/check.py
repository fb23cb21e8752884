"""`corral gallery check`: what Corral would make of every entry of a gallery of models. Needs no fleet."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from corral.base.errors import InvalidInput, PeerUnavailable
from corral.base.words import listed
from corral.cli.options import CorralCommand, command_sources, settings_options, warn
from corral.cli.output import Column, json_option, plain, print_json, quiet, say, show, table
from corral.processes.exit_codes import ExitCode

if TYPE_CHECKING:
    from corral.galleries.config import GalleriesConfig
    from corral.galleries.fetching import RegistryArtefacts
    from corral.galleries.model_check import CheckProblem, GalleryCheck
    from corral.galleries.model_galleries import ModelGalleries, ModelGalleryReading

_SETTINGS: Final = {
    "gallery": frozenset({"backend_galleries", "cache", "max_age", "timeout", "max_size"}),
    "images": frozenset({"registry_auth_file", "plain_registries"}),
}
_MOST_SHOWN: Final = 10
"""Problems of one kind that are shown without --all; `--json` has all."""
_NAME: Final = "checked"
_LOCALAI_IMAGES: Final = ("quay.io/", "ghcr.io/", "docker.io/")
"""How LocalAI knows an image without a scheme."""


@click.command("check", cls=CorralCommand)
@click.argument("place", metavar="FILE|URL")
@click.option("--backends", "backends_place", metavar="FILE|URL", help="The gallery of backends to compare with.")
@click.option("--all", "show_all", is_flag=True, help="Show all problems of a kind, not only the first ten.")
@json_option
@settings_options(**_SETTINGS)
def check(place: str, backends_place: str | None, show_all: bool, as_json: bool) -> int:
    """Check a gallery of models: tell, for each entry, what Corral would make of it.

    FILE is an index on this machine; a URL begins with https://, http://, github:, oci:// or file://. Base definitions
    that entries name are read too: beside the index if it is a file, or from where they are. Backends are compared with
    those of --backends, or of the configured galleries if all of them can be read.

    Ends with 1 if an entry is refused.
    """
    import asyncio

    sources = command_sources()
    with quiet():
        result = asyncio.run(_check(place, backends_place))
    warn(sources.warnings)
    if as_json:
        print_json(_as_json(result))
    else:
        _print(result, show_all=show_all)
    return ExitCode.FAILED if result.check.summary.refused else ExitCode.OK


class _Result(NamedTuple):
    url: str
    check: "GalleryCheck"
    unread_backends: str
    """Why backends were not compared; empty if they were."""


async def _check(place: str, backends_place: str | None) -> _Result:
    from corral.base.clock import SystemClock
    from corral.galleries.config import GalleriesConfig
    from corral.galleries.fetching import RegistryArtefacts
    from corral.galleries.model_check import CheckRules, check_gallery
    from corral.galleries.model_galleries import open_model_galleries
    from corral.processes.configs import images_config
    from corral.processes.settings_sources import resolve

    sources = command_sources()
    config = resolve(GalleriesConfig, sources)
    registry = RegistryArtefacts(images_config(sources), clock=SystemClock())
    names, problem = await _backend_names(config, registry, backends_place)
    async with open_model_galleries(config, registry=registry, clock=SystemClock()) as galleries:
        reading = await _read(galleries, place)
        definitions = await galleries.definitions(reading)
    is_local = any(entry.index_path for entry in reading.gallery.entries)
    rules = CheckRules(template_problem=_template_problem, uri_problem=_uri_check(is_local=is_local), backends=names)
    return _Result(reading.url, check_gallery(reading.gallery, definitions, rules), problem)


async def _read(galleries: "ModelGalleries", place: str) -> "ModelGalleryReading":
    from corral.galleries.gallery import GallerySource

    readings = await galleries.refresh([GallerySource(name=_NAME, url=_url(place))])
    (reading,) = readings.readings
    if not reading.is_known or reading.is_stale:
        problem = f"{place}: {reading.problem}"
        raise PeerUnavailable(problem) if "://" in place else InvalidInput("", problem)
    return reading


def _url(place: str) -> str:
    """A file of this machine, or what is a URL already."""
    is_url = "://" in place or place.startswith(("github:", "corral:"))
    return place if is_url else Path(place).expanduser().absolute().as_uri()


async def _backend_names(
    config: "GalleriesConfig", registry: "RegistryArtefacts", place: str | None
) -> tuple[frozenset[str], str]:
    """Names of all backends in lower case, with those that models use for them; or none, and why."""
    from corral.base.clock import SystemClock
    from corral.frontend.models.decide.uses import OTHER_NAMES
    from corral.galleries.galleries import open_galleries
    from corral.galleries.gallery import GallerySource

    async with open_galleries(config, registry=registry, clock=SystemClock()) as galleries:
        readings = await galleries.read(None if place is None else [GallerySource(name=_NAME, url=_url(place))])
    if readings.failures:
        if place is not None:
            raise InvalidInput("backends", f"{place}: {readings.readings[0].problem}")
        return frozenset(), readings.failures[0]
    entries = readings.catalogue.entries
    names = {word.lower() for entry in entries for word in (entry.name, entry.alias) if word}
    return frozenset(names | {other for other, alias in OTHER_NAMES.items() if alias.backend in names}), ""


def _template_problem(source: str) -> str | None:
    from corral.templates import template_problem

    problem = template_problem(source, "template")
    return None if problem is None else f"line {problem.line}: {problem.problem}"


def _uri_check(*, is_local: bool) -> Callable[[str], str | None]:
    from corral.hubs.references import FileReference, GalleryReference, HuggingFaceReference, parse_reference

    def problem(uri: str) -> str | None:
        if uri.startswith(_LOCALAI_IMAGES) or (is_local and uri.startswith("corral:")):
            return None
        try:
            reference = parse_reference(uri)
        except InvalidInput as error:
            return error.problem
        match reference:
            case GalleryReference():
                return f"{uri[:80]!r} is no address"
            case HuggingFaceReference(path=""):
                return f"{uri[:80]!r} names a repository, but no file of it"
            case FileReference() if not is_local:
                return f"{uri[:80]!r} is a file of the gallery's author"
        return None

    return problem


# What is printed.


def _as_json(result: _Result) -> dict[str, Any]:
    from msgspec.structs import asdict

    return {
        "url": result.url,
        "summary": asdict(result.check.summary),
        "backends_not_compared": result.unread_backends,
        "problems": [asdict(problem) for problem in result.check.problems],
    }


def _print(result: _Result, *, show_all: bool) -> None:
    from corral.galleries.model_check import CheckKind

    summary = result.check.summary
    for kind in CheckKind:
        problems = [problem for problem in result.check.problems if problem.kind is kind]
        if problems:
            _print_kind(kind, problems, most=len(problems) if show_all else _MOST_SHOWN)
    say(
        f"{summary.entries} entries: {summary.readable} can be installed, {summary.warned} of them with warnings; "
        f"{summary.refused} are refused."
    )
    if result.unread_backends:
        say(f"Backends were not compared, because {result.unread_backends}.")


class _ProblemRow(NamedTuple):
    """A problem, and the entries that have it: those of one base definition have its problems in common."""

    problem: "CheckProblem"
    entries: list[str]


def _rows(problems: "Sequence[CheckProblem]") -> list[_ProblemRow]:
    rows: dict[tuple[str, ...], _ProblemRow] = {}
    for problem in problems:
        place = () if problem.base else (problem.entry, str(problem.line))
        key = (problem.base, str(problem.line), problem.sentence, *place)
        rows.setdefault(key, _ProblemRow(problem, [])).entries.append(problem.entry)
    return list(rows.values())


def _print_kind(kind: str, problems: "Sequence[CheckProblem]", *, most: int) -> None:
    rows = _rows(problems)
    say(f"{kind[0].upper()}{kind[1:]}: {len(problems)}")
    show(table(_COLUMNS, rows[:most]))
    if len(rows) > most:
        say(f"… and {len(rows) - most} more; --all shows them.")
    say("")


def _severity(problem: "CheckProblem") -> str:
    colour = {"error": "red", "warning": "yellow"}.get(problem.severity, "dim")
    return f"[{colour}]{problem.severity}[/]"


def _where(problem: "CheckProblem") -> str:
    file = problem.base.rpartition("/")[2].partition("@")[0]
    return f"{file}:{problem.line}" if file else str(problem.line or "")


_COLUMNS: Final[Sequence[Column[_ProblemRow]]] = (
    Column(title="", cell=lambda row: _severity(row.problem)),
    Column(title="ENTRY", cell=lambda row: plain(listed(row.entries, most=1))),
    Column(title="LINE", cell=lambda row: plain(_where(row.problem))),
    Column(title="PROBLEM", cell=lambda row: plain(row.problem.sentence), wraps=True),
)
