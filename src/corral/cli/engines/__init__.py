"""`corral engines`: engines that somebody else runs, which answer for models beside the fleet or instead of it."""

from typing import Final

import click

from corral.cli.options import lazy_group

_COMMANDS: Final = "corral.cli.engines.commands"
COMMANDS: Final = {
    "add": f"{_COMMANDS}:add_engine",
    "list": f"{_COMMANDS}:list_engines",
    "show": f"{_COMMANDS}:show_engine",
    "set": f"{_COMMANDS}:set_engine",
    "enable": f"{_COMMANDS}:enable_engine",
    "disable": f"{_COMMANDS}:disable_engine",
    "test": f"{_COMMANDS}:test_engine",
    "apply": "corral.cli.engines.fleet_part:apply",
    "remove": f"{_COMMANDS}:remove_engine",
}


@click.command(cls=lazy_group({"Commands": COMMANDS}))
def engines() -> None:
    """Let engines that somebody else runs answer for models.

    Any URL of an OpenAI-compatible API will do: a server of a cluster, a program on a desk, a cloud. Corral asks such
    an engine, looks whether it lives and counts what it answers; it never starts or stops one.
    """
