"""`corral models`: the models of the fleet, where they come from, and what their templates make of requests."""

from typing import Final

import click

from corral.cli.options import lazy_group

COMMANDS: Final = {
    "pull": "corral.cli.models.pull:pull",
    "add": "corral.cli.models.editing:add",
    "search": "corral.cli.models.search:search",
    "list": "corral.cli.models.commands:list_models",
    "show": "corral.cli.models.commands:show_model",
    "edit": "corral.cli.models.editing:edit",
    "history": "corral.cli.models.revisions:history",
    "rollback": "corral.cli.models.revisions:rollback",
    "copy": "corral.cli.models.commands:copy",
    "disable": "corral.cli.models.commands:disable",
    "enable": "corral.cli.models.commands:enable",
    "pin": "corral.cli.models.commands:pin",
    "unpin": "corral.cli.models.commands:unpin",
    "remove": "corral.cli.models.commands:remove_model",
    "export": "corral.cli.models.export:export",
    "prune": "corral.cli.models.storage:prune",
    "prompt": "corral.cli.models.prompt:prompt",
}


@click.command(cls=lazy_group(COMMANDS))
def models() -> None:
    """Get, see, change and remove models; try their templates."""
