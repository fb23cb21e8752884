"""`corral control`: the control process itself. Started by `corral frontend`, not by people."""

import sys
from typing import TYPE_CHECKING

import click

from corral.cli.options import CorralCommand, settings_options, sources

if TYPE_CHECKING:
    from corral.frontend.access.credentials import Credentials
    from corral.frontend.config import ControlConfig


@click.command(cls=CorralCommand, hidden=True)
@settings_options(frontend=None, log=None)
@click.option("--gateway-key-descriptor", type=int, default=None, hidden=True)
def control(gateway_key_descriptor: int | None) -> None:
    """Run the control process of a frontend; `corral frontend` starts it."""
    import asyncio
    from dataclasses import replace

    import uvloop

    from corral.base.garbage import look_for_garbage_rarely
    from corral.base.logs import LogOutput, set_up_logs
    from corral.base.processes import secret_from
    from corral.base.tasks import stop_on_signals
    from corral.frontend.config import ControlConfig
    from corral.galleries.config import GalleriesConfig
    from corral.oci.config import ImagesConfig
    from corral.processes.configs import control_config, images_config
    from corral.processes.control import run_control
    from corral.processes.settings_sources import resolve

    found = sources()
    logs = resolve(LogOutput, found)
    key = secret_from(gateway_key_descriptor)
    galleries = resolve(GalleriesConfig, found)
    images = images_config(resolve(ImagesConfig, found), found.environment)
    stated = control_config(resolve(ControlConfig, found), gateway_key=key)
    config = replace(stated, galleries=galleries, images=images)
    set_up_logs(logs.name or "control", logs)

    announce_keys = print_new_keys if sys.stdout.isatty() else store_new_keys

    async def life() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop):
            await run_control(config, stop, announce_keys=announce_keys)

    look_for_garbage_rarely()
    uvloop.run(life())


def print_new_keys(credentials: "Credentials", config: "ControlConfig") -> None:
    """Print the keys that this start made, unless a credentials file has them: for a terminal, which a person reads."""
    if config.credentials_file is not None:
        return
    if credentials.new_admin_key is not None:
        click.echo(f"Administrator key (shown once, keep it): {credentials.new_admin_key}")
    if credentials.new_registration_token:
        click.echo(f"Registration token for workers (shown once): {credentials.registration_token}")


def store_new_keys(credentials: "Credentials", config: "ControlConfig") -> None:
    """Write the keys that this start made into the data directory and print the path only.

    For an output that is no terminal: it usually ends in a journal, which more people may read than may have the keys.
    """
    from corral.frontend.config import CREDENTIALS_FILE

    file = config.data / CREDENTIALS_FILE
    if config.credentials_file is None and credentials.write_new(file):
        click.echo(f"The new keys are in {file}, readable only by you. Keep them elsewhere, and delete the file.")
