"""`corral worker`: makes this machine a node."""

from dataclasses import replace

import click

from corral.cli.options import CorralGroup, process_sources, settings_options, warn
from corral.cli.worker_backends import backends
from corral.processes.exit_codes import ExitCode


@click.group(cls=CorralGroup, invoke_without_command=True)
@settings_options(worker=None, gallery=None, images=None, log=None)
@click.pass_context
def worker(context: click.Context) -> int:
    """Make this machine a node of a fleet.

    The worker registers, reports how the machine is, and runs what it is given. A new node waits for an administrator's
    approval. With a command it does not run, and only that is done.
    """
    return _run() if context.invoked_subcommand is None else ExitCode.OK


worker.add_command(backends)


def _run() -> int:
    from corral.base.logs import LogOutput, set_up_logs
    from corral.galleries.config import GalleriesConfig
    from corral.oci.config import ImagesConfig
    from corral.processes.configs import images_config, worker_config
    from corral.processes.settings_sources import resolve
    from corral.worker.config import WorkerConfig

    found = process_sources()
    galleries = resolve(GalleriesConfig, found)
    config = worker_config(resolve(WorkerConfig, found), found.environment, galleries)
    images = images_config(resolve(ImagesConfig, found), found.environment)
    logs = resolve(LogOutput, found)
    warn(found.warnings)

    from corral.processes.worker import main

    log_name = logs.name or "worker"
    set_up_logs(log_name, logs)
    return main(replace(config, logs=logs, log_name=log_name, galleries=galleries, images=images))
