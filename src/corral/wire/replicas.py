"""Messages and answers about replicas: processes of backends that serve a model."""

from typing import NamedTuple, Self

import msgspec
from msgspec import UNSET, UnsetType


class ProcessKey(NamedTuple):
    """What one process of a node is known by: `<model>#<replica>`, or `<backend>#<replica>` without a model."""

    model_id: str
    replica_index: int

    def __str__(self) -> str:
        return f"{self.model_id}#{self.replica_index}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for a text that is no key. A model's name may contain `#` itself: the last one counts."""
        model_id, separator, index = text.rpartition("#")
        digits = index.removeprefix("-")
        if not separator or not digits.isascii() or not digits.isdecimal():
            return None
        return cls(model_id, int(index))


class ReplicaAccess(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Corral's addition: where the replica speaks OpenAI's HTTP, on its own port or through an adapter, and what its
    gRPC port wants to hear."""

    url: str
    """Empty when it does not speak HTTP at all."""
    key: str
    """New at every start of the process, so that a port which is used again never answers for the wrong model."""
    adapted: bool = False
    """An adapter answers there, and completes requests by itself."""
    routes: list[str] | None = None
    """Which routes of inference are answered there; None when its backend does not say."""
    front_port: int = 0
    """A second port of the same host and key, for requests that the first would answer otherwise than they are written;
    0 when there is none."""
    token: str = ""
    """The process's own token for gRPC; empty when it has none, and wants the node's secret."""


class StopRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Payload of `backend.stop`. Nothing answers it."""

    backend: str = msgspec.field(default_factory=str)
    """A backend, a model or a process key; empty means every process."""
    force: bool = False
    """Do not ask the backend to free its model first."""


class RunningModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One process that runs and is ready."""

    model_id: str = msgspec.field(default_factory=str)
    replica_index: int = msgspec.field(default_factory=int)
    address: str = ""
    """As the worker itself dials it, on loopback."""
    corral: ReplicaAccess | UnsetType = UNSET


class RunningReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `models.running`."""

    models: list[RunningModel] = msgspec.field(default_factory=lambda: list[RunningModel]())
    error: str = ""
    """When set, the list says nothing."""


class ReplicaExited(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Corral's addition: a process that was ready is gone, and nobody had asked for it. A hint: it may be lost."""

    model_id: str = msgspec.field(default_factory=str)
    replica_index: int = msgspec.field(default_factory=int)
    address: str = ""
    """As in `models.running`, so that a process which was started again since is not mistaken for it."""
    key_hash: str = ""
    """Hash of the process's key, where it has one: ports are used again, keys are not."""
    reason: str = ""
    tail: list[str] = []
    """The last lines of its standard error."""


class ReplicaRow(msgspec.Struct, kw_only=True):
    """A replica in LocalAI's form: `GET /api/nodes/{id}/models`."""

    id: str
    node_id: str
    model_name: str
    replica_index: int
    address: str
    state: str
    """Only LocalAI's words: a place that is merely reserved is `staging` here."""
    in_flight: int
    """Requests under way, as far as they are known."""
    last_used: str
    backend_type: str | UnsetType = UNSET
    config_revision: str | UnsetType = UNSET
    created_at: str
    updated_at: str


class ReplicaView(msgspec.Struct, kw_only=True):
    """A replica in Corral's form."""

    id: str
    node_id: str
    node: str
    model: str = ""
    index: int
    state: str
    """As [replicas](../concepts/replicas.md#states) tells."""
    revision: str
    address: str
    url: str
    reason: str = ""
    backend: str = ""
    why: str = ""
    """Who wanted it: `asked`, `person`, `minimum`, `busy`, `spread`, `drain`, `moved`, `restored` or `changed`."""
    vram: int = 0
    ram: int = 0
    """The bytes that it counts with on its machine; 0 where nobody can tell."""
    cards: list[str] = []
    """The GPUs that it may use, where its machine names them."""
    in_flight: int | None = 0
    """Requests under way there; null while a gateway is silent, whose share nobody knows."""
    last_used_at: str | None = None
    """When a request was last under way there; null when this frontend heard of none."""
    tokens_per_second: float | None = None
    """How fast its latest answers came: their tokens by the time from their first byte to their end; null when no
    answer of the last minutes stated its tokens."""
    created_at: str
    changed_at: str
