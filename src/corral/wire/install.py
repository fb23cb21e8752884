"""`backend.install`: have a backend on a node, a process of it running, and be told where.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.base.errors import InvalidInput
from corral.wire import go_json
from corral.wire.adapter import AdapterModel
from corral.wire.replica import ProcessKey, ReplicaAccess

ReplicaIndex = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class Gallery(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where backends can be had."""

    url: str = msgspec.field(default_factory=str)
    name: str = msgspec.field(default_factory=str)
    mirrors: list[str] = []
    verification: dict[str, str] = {}
    """Whose signatures are asked for; none when empty."""


class CorralInstall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a Corral frontend adds, for workers that named the feature `adapter`."""

    model: AdapterModel | UnsetType = UNSET
    """How requests are translated, should the backend have no HTTP port of its own."""


def read_galleries(text: str) -> list[Gallery] | None:
    """None for no text at all; an empty list is a list. InvalidInput when the text cannot be read."""
    if not text:
        return None
    try:
        return go_json.decode_list(text.encode(), Gallery)
    except (InvalidInput, UnicodeEncodeError) as error:
        raise InvalidInput("backend_galleries", str(error)) from error


class InstallRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is wanted. Without a model it is an administrator's install, whose process is named after the backend."""

    backend: str = msgspec.field(default_factory=str)
    """A backend's own name, an alias, or the name of a meta backend."""
    model_id: str = ""
    backend_galleries: str = ""
    """JSON text of a list of galleries that replaces the worker's own ones for this call."""
    uri: str = ""
    """Where to install from, instead of a gallery."""
    name: str = ""
    alias: str = ""
    replica_index: ReplicaIndex = 0
    force: bool = False
    """Replace what is installed, and start afresh."""
    op_id: str = ""
    """Whoever wants to hear of the progress subscribes to a subject that carries it."""
    corral: CorralInstall | UnsetType = UNSET

    def galleries(self) -> list[Gallery] | None:
        """The galleries of this call alone; None for the worker's own. InvalidInput when the text cannot be read."""
        return read_galleries(self.backend_galleries)

    @property
    def process_key(self) -> ProcessKey:
        return ProcessKey(self.model_id or self.backend, self.replica_index)


class InstallReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sent only when the process is ready, or when there is none to wait for."""

    success: bool = msgspec.field(default_factory=bool)
    address: str = ""
    """`host:port` to dial for gRPC. A frontend that gets none dials the address of the node."""
    error: str = ""
    corral: ReplicaAccess | UnsetType = UNSET
