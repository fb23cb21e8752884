"""`corral models stage` and `prune`: brings the files of models to nodes, and deletes those that no model needs."""

from collections.abc import Sequence
from typing import Final

import click

from corral.base.errors import InvalidInput
from corral.base.words import format_size
from corral.cli.client import ApiClient
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model, complete_node, find_nodes, read_labels
from corral.cli.operations.watch import Watching, accepted_once, wait_options, watched
from corral.cli.options import CorralCommand, confirm
from corral.cli.output import json_option, print_json, say
from corral.wire.model_files import PruneView, UnneededFileView
from corral.wire.operation_views import OperationView

_STAGINGS: Final = "/api/v1/model-stagings"


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.option("--node", "nodes", multiple=True, metavar="NODE", shell_complete=complete_node, help="To this node.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="To all nodes with this label.")
@click.option("--all", "everywhere", is_flag=True, help="To all nodes that run models.")
@wait_options
@connected
def stage(model: str, nodes: Sequence[str], labels: Sequence[str], everywhere: bool, watching: Watching) -> int:
    """Bring the files of a model to nodes, and load nothing.

    What a node has already is not sent again, and what was begun is continued. Where several nodes want the same large
    file, they get it from each other. Room is made by deleting files that were brought there before and that nothing
    needs. Ctrl-C ends only the watching. Ends with 0 when the files are there (nodes that are away get them when they
    return), 1 when it failed somewhere, 2 when it goes on.
    """
    if sum((bool(nodes), bool(labels), everywhere)) != 1:
        raise InvalidInput("--node", "say where: --node (several times if you like), --label or --all")
    client = open_client()
    body = {
        "model": model,
        "nodes": [node.id for node in find_nodes(client, nodes)],
        "selector": read_labels(labels),
        "all": everywhere,
    }
    operation = accepted_once(lambda headers: client.post(_STAGINGS, OperationView, body, headers=headers))
    return watched(client, operation, watching)


_PRUNE = "/api/v1/model-storage/prune"


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
    return client.post(_PRUNE, PruneView, {"dry_run": dry_run})


def _say_files(view: PruneView) -> None:
    for file in _largest_first(view.deleted):
        say(f"Nobody needs {file.path} ({format_size(file.bytes)}).")
    if view.partial_bytes:
        say(f"Downloads that nobody goes on with have {format_size(view.partial_bytes)}.")
    for file in _largest_first(view.kept):
        say(f"Kept: {file.path} ({format_size(file.bytes)}): {file.kept}.")


def _largest_first(files: Sequence[UnneededFileView]) -> list[UnneededFileView]:
    return sorted(files, key=lambda file: (-file.bytes, file.path))
