"""`corral models prune`: what the files of models take, and which of them nobody needs any more."""

from collections.abc import Sequence

import click

from corral.base.words import format_size
from corral.cli.client import ApiClient
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand, confirm
from corral.cli.output import json_option, print_json, say
from corral.wire.pulls import PruneView, UnneededFileView

_PATH = "/api/v1/model-storage/prune"


@click.command(cls=CorralCommand)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def prune(dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete files that no model needs any more.

    Also what is left of downloads that nobody will go on with. Only files that came by a pull are deleted: whatever
    else is in the models directory stays, and is named.
    """
    client = open_client()
    view = _pruned(client, dry_run=True)
    if not as_json:
        _say_files(view)
    if not dry_run and view.freed_bytes:
        if not yes:
            confirm(f"Delete this, {format_size(view.freed_bytes)} in all?")
        view = _pruned(client, dry_run=False)
    if as_json:
        print_json(view)
    elif not view.freed_bytes:
        say("There is nothing to delete.")
    else:
        say(f"{'Would free' if dry_run else 'Freed'} {format_size(view.freed_bytes)}.")


def _pruned(client: ApiClient, *, dry_run: bool) -> PruneView:
    return client.post(_PATH, PruneView, {"dry_run": dry_run})


def _say_files(view: PruneView) -> None:
    for file in _largest_first(view.deleted):
        say(f"Nobody needs {file.path} ({format_size(file.bytes)}).")
    if view.partial_bytes:
        say(f"Downloads that nobody goes on with have {format_size(view.partial_bytes)}.")
    for file in _largest_first(view.kept):
        say(f"Kept: {file.path} ({format_size(file.bytes)}): {file.kept}.")


def _largest_first(files: Sequence[UnneededFileView]) -> list[UnneededFileView]:
    return sorted(files, key=lambda file: (-file.bytes, file.path))
