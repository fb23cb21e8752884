"""`corral frontend`: starts a frontend."""

import click

from corral.cli.options import CorralCommand, process_sources, settings_options, warn


@click.command(cls=CorralCommand)
@settings_options(frontend=None, log=None)
@click.option("--report-descriptor", type=int, default=None, hidden=True)
def frontend(report_descriptor: int | None) -> int:
    """Run a frontend.

    That is the API, and the loops that keep the fleet as it should be. They run in the control process, a child that
    is started again when it dies.
    """
    from corral.base.logs import LogOutput
    from corral.frontend.config import ControlConfig
    from corral.processes.configs import control_config
    from corral.processes.launcher import report_nothing, report_to, run_frontend
    from corral.processes.settings_sources import resolve

    found = process_sources()
    settings = resolve(ControlConfig, found)
    logs = resolve(LogOutput, found)
    control_config(settings)  # says here, once, what would stop control
    warn(found.warnings)
    report = report_nothing if report_descriptor is None else report_to(report_descriptor)
    return run_frontend(settings, logs, found, report=report)
