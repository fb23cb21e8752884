"""Command-line options made of the table of settings, and the classes of commands that use them."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import click

from corral.base.errors import InvalidInput
from corral.base.settings import settings_of
from corral.base.words import printable_lines
from corral.processes.exit_codes import ExitCode
from corral.processes.settings import gather, section, variable_warnings
from corral.processes.settings_sources import CONFIG_FLAG, CONFIG_VARIABLE, SettingSources

F = TypeVar("F", bound=Callable[..., Any])
_FLAGS = "corral.flags"
_SETTINGS = "__corral_settings__"


class SettingOption(click.Option):
    """An option that sets a setting. Its text is not parsed here: all sources are read by one rule."""

    def __init__(self, declarations: list[str], *, heading: str, flag: str, help: str, metavar: str | None) -> None:
        super().__init__(
            declarations, default=None, help=help, metavar=metavar, expose_value=False, callback=self._remember
        )
        self.heading = heading
        self._flag = flag

    def _remember(self, context: click.Context, _: click.Parameter, value: str | bool | None) -> None:
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else value
            context.meta.setdefault(_FLAGS, {})[self._flag] = text


class _WithSettings(click.Command):
    """Adds the options of its settings when it is run or shown, so that their sections are imported only then."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        sections: Mapping[str, frozenset[str] | None] = getattr(self.callback, _SETTINGS, {})
        settings = _options(sections) if sections else []
        declared_count = len(self.params)
        parameters = super().get_params(ctx)
        return [*parameters[:declared_count], *settings, *parameters[declared_count:]]


class CorralCommand(_WithSettings):
    """A command whose settings are listed under headings of their own, after its real options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_options(self, ctx, formatter)


class CorralGroup(click.Group, _WithSettings):
    """A group of commands that has settings itself, listed after its commands."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Argument):
            continue  # the first line and the text of the command tell of them
        record = parameter.get_help_record(ctx)
        if record is not None:
            heading = parameter.heading if isinstance(parameter, SettingOption) else "Options"
            sections.setdefault(heading, []).append(record)
    for heading in sorted(sections, key=lambda heading: heading != "Options"):
        with formatter.section(heading):
            formatter.write_dl(sections[heading])


def settings_options(**sections: frozenset[str] | None) -> Callable[[F], F]:
    """Give a command the options of these sections, all of them or only those named, and --config.

    The command must be a `CorralCommand` or a `CorralGroup`; it finds what was given with `command_sources()`.
    """

    def decorate(function: F) -> F:
        setattr(function, _SETTINGS, sections)
        return function

    return decorate


def _options(sections: Mapping[str, frozenset[str] | None]) -> list[click.Option]:
    """The options of these sections, and --config. A flag that two sections share is declared once, as in the first."""
    options: dict[str, click.Option] = {}
    for name, only in sections.items():
        group = section(name)
        heading = f"Settings of {group.title}" if group.title.startswith("`") else group.title
        for setting in settings_of(group):
            if setting.flag and setting.flag not in options and (only is None or setting.name in only):
                is_switch, default = setting.kind.is_switch, setting.default_text.replace("`", "")
                options[setting.flag] = SettingOption(
                    [setting.switch_flags if is_switch else setting.flag],
                    heading=heading,
                    help=f"{setting.meaning.replace('`', '')}  [default: {default}; env: {', '.join(setting.env)}]",
                    metavar=None if is_switch else setting.kind.placeholder,
                    flag=setting.flag,
                )
    config = SettingOption(
        [CONFIG_FLAG],
        heading="Options",
        help=f"TOML file with settings; flags and the environment win over it.  [env: {CONFIG_VARIABLE}]",
        metavar="FILE",
        flag=CONFIG_FLAG,
    )
    return [*options.values(), config]


def command_sources() -> SettingSources:
    """The flags, variables and file that the running command takes its settings from."""
    return gather(given_flags(click.get_current_context()))


def given_flags(context: click.Context) -> dict[str, str]:
    return dict(context.meta.get(_FLAGS, {}))


def need_terminal(flag: str = "--yes") -> None:
    """Raise InvalidInput, which names the flag that answers it, when there is no terminal to answer a question on."""
    if not sys.stdin.isatty():
        raise InvalidInput(flag, "is needed here, because there is no terminal to ask on")


def confirm(question: str) -> None:
    """Ask on the terminal; the command ends when the answer is no."""
    need_terminal()
    if not click.confirm(question, err=True):
        click.echo("Nothing was changed.", err=True)
        click.get_current_context().exit(ExitCode.FAILED)


def warn(warnings: list[str]) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {printable_lines(warning)}", err=True)


def print_error(sentence: str) -> None:
    """One error on standard error, as every command prints it. It may quote what machines of others said."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {printable_lines(sentence)}", err=True)


def process_sources() -> SettingSources:
    """The sources of a command that starts a process, with warnings about variables that mean nothing."""
    sources = command_sources()
    likely = getattr(click.get_current_context().command.callback, _SETTINGS, {})
    warn(variable_warnings(sources, tuple(likely)))
    return sources


def lazy_group(sections: Mapping[str, Mapping[str, str]]) -> type[click.Group]:
    """A class of groups that import a command when it is asked for.

    `sections` has the titles of the group's help, and below each the commands: names and their `module:attribute`.
    """
    commands = {name: place for section in sections.values() for name, place in section.items()}

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

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            width = max(map(len, commands))
            for title, names in sections.items():
                known = [(name, self.get_command(ctx, name)) for name in names]
                rows = [
                    (name.ljust(width), command.get_short_help_str(formatter.width - 6 - width))
                    for name, command in known
                    if command is not None and not command.hidden
                ]
                with formatter.section(title):
                    formatter.write_dl(rows)

    return LazyGroup
