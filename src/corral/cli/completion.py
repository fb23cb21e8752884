"""`corral completion`: scripts that teach a shell our commands, options and nodes."""

from typing import Final

import click

HOW_TO: Final = {
    "bash": 'eval "$(corral completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(corral completion zsh)"    in ~/.zshrc, after compinit',
    "fish": "corral completion fish | source    in ~/.config/fish/config.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(HOW_TO)))
def completion(shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    bash: eval "$(corral completion bash)" in ~/.bashrc
    zsh:  eval "$(corral completion zsh)" in ~/.zshrc, after compinit
    fish: corral completion fish | source in ~/.config/fish/config.fish
    """
    click.echo(completion_script(shell))


def completion_script(shell: str) -> str:
    from click.shell_completion import ShellComplete, get_completion_class

    from corral.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click.Choice let only known shells through
    # The base class's method: bash's own first runs bash to learn its version.
    return ShellComplete.source(kind(cli, {}, "corral", "_CORRAL_COMPLETE"))
