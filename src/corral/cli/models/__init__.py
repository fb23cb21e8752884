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
    "stage": "corral.cli.models.files:stage",
    "copy": "corral.cli.models.commands:copy",
    "disable": "corral.cli.models.commands:disable",
    "enable": "corral.cli.models.commands:enable",
    "keep": "corral.cli.models.commands:keep",
    "unkeep": "corral.cli.models.commands:unkeep",
    "scale": "corral.cli.models.scaling:scale",
    "rules": "corral.cli.models.scaling:list_rules",
    "pin": "corral.cli.models.scaling:pin",
    "unpin": "corral.cli.models.scaling:unpin",
    "load": "corral.cli.models.scaling:load",
    "unload": "corral.cli.models.scaling:unload",
    "remove": "corral.cli.models.commands:remove_model",
    "export": "corral.cli.models.editing:export",
    "prune": "corral.cli.models.files:prune",
    "prompt": "corral.cli.models.prompt:prompt",
}


@click.command(cls=lazy_group({"Commands": COMMANDS}))
def models() -> None:
    """Get, see, change, scale and remove models; try templates."""
