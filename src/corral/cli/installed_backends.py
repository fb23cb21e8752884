"""Names of backends that nodes have: offered to a shell, and compared with what somebody typed."""

import difflib
from typing import Final

import click
from click.shell_completion import CompletionItem

from corral.base.errors import CorralError
from corral.cli.client import ApiClient
from corral.cli.node_names import quick_client
from corral.wire.operation_views import FleetBackends

_PATH: Final = "/api/v1/backends"


def unheard_of(client: ApiClient, backend: str) -> list[str]:
    """A warning when no node has told of a backend with this name: it may be mistyped."""
    known = [one.name for one in client.get(_PATH, FleetBackends).items]
    name = backend.rpartition("@")[2]
    if name in known:
        return []
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`corral backends list` shows what there is"
    return [f"no node is known to have {backend}; {hint}"]


def complete_installed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Silent when anything fails: a prompt is no place for messages."""
    try:
        found = quick_client(context).get(_PATH, FleetBackends)
    except (CorralError, OSError, ValueError):
        return []
    return [
        CompletionItem(one.name, help=f"on {len(one.nodes)} nodes")
        for one in found.items
        if one.name.startswith(incomplete)
    ]
