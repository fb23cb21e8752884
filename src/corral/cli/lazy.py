"""Groups of commands that are imported when asked for, so that `corral version` does not pay for `corral up`."""

from collections.abc import Mapping
from importlib import import_module

import click


def lazy_group(commands: Mapping[str, str]) -> type[click.Group]:
    """A class of groups with these commands: from their names to where they are, `module:attribute`."""

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(commands)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in commands:
                return None
            module, _, attribute = commands[cmd_name].partition(":")
            command = getattr(import_module(module), attribute)
            assert isinstance(command, click.Command)  # noqa: S101 - the tables are ours
            return command

    return LazyGroup
