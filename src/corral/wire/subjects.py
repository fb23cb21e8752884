"""Every NATS subject, built here and nowhere else."""

from collections.abc import Callable
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
"""Between frontends, in LocalAI's words; see `broadcasts.py`."""

GATEWAY_SHARES: Final = "corral.gateway.shares"
"""The requests that one frontend's gateways have under way, sent to the other frontends."""

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


def _of_node(action: str) -> Callable[[NodeId], str]:
    return lambda node_id: f"nodes.{token(node_id)}.{action}"


node_stop: Final = _of_node("stop")
"""Tells the worker to drain, deregister and exit."""
backend_install: Final = _of_node("backend.install")
"""Asks for a ready process of a backend; the answer comes when there is one."""
backend_upgrade: Final = _of_node("backend.upgrade")
"""Asks to replace a backend; its processes end, and none is started."""
backend_delete: Final = _of_node("backend.delete")
"""Asks to remove a backend and to end its processes."""
backend_rollback: Final = _of_node("corral.backend.rollback")
"""Asks to go back to the version of a backend before the present one. Corral's own."""
backend_list: Final = _of_node("backend.list")
"""Asks which backends are on the node's disk."""
backend_stop: Final = _of_node("backend.stop")
"""Tells the worker to stop processes. Nothing is answered."""
models_running: Final = _of_node("models.running")
"""Asks which processes run."""
model_unload: Final = _of_node("model.unload")
"""Asks to have a model given back by its process, which goes on."""
model_stop: Final = _of_node("model.stop")
"""Asks for the end of exactly one process; answered when it is gone."""
model_delete: Final = _of_node("model.delete")
"""Asks to remove a model's files."""
files_ensure: Final = _of_node("files.ensure")
"""Asks to have an object of the storage on the node's disk."""
files_stage: Final = _of_node("files.stage")
"""Asks to put a file of the node into the storage."""
files_temp: Final = _of_node("files.temp")
"""Asks for a new file that a backend can write to."""
files_list: Final = _of_node("files.listdir")
"""Asks which files are below a directory."""
replica_exited: Final = _of_node("corral.replica.exited")
"""Says that a process ended by itself. Corral's own."""
inventory: Final = _of_node("corral.inventory")
"""Says which backends the node has, whenever that changed. Corral's own."""


def install_progress(node_id: NodeId, operation: str) -> str:
    """Tells how far one install or upgrade is."""
    return f"nodes.{token(node_id)}.backend.install.{token(operation)}.progress"


def install_progress_of_all(operation: str) -> str:
    """Matches the progress of one operation on every node."""
    return f"nodes.*.backend.install.{token(operation)}.progress"


def operation_progress(operation: str) -> str:
    """Between frontends: the progress of an operation."""
    return f"gallery.{token(operation)}.progress"


def operation_cancel(operation: str) -> str:
    """Between frontends: the one that works on the operation shall end it."""
    return f"gallery.{token(operation)}.cancel"


def staging_progress(model: str) -> str:
    """Between frontends: how far the files of a model are on their way to a node."""
    return f"staging.{token(model)}.progress"
