"""`corral worker`: makes this machine a node."""

from dataclasses import replace

import click

from corral.cli.options import CorralGroup, process_sources, settings_options, warn
from corral.cli.worker_backends import backends
from corral.processes.exit_codes import ExitCode
from corral.processes.settings_table import GallerySettings, ImageSettings, LogSettings, WorkerSettings


@click.group(cls=CorralGroup, invoke_without_command=True)
@settings_options(WorkerSettings, GallerySettings, ImageSettings, LogSettings)
@click.pass_context
def worker(context: click.Context) -> int:
    """Make this machine a node of a fleet.

    The worker registers, reports how the machine is, and runs what it is given. A new node waits for an administrator's
    approval. With a command it does not run, and only that is done.
    """
    return _run() if context.invoked_subcommand is None else ExitCode.OK


worker.add_command(backends)


def _run() -> int:
    from corral.base.logs import set_up_logs
    from corral.processes.configs.backends import galleries_config, images_config
    from corral.processes.configs.worker import keep_previous, worker_config
    from corral.processes.settings_sources import resolve

    found = process_sources()
    offered = resolve(GallerySettings, found)
    config = worker_config(resolve(WorkerSettings, found), found.environment, offered)
    galleries = galleries_config(offered)
    pulls = resolve(ImageSettings, found)
    images = images_config(pulls, found.environment)
    log = resolve(LogSettings, found)
    warn(found.warnings)

    from corral.processes.worker import main

    log_name = log.name or "worker"
    set_up_logs(log_name, log.output)
    logged = replace(config, logs=log.output, log_name=log_name)
    return main(replace(logged, galleries=galleries, images=images, keep_previous=keep_previous(pulls)))
