"""`corral models export`: configurations as they are stored, for a backup or another fleet."""

import os
from pathlib import Path
from urllib.parse import quote

import click

from corral.base.errors import PathNotUsable
from corral.cli.connection import connected, open_client
from corral.cli.models.revisions import current_revision
from corral.cli.names import complete_model
from corral.cli.options import CorralCommand
from corral.cli.output import json_option, print_json_list, say
from corral.wire.models import ModelList


@click.command(cls=CorralCommand)
@click.argument("model", required=False, shell_complete=complete_model)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--all", "every", is_flag=True, help="Export all models, each into a file of its own.")
@click.option("--force", is_flag=True, help="Overwrite files that say something else.")
@json_option
@connected
def export(model: str | None, directory: Path | None, every: bool, force: bool, as_json: bool) -> None:
    """Print the YAML of a model exactly as it is stored.

    With a DIRECTORY it is written there as NAME.yaml. `corral models export --all DIRECTORY` writes all of them;
    without a directory, into the current one.
    """
    if directory is not None if every else model is None:
        raise click.UsageError("name one MODEL, or give --all and at most a directory")
    client = open_client()
    if every:
        directory = Path(model or ".")
        names = [view.name for view in client.get("/api/v1/models", ModelList).items]
    else:
        names = [str(model)]
    texts = {name: current_revision(client, name).text for name in names}
    if directory is not None:
        files = {name: directory / f"{quote(name, safe=' ')}.yaml" for name in names}
        for name, text in texts.items():
            _write(files[name], text, force=force)
    if as_json:
        places = {} if directory is None else files
        print_json_list(
            [{"name": name, "text": text, "file": str(places.get(name, ""))} for name, text in texts.items()]
        )
    elif directory is None:
        click.echo("".join(texts.values()), nl=False)
    else:
        say(f"Wrote {len(names)} {'file' if len(names) == 1 else 'files'} into {directory}.")


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write the text as it is. PathNotUsable when the file says something else, or cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        if file.exists() and not force and file.read_bytes() != content:
            raise PathNotUsable(f"{file} is there already, and says something else; --force overwrites it")
        draft = file.with_name(f".{os.getpid()}.part")
        draft.write_bytes(content)
        draft.replace(file)
    except OSError as error:
        raise PathNotUsable(f"cannot write {file}: {error.strerror}") from error
