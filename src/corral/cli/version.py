"""`corral version`."""

import json
import platform

import click

from corral import __version__


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def version(as_json: bool) -> None:
    """Print the version of this program."""
    if as_json:
        click.echo(json.dumps({"version": __version__, "python": platform.python_version()}))
    else:
        click.echo(f"corral {__version__}")
