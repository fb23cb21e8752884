"""`corral doctor` asks all diagnostics, shows what they found, and ends with 1 when something is wrong."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from corral.cli.connection import connected
from corral.cli.options import CorralCommand, sources, warn
from corral.cli.output import facts, json_option, plain, print_json, show, styled
from corral.processes.exit_codes import ExitCode
from corral.wire.nodes import Finding

if TYPE_CHECKING:
    from corral.cli.doctor.examination import Examination

PROBLEM: Final = "problem"


def local_diagnostics(seen: "Examination") -> "Sequence[Callable[[Examination], Finding | None]]":
    """In the order in which a person would look. None: the question does not arise.

    Whoever names a frontend asks about that fleet: what else is on this machine, a fleet of `corral up` for example,
    is of no interest then.
    """

    from corral.cli.doctor import frontend, machine

    of_frontend = (frontend.check_frontend, frontend.check_key, frontend.check_version, frontend.check_clock)
    if seen.settings.url:
        return of_frontend
    of_data = (machine.check_data_directory, machine.check_disk_space, machine.check_processes)
    return (*of_data, *of_frontend, machine.check_nats, machine.check_port)


@click.command(cls=CorralCommand)
@json_option
@connected
def doctor(as_json: bool) -> int:
    """Find out what is wrong, and say what to do.

    Looks at this machine, and at the frontend if there is one; with --url only at that one. Ends with 1 when there is
    a problem, with 0 when there are only warnings.
    """
    from corral.cli.doctor.examination import examine
    from corral.processes.settings import ClientSettings
    from corral.processes.settings_sources import resolve

    found = sources()
    seen = examine(resolve(ClientSettings, found))
    here = [finding for check in local_diagnostics(seen) if (finding := check(seen)) is not None]
    there = seen.frontend.report.findings if seen.frontend.report is not None else []
    if as_json:
        print_json({"here": here, "frontend": there})
    else:
        warn(found.warnings)
        _show(here, there)
    problems = [finding for finding in [*here, *there] if finding.level == PROBLEM]
    return ExitCode.FAILED if problems else ExitCode.OK


def _show(here: Sequence[Finding], there: Sequence[Finding]) -> None:
    show("[bold]On this machine[/]")
    show(facts([_row(finding) for finding in here]))
    if there:
        show("\n[bold]At the frontend[/]")
        show(facts([_row(finding) for finding in there]))
    counted = [finding.level for finding in [*here, *there]]
    problems, warnings = counted.count(PROBLEM), counted.count("warning")
    if not problems and not warnings:
        show("\nAll is well.")
    else:
        show(f"\n{problems} {_plural('problem', problems)}, {warnings} {_plural('warning', warnings)}.")


def _row(finding: Finding) -> tuple[str, str]:
    remedy = f"\n[dim]→[/] {plain(finding.remedy)}" if finding.remedy and finding.level != "ok" else ""
    return plain(finding.check), f"{styled(finding.level)}: {plain(finding.summary)}{remedy}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
