"""Sentences about commands and flags that cannot be used."""

import difflib
from typing import Final

import click

_HIDDEN: Final = "control"
"""Started by `corral frontend`, not by people."""


def describe_usage_error(error: click.ClickException) -> str:
    """One sentence that says what is wrong and what to do."""
    if isinstance(error, click.NoSuchOption):
        return _unknown_flag(error)
    if isinstance(error, click.NoSuchCommand) and error.ctx is not None:
        return _unknown_command(error.command_name, error.ctx)
    sentence = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return sentence
    return f"{sentence}{'' if sentence.endswith('?') else ';'} see: {context.command_path} --help"


def _unknown_command(name: str, context: click.Context) -> str:
    """With the nearest commands; whoever types `help` is shown the flag."""
    path, group = context.command_path, context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    near = [f"{path} {one}" for one in difflib.get_close_matches(name, [one for one in names if one != _HIDDEN], n=3)]
    advice = f"did you mean {' or '.join(near)}? see: {path} --help" if near else f"see: {path} --help"
    return f"{path} has no command {name!r}; {advice}"


def _unknown_flag(error: click.NoSuchOption) -> str:
    secret = _secret_variables().get(error.option_name)
    if secret is not None:
        return (
            f"{error.option_name}: a secret is never a flag, because others on this machine could read it in the "
            f"process list; set the environment variable {secret} instead"
        )
    near = f"; did you mean {' or '.join(sorted(error.possibilities))}?" if error.possibilities else ""
    command = error.ctx.command_path if error.ctx is not None else "corral"
    return f"{error.option_name}: {command} has no such flag{near or f'; see: {command} --help'}"


def _secret_variables() -> dict[str, str]:
    """What people might try as a flag, and the variable that takes it."""
    from corral.base.settings import settings_of
    from corral.processes.settings import all_sections

    secrets = (setting for group in all_sections() for setting in settings_of(group) if setting.secret)
    return {"--" + setting.name.replace("_", "-"): setting.env[0] for setting in secrets}
