"""What a command line that cannot be understood is answered with: one sentence, and what was probably meant."""

import difflib
from collections.abc import Iterator
from typing import Final

import click

_HIDDEN: Final = "control"
"""Started by `corral frontend`, not by people."""
_MOST: Final = 3
_MEANINGS: Final = (
    ("list", "ls"),
    ("show", "info", "inspect", "describe", "get", "status"),
    ("pull", "add", "install", "download", "fetch", "get"),
    ("remove", "delete", "rm", "del", "uninstall"),
    ("invite", "add", "join"),
    ("worker", "join", "agent"),
    ("up", "start", "serve", "server", "init", "setup"),
    ("down", "stop", "kill", "quit", "shutdown"),
    ("unload", "stop"),
    ("ps", "top"),
    ("ops", "operations", "jobs", "tasks"),
    ("nodes", "machines", "workers"),
    ("upgrade", "update"),
    ("edit", "config", "set"),
    ("doctor", "check", "health"),
)
"""Each with words of other programs for the same act. They are only hints: each act has one name here."""


_PLAIN: Final = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}
"""Click's words for values of the wrong kind, and ours."""


def describe_usage_error(error: click.ClickException) -> str:
    """One sentence that says what is wrong with the arguments, and what to do."""
    if isinstance(error, click.NoSuchOption):
        return _unknown_flag(error)
    if isinstance(error, click.NoSuchCommand) and error.ctx is not None:
        return _unknown_command(error.command_name, error.ctx)
    sentence = " ".join(error.format_message().split()).rstrip(".")  # click lists choices below each other
    for theirs, ours in _PLAIN.items():
        sentence = sentence.replace(theirs, ours)
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return sentence
    return f"{sentence}{'' if sentence.endswith('?') else ';'} see: {context.command_path} --help"


def _unknown_command(name: str, context: click.Context) -> str:
    """The sentence about a command that does not exist, with those that may be meant."""
    path = context.command_path
    meant = [f"{path} {command}" for command in _meant(name, context)]
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"{path} has no command {name!r}; {hint}see: {path} --help"


def _meant(name: str, context: click.Context) -> list[str]:
    """Commands of the same meaning, here or in the groups of this group, or else those of a similar name."""
    names = _names(context.command, context)
    plural = f"{name}s"
    if plural in names:
        return [plural]
    here = [command for command in names if command in _synonyms(name)]
    deeper = [] if here else _deeper(name, names, context)
    return (here or deeper or difflib.get_close_matches(name, names, n=_MOST))[:_MOST]


def _deeper(name: str, names: list[str], context: click.Context) -> list[str]:
    """Commands of this very name in groups of this group; without any, those of the same meaning."""
    inner = [(f"{group} {command}", command) for group, command in _inner(names, context)]
    same = [path for path, command in inner if command == name]
    return same or [path for path, command in inner if command in _synonyms(name)]


def _inner(names: list[str], context: click.Context) -> Iterator[tuple[str, str]]:
    group = context.command
    assert isinstance(group, click.Group)  # noqa: S101 - only groups have commands that may be missing
    for name in names:
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            for inner in _names(command, context):
                yield name, inner


def _names(command: click.Command, context: click.Context) -> list[str]:
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    return [name for name in names if name != _HIDDEN]


def _synonyms(name: str) -> set[str]:
    return {word for meaning in _MEANINGS if name in meaning for word in meaning} - {name}


def _unknown_flag(error: click.NoSuchOption) -> str:
    """The sentence about a flag that does not exist. Secrets, which people may try, are never flags."""
    from corral.processes.settings import all_settings

    flag = error.option_name
    variables = {"--" + setting.name.replace("_", "-"): setting.env[0] for setting in all_settings() if setting.secret}
    if flag in variables:
        return (
            f"{flag}: a secret is never a flag, because others on this machine could read it in the "
            f"process list; set the environment variable {variables[flag]} instead"
        )
    context = error.ctx
    path = context.command_path if context is not None else "corral"
    near = _similar(flag, list(error.possibilities or ()))
    if near:
        return f"{flag}: {path} has no such flag; did you mean {' or '.join(near)}?"
    is_group = context is not None and isinstance(context.command, click.Group)
    place = f"; flags of a command stand behind it, as in: {path} COMMAND {flag}" if is_group else ""
    return f"{flag}: {path} has no such flag{place}; see: {path} --help"


def _similar(flag: str, possible: list[str]) -> list[str]:
    """The possible flags that are similar apart from their dashes, which alone make short ones look alike."""
    flags = {word.lstrip("-"): word for word in possible}
    return sorted(flags[word] for word in difflib.get_close_matches(flag.lstrip("-"), flags, n=_MOST))
