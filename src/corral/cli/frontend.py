"""`corral frontend`: starts a frontend."""

import click

from corral.app.settings_table import FrontendSettings, LogSettings
from corral.cli.options import CorralCommand, process_sources, settings_options, warn


@click.command(cls=CorralCommand)
@settings_options(FrontendSettings, LogSettings)
@click.option("--report-descriptor", type=int, default=None, hidden=True)
def frontend(report_descriptor: int | None) -> int:
    """Run a frontend.

    That is the API, and the loops that keep the fleet as it should be. They run in the control process, a child that
    is started again when it dies.
    """
    from corral.app.configs.control import control_config
    from corral.app.launcher import report_nothing, report_to, run_frontend
    from corral.app.settings_sources import resolve

    found = process_sources()
    settings = resolve(FrontendSettings, found)
    logs = resolve(LogSettings, found)
    control_config(settings)  # says here, once, what would stop control
    warn(found.warnings)
    report = report_nothing if report_descriptor is None else report_to(report_descriptor)
    return run_frontend(settings, logs, found, report=report)
