"""Every NATS subject, built here and nowhere else."""

from typing import Final

from corral.base.ids import NodeId

_UNSAFE: Final = str.maketrans({character: "-" for character in ".*> \t\n"})

POKE_EVENTS: Final = "corral.poke.events"
"""Rung by the frontend that stored an event; the others then read the table."""

REPLICAS_EXITED: Final = "nodes.*.corral.replica.exited"
"""What every node says of processes that ended by themselves."""


def node_of(subject: str) -> NodeId:
    """Whose subject `nodes.<id>.…` this is."""
    return NodeId(subject.split(".")[1])


def token(text: str) -> str:
    """Make a value safe as one part of a subject, by the rule both peers share."""
    return text.translate(_UNSAFE)


def node_stop(node_id: NodeId) -> str:
    """Tells the worker to drain, deregister and exit."""
    return f"nodes.{token(node_id)}.stop"


def backend_install(node_id: NodeId) -> str:
    """Asks for a ready process of a backend; the answer comes when there is one."""
    return f"nodes.{token(node_id)}.backend.install"


def backend_list(node_id: NodeId) -> str:
    """Asks which backends are on the node's disk."""
    return f"nodes.{token(node_id)}.backend.list"


def backend_stop(node_id: NodeId) -> str:
    """Tells the worker to stop processes. Nothing is answered."""
    return f"nodes.{token(node_id)}.backend.stop"


def models_running(node_id: NodeId) -> str:
    """Asks which processes run."""
    return f"nodes.{token(node_id)}.models.running"


def replica_exited(node_id: NodeId) -> str:
    """Says that a process ended by itself. Corral's own."""
    return f"nodes.{token(node_id)}.corral.replica.exited"
