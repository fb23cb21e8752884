"""`corral worker backends`: the backends of this machine, without a frontend."""

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import click

from corral.base.errors import CorralError, InvalidInput
from corral.base.words import printable
from corral.cli.options import CorralCommand, command_sources, print_error, settings_options, warn
from corral.cli.output import Column, answer, json_option, plain, print_json, print_table, quiet, state_text
from corral.cli.units import age, short_digest
from corral.processes.configs import images_config
from corral.processes.exit_codes import ExitCode
from corral.processes.settings import MACHINE_SETTINGS
from corral.processes.settings_sources import resolve
from corral.wire.state_words import Subject

if TYPE_CHECKING:
    from corral.processes.local_backends import LocalBackend, LocalBackends, LocalChange, LocalConfig, Newer
    from corral.worker.installing.progress import InstallStep, Report

T = TypeVar("T")
_WORDS: Final = {
    "installed": "is installed",
    "upgraded": "is upgraded",
    "unchanged": "is there already; nothing was fetched",
    "of the system": "came with the system; nothing was fetched. `--force` installs another one in front of it",
    "deleted": "is deleted",
    "absent": "is not here; nothing to do",
    "rolled back": "is back to the version before",
}


_on_this_machine = settings_options(worker=MACHINE_SETTINGS, gallery=None, images=None)
"""Adds the settings of this machine's worker that say where backends are and come from."""


@click.group()
def backends() -> None:
    """See and change the backends of this machine, without a frontend.

    These commands work on the directory of the worker and by its rules, so what changes something is refused while a
    worker runs on it: then ask that worker through its frontend. NAME is that of a backend, an alias or a meta backend,
    alone or as GALLERY@NAME.
    """


@backends.command("list", cls=CorralCommand)
@json_option
@_on_this_machine
def list_backends(as_json: bool) -> None:
    """List the backends of this machine, also while its worker runs."""
    from corral.processes.local_backends import list_local

    config, now = _config(), datetime.now(UTC)
    columns: Sequence[Column[LocalBackend]] = (
        Column(title="NAME", cell=lambda backend: plain(backend.name)),
        Column(title="KIND", cell=lambda backend: backend.kind),
        Column(title="VERSION", cell=lambda backend: plain(backend.version or backend.build or "–")),
        Column(title="INSTALLED", cell=lambda backend: age(backend.installed_at, now)),
        Column(title="BEFORE", cell=lambda backend: age(backend.previous_installed_at, now), least_width=90),
        Column(title="DIGEST", cell=lambda backend: plain(short_digest(backend.digest) or "–"), least_width=110),
        Column(title="FROM", cell=lambda backend: plain(backend.uri or backend.gallery or "–"), least_width=130),
    )
    nothing = f"There is no backend in {config.installing.backends}."
    print_table(_run(list_local(config)), columns, nothing=nothing, as_json=as_json)


@backends.command(cls=CorralCommand)
@click.argument("source", metavar="WHAT")
@click.option("--name", default="", metavar="NAME", help="What a backend from a uri shall be called.")
@click.option("--alias", default="", metavar="NAME", help="Another name for a backend from a uri.")
@click.option("--force", is_flag=True, help="Fetch it again even if it is installed.")
@json_option
@_on_this_machine
def install(source: str, name: str, alias: str, force: bool, as_json: bool) -> None:
    """Install a backend. Nothing happens when it is there already.

    WHAT is the name of a backend in a gallery, or a uri: an image (oci://…), an OCI layout or an image in a file
    (ocifile:///…), an archive (https://…, file:///…), or a directory.
    """
    from corral.worker.installing.orders import InstallOrder

    is_uri = "/" in source
    if not is_uri and (name or alias):
        raise InvalidInput("--name" if name else "--alias", "is for uris; a gallery's backend has its own")
    order = InstallOrder(backend=name if is_uri else source, uri=source if is_uri else "", name=name, alias=alias)

    async def act(local: "LocalBackends") -> "LocalChange":
        with install_bar(source) as report:
            return await local.install(order, report, force=force)

    _print_change(_run(_with_backends(_config(), act)), as_json=as_json)


@backends.command(cls=CorralCommand)
@json_option
@_on_this_machine
def outdated(as_json: bool) -> int:
    """Compare what is installed with what galleries and registries have now, also while the worker runs.

    A tag that was moved counts, also where the gallery tells no versions. Ends with 69 when something could not be
    asked.
    """
    rows = _run(_with_backends(_config(), lambda local: local.compared(), lock=False))
    print_table(rows, _NEWER_COLUMNS, nothing="Nothing is installed.", as_json=as_json)
    return ExitCode.UNAVAILABLE if any(row.state == "unreachable" for row in rows) else ExitCode.OK


