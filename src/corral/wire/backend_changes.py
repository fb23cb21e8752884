"""`backend.upgrade`, `backend.delete` and `corral.backend.rollback`: replace or remove what is on a node's disk. None
starts a process.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it.
"""

import msgspec

from corral.wire.install import Gallery, ReplicaIndex, read_galleries


class UpgradeRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stop every process of a backend and install it anew."""

    backend: str = msgspec.field(default_factory=str)
    backend_galleries: str = ""
    """JSON text of a list of galleries that replaces the worker's own ones for this call."""
    uri: str = ""
    name: str = ""
    alias: str = ""
    replica_index: ReplicaIndex = 0
    """Tells only which process may be named after the backend itself."""
    op_id: str = ""

    def galleries(self) -> list[Gallery] | None:
        """The galleries of this call alone; None for the worker's own. InvalidInput when the text cannot be read."""
        return read_galleries(self.backend_galleries)


class DeleteRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stop every process of a backend and remove its files."""

    backend: str = msgspec.field(default_factory=str)
    """A backend's own name, an alias, or the name of a meta backend."""


class RollbackRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stop every process of a backend and go back to the version before, without fetching anything. For workers that
    named the feature `backend-rollback`."""

    backend: str = msgspec.field(default_factory=str)
    """A backend's own name, an alias, or the name of a meta backend."""


class ChangeReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to all of them. What was stopped is told also when the rest failed."""

    success: bool = msgspec.field(default_factory=bool)
    error: str = ""
    stopped_process_keys: list[str] = []
    reports_stopped_processes: bool = False
    """When set, an absent list means that nothing was stopped. Old workers do not know: their silence says nothing."""
