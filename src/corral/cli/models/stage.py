"""`corral models stage`: the files of a model on nodes, before anybody asks for it."""

from collections.abc import Sequence
from typing import Final

import click

from corral.base.errors import InvalidInput
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model, complete_node, find_nodes, read_labels
from corral.cli.operation_watch import Watching, accepted_once, wait_options, watched
from corral.cli.options import CorralCommand
from corral.wire.operation_views import OperationView

_PATH: Final = "/api/v1/model-stagings"


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
    operation = accepted_once(lambda headers: client.post(_PATH, OperationView, body, headers=headers))
    return watched(client, operation, watching)
