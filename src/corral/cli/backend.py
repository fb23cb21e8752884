"""`corral backend`: tools for those who write backends. Needs no frontend."""

from typing import Final

import click

from corral.cli.lazy import lazy_group

COMMANDS: Final = {
    "build": "corral.cli.backend_build:build",
    "run": "corral.cli.backend_run:run",
    "push": "corral.cli.backend_push:push",
    "index": "corral.cli.backend_index:index",
    "sign": "corral.cli.backend_sign:sign",
    "keygen": "corral.cli.backend_sign:generate_keys",
}


@click.command(cls=lazy_group(COMMANDS))
def backend() -> None:
    """Make backends: images, signatures, galleries."""
