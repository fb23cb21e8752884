"""`corral models`: the models of the fleet, where they come from, and what their templates make of requests."""

from typing import Final

import click

from corral.cli.options import lazy_group

COMMANDS: Final = {
    "search": "corral.cli.models.search:search",
    "list": "corral.cli.models.commands:list_models",
    "show": "corral.cli.models.commands:show_model",
    "remove": "corral.cli.models.commands:remove_model",
    "prompt": "corral.cli.models.prompt:prompt",
}


@click.command(cls=lazy_group(COMMANDS))
def models() -> None:
    """Find models, see them, and remove them; try their templates."""
