"""Every NATS subject, built here and nowhere else."""

from typing import Final

from corral.base.ids import NodeId

_UNSAFE: Final = str.maketrans({character: "-" for character in ".*> \t\n"})

POKE_EVENTS: Final = "corral.poke.events"
"""Rung by the frontend that stored an event; the others then read the table."""


def token(text: str) -> str:
    """Make a value safe as one part of a subject, by the rule both peers share."""
    return text.translate(_UNSAFE)


def node_stop(node_id: NodeId) -> str:
    """Tells the worker to drain, deregister and exit."""
    return f"nodes.{token(node_id)}.stop"
