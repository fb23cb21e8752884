"""`corral backend`: tools for authors of backends, which need no frontend. The only commands that import imaging."""

from typing import Final

import click

from corral.cli.options import lazy_group

COMMANDS: Final = {
    "build": "corral.cli.authoring.build:build",
    "run": "corral.cli.authoring.run:run",
    "push": "corral.cli.authoring.publish:push",
    "index": "corral.cli.authoring.publish:index",
    "sign": "corral.cli.authoring.sign:sign",
    "keygen": "corral.cli.authoring.sign:generate_keys",
}


@click.command(cls=lazy_group({"Commands": COMMANDS}))
def backend() -> None:
    """Make backends: images, signatures, galleries."""