@backends.command(cls=CorralCommand)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Upgrade everything that is installed.")
@json_option
@_on_this_machine
def upgrade(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """Bring backends to the newest version. What is new already is not fetched again."""
    if bool(names) == every:
        raise click.UsageError("Name the backends to upgrade, or give --all.")

    async def act(local: "LocalBackends") -> "tuple[list[LocalChange], list[str]]":
        done, failed = [], []
        for name in names or await local.upgradeable():
            try:
                with install_bar(name) as report:
                    done.append(await local.upgrade(name, report))
            except CorralError as error:
                failed.append(f"{name}: {error.message}")
        return done, failed

    done, failed = _run(_with_backends(_config(), act))
    if as_json:
        print_json({"changed": done, "failed": failed})
    else:
        for changed in done:
            _print_change(changed, as_json=False)
    for problem in failed:
        print_error(problem)
    return ExitCode.FAILED if failed else ExitCode.OK


@backends.command(cls=CorralCommand)
@click.argument("name")
@json_option
@_on_this_machine
def delete(name: str, as_json: bool) -> None:
    """Remove a backend, with the version before it. One that is not here is no mistake."""
    _print_change(_run(_with_backends(_config(), lambda local: local.delete(name))), as_json=as_json)


@backends.command(cls=CorralCommand)
@click.argument("name")
@json_option
@_on_this_machine
def rollback(name: str, as_json: bool) -> None:
    """Go back to the version before the present one, without fetching anything. Once more leads forward again."""
    _print_change(_run(_with_backends(_config(), lambda local: local.roll_back(name))), as_json=as_json)


@backends.command(cls=CorralCommand)
@json_option
@_on_this_machine
def repair(as_json: bool) -> None:
    """Put right what a crash left. A worker does the same when it starts."""

    async def act(local: "LocalBackends") -> list[str]:
        return list(local.repaired)

    repaired = _run(_with_backends(_config(), act))
    sentence = f"Put right: {', '.join(repaired)}" if repaired else "Nothing was left behind."
    answer({"repaired": repaired}, sentence, as_json=as_json)


def _config() -> "LocalConfig":
    from corral.galleries.config import GalleriesConfig
    from corral.processes.installing import InstallingConfig
    from corral.processes.local_backends import LocalConfig, machine_config

    sources = command_sources()
    machine = machine_config(sources)
    installing = InstallingConfig(
        backends=machine.backends,
        galleries=resolve(GalleriesConfig, sources),
        images=images_config(sources),
        system=machine.system_backends,
    )
    warn(sources.warnings)
    return LocalConfig(machine=machine, installing=installing)


def _run(work: "Coroutine[None, None, T]") -> T:
    import asyncio

    with quiet():
        return asyncio.run(work)


async def _with_backends(
    config: "LocalConfig", act: "Callable[[LocalBackends], Awaitable[T]]", *, lock: bool = True
) -> T:
    from corral.processes.local_backends import open_local

    async with open_local(config, lock=lock) as local:
        return await act(local)


def _print_change(changed: "LocalChange", *, as_json: bool) -> None:
    build = " ".join(filter(None, (changed.version, short_digest(changed.digest))))
    sentence = f"{changed.name} {_WORDS[changed.outcome]}{f' ({build})' if build else ''}."
    answer(changed, sentence, as_json=as_json)


_NEWER_COLUMNS: "Final[Sequence[Column[Newer]]]" = (
    Column(title="NAME", cell=lambda backend: plain(backend.name)),
    Column(title="STATE", cell=lambda backend: state_text(Subject.FRESHNESS, backend.state)),
    Column(title="INSTALLED", cell=lambda backend: plain(short_digest(backend.installed) or "–")),
    Column(title="AVAILABLE", cell=lambda backend: plain(short_digest(backend.available) or "–")),
    Column(title="REASON", cell=lambda backend: plain(backend.reason)),
)


@contextmanager
def install_bar(name: str) -> "Iterator[Report]":
    """A progress bar for one install on standard error; nothing when that is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from corral.worker.installing.progress import Onward

    words = TextColumn("{task.fields[phase]:<11} {task.description}", markup=False)
    columns = (words, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task, onward = bar.add_task(printable(name), phase="resolving", total=None), Onward()

        def report(step: "InstallStep") -> None:
            progress = onward.after(step)
            bar.update(task, completed=progress.done, total=progress.total or None, phase=progress.phase.value)

        yield report
