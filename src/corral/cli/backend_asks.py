"""What install, upgrade, delete and plan ask for: which backend, from where, on which nodes."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.base.errors import InvalidInput
from corral.cli.node_names import complete_node, find_nodes

if TYPE_CHECKING:
    from corral.cli.client import ApiClient
    from corral.wire.operation_views import OperationAsk, OperationView

F = TypeVar("F", bound=Callable[..., Any])


def target_options(function: F) -> F:
    """Adds --node and --label."""
    node = click.option(
        "--node",
        "nodes",
        multiple=True,
        metavar="NODE",
        shell_complete=complete_node,
        help="Only on this node; may be given several times.",
    )
    label = click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only on nodes with this label; several must all be there.",
    )
    return node(label(function))


def source_options(function: F) -> F:
    """Adds --uri, --name, --alias and --force."""
    uri = click.option("--uri", default="", metavar="URI", help="Install from here instead of from a gallery.")
    name = click.option("--name", default="", metavar="NAME", help="What a backend from a uri shall be called.")
    alias = click.option("--alias", default="", metavar="NAME", help="Another name for a backend from a uri.")
    force = click.option("--force", is_flag=True, help="Fetch it anew also where it is installed.")
    return uri(name(alias(force(function))))


def read_labels(labels: Sequence[str]) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise InvalidInput("--label", f"{label[:100]!r} is no label; write KEY=VALUE")
        if wanted.setdefault(key, value) != value:
            raise InvalidInput("--label", f"{key} cannot be {wanted[key]!r} and {value!r} at once; ask twice")
    return wanted


def make_ask(
    client: "ApiClient", verb: str, backend: str, *, nodes: Sequence[str], labels: Sequence[str], **source: Any
) -> "OperationAsk":
    """The body of the call; `source` is uri, name, alias and force of an install."""
    from corral.wire.operation_views import OperationAsk

    if nodes and labels:
        raise InvalidInput("--label", "cannot be combined with --node: name the nodes, or say which labels they have")
    ids = [node.id for node in find_nodes(client, nodes)]
    return OperationAsk(verb=verb, backend=backend, nodes=ids, labels=read_labels(labels), **source)


def external(backend: str, *, uri: str, name: str, alias: str) -> dict[str, str]:
    """Where an install comes from; what looks like a uri is one."""
    if not uri and "/" in backend:
        backend, uri = "", backend
    if not uri:
        if name or alias:
            raise InvalidInput("--name" if name else "--alias", "is for uris; a gallery's backend has its own")
        if not backend:
            raise click.UsageError("Name the backend to install, or give --uri and --name.")
        return {"backend": backend}
    if backend and name and backend != name:
        raise InvalidInput("--name", f"is {name!r}, but the backend was called {backend!r}; give one of them")
    if not (name or backend):
        raise InvalidInput("--name", "is needed with a uri: what shall the backend be called?")
    return {"backend": "", "uri": uri, "name": name or backend, "alias": alias}


def start(client: "ApiClient", ask: "OperationAsk") -> "OperationView":
    from corral.cli.operation_names import PATH
    from corral.cli.operation_start import accepted_once
    from corral.wire.operation_views import OperationView

    return accepted_once(lambda headers: client.post(PATH, OperationView, ask, headers=headers))
