"""`corral control`: the control process itself. Started by `corral frontend`, not by people."""

import sys

import click

from corral.app.settings_table import FrontendSettings, LogSettings
from corral.cli.options import CorralCommand, settings_options, sources


@click.command(cls=CorralCommand, hidden=True)
@settings_options(FrontendSettings, LogSettings)
@click.option("--gateway-key-descriptor", type=int, default=None, hidden=True)
def control(gateway_key_descriptor: int | None) -> None:
    """Run the control process of a frontend; `corral frontend` starts it."""
    import asyncio
    from dataclasses import replace

    import uvloop

    from corral.app.configs.backends import galleries_config, images_config
    from corral.app.configs.control import control_config
    from corral.app.control import run_control
    from corral.app.settings_sources import resolve
    from corral.app.settings_table import GallerySettings, ImageSettings
    from corral.app.signals import stop_on_signals
    from corral.base.garbage import look_for_garbage_rarely
    from corral.base.logs import set_up_logs
    from corral.base.processes import secret_from

    found = sources()
    log = resolve(LogSettings, found)
    key = secret_from(gateway_key_descriptor)
    galleries = galleries_config(resolve(GallerySettings, found))
    images = images_config(resolve(ImageSettings, found), found.environment)
    stated = control_config(resolve(FrontendSettings, found), gateway_key=key)
    config = replace(stated, galleries=galleries, images=images)
    set_up_logs(log.name or "control", format=log.format, level=log.level)

    async def life() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop):
            await run_control(config, stop, say=_say)

    look_for_garbage_rarely()
    uvloop.run(life())


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)
