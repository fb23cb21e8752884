"""What a shell is offered where a model is meant."""

import click
from click.shell_completion import CompletionItem

from corral.base.errors import CorralError
from corral.cli.node_names import quick_client
from corral.wire.model_views import ModelList


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Silent when anything fails: a prompt is no place for messages."""
    try:
        found = quick_client(context).get("/api/v1/models", ModelList)
    except (CorralError, OSError, ValueError):
        return []
    return [CompletionItem(one.name, help=one.state) for one in found.items if one.name.startswith(incomplete)]
