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


def local_diagnostics(examination: "Examination") -> "Sequence[Callable[[Examination], Finding | None]]":
    """The checks to run, in the order in which a person would look; a check returns None when it does not apply.

    With --url only the frontend is checked: what runs on this machine may be another fleet.
    """
    from corral.cli.doctor import frontend, machine

    of_frontend = (frontend.check_frontend, frontend.check_key, frontend.check_version, frontend.check_clock)
    if examination.settings.url:
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

    given = sources()
    examination = examine(resolve(ClientSettings, given))
    here = [finding for check in local_diagnostics(examination) if (finding := check(examination)) is not None]
    there = examination.frontend.report.findings if examination.frontend.report is not None else []
    if as_json:
        print_json({"here": here, "frontend": there})
    else:
        warn(given.warnings)
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
