"""Every NATS subject, built here and nowhere else."""

from typing import Final

from corral.base.ids import NodeId

_UNSAFE: Final = str.maketrans({character: "-" for character in ".*> \t\n"})

POKE_EVENTS: Final = "corral.poke.events"
"""Rung by the frontend that stored an event; the others then read the table."""

OPERATION_START: Final = "gallery.opcache.start"
OPERATION_END: Final = "gallery.opcache.end"
OPERATIONS_PROGRESS: Final = "gallery.*.progress"
OPERATIONS_CANCEL: Final = "gallery.*.cancel"
STAGINGS_PROGRESS: Final = "staging.*.progress"
INVALIDATE_MODELS: Final = "cache.invalidate.models"
INVALIDATE_BACKENDS: Final = "cache.invalidate.backends"
PREFIX_OBSERVED: Final = "prefixcache.observe"
PREFIX_FORGOTTEN: Final = "prefixcache.invalidate"
"""Between frontends, in LocalAI's words; see `broadcasts.py`."""

GATEWAY_SHARES: Final = "corral.gateway.shares"
"""What the gateways of one frontend have under way, told to the others."""

REPLICAS_EXITED: Final = "nodes.*.corral.replica.exited"
"""What every node says of processes that ended by themselves."""

INVENTORIES: Final = "nodes.*.corral.inventory"
"""What every node says of its backends by itself."""


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


def install_progress(node_id: NodeId, operation: str) -> str:
    """Tells how far one install or upgrade is."""
    return f"nodes.{token(node_id)}.backend.install.{token(operation)}.progress"


def install_progress_of_all(operation: str) -> str:
    """The same of every node."""
    return f"nodes.*.backend.install.{token(operation)}.progress"


def backend_upgrade(node_id: NodeId) -> str:
    """Asks to replace a backend; its processes end, and none is started."""
    return f"nodes.{token(node_id)}.backend.upgrade"


def backend_delete(node_id: NodeId) -> str:
    """Asks to remove a backend and to end its processes."""
    return f"nodes.{token(node_id)}.backend.delete"


def backend_rollback(node_id: NodeId) -> str:
    """Asks to go back to the version of a backend before the present one. Corral's own."""
    return f"nodes.{token(node_id)}.corral.backend.rollback"


def backend_list(node_id: NodeId) -> str:
    """Asks which backends are on the node's disk."""
    return f"nodes.{token(node_id)}.backend.list"


def backend_stop(node_id: NodeId) -> str:
    """Tells the worker to stop processes. Nothing is answered."""
    return f"nodes.{token(node_id)}.backend.stop"


def models_running(node_id: NodeId) -> str:
    """Asks which processes run."""
    return f"nodes.{token(node_id)}.models.running"


def model_unload(node_id: NodeId) -> str:
    """Asks to have a model given back by its process, which goes on."""
    return f"nodes.{token(node_id)}.model.unload"


def model_stop(node_id: NodeId) -> str:
    """Asks for the end of exactly one process; answered when it is gone."""
    return f"nodes.{token(node_id)}.model.stop"


def model_delete(node_id: NodeId) -> str:
    """Asks to remove a model's files."""
    return f"nodes.{token(node_id)}.model.delete"


def files_ensure(node_id: NodeId) -> str:
    """Asks to have an object of the storage on the node's disk."""
    return f"nodes.{token(node_id)}.files.ensure"


def files_stage(node_id: NodeId) -> str:
    """Asks to put a file of the node into the storage."""
    return f"nodes.{token(node_id)}.files.stage"


def files_temp(node_id: NodeId) -> str:
    """Asks for a new file that a backend can write to."""
    return f"nodes.{token(node_id)}.files.temp"


def files_list(node_id: NodeId) -> str:
    """Asks which files are below a directory."""
    return f"nodes.{token(node_id)}.files.listdir"


def staging_progress(model: str) -> str:
    """Between frontends: how far a model's files are."""
    return f"staging.{token(model)}.progress"


def operation_progress(operation: str) -> str:
    """Between frontends: how far an operation is."""
    return f"gallery.{token(operation)}.progress"


def operation_cancel(operation: str) -> str:
    """Between frontends: whoever works on the operation shall end it."""
    return f"gallery.{token(operation)}.cancel"


def replica_exited(node_id: NodeId) -> str:
    """Says that a process ended by itself. Corral's own."""
    return f"nodes.{token(node_id)}.corral.replica.exited"


def inventory(node_id: NodeId) -> str:
    """Says which backends the node has, whenever that changed. Corral's own."""
    return f"nodes.{token(node_id)}.corral.inventory"
