"""Answers about where models run: why a node is chosen or not, all replicas, and what a change would do."""

import msgspec

from corral.wire.models import LoadJobView
from corral.wire.replicas import ReplicaView
from corral.wire.view import Loading


class NodeVerdictView(msgspec.Struct, kw_only=True):
    """What speaks for and against one node."""

    node_id: str
    node: str
    code: str
    """`fits`, or the first reason that speaks against it."""
    why: str = ""
    """The rest of a sentence that begins with the name of the node; empty when it fits."""
    numbers: dict[str, int] = {}
    """What was compared, in bytes: `needed` and `free`."""
    vram: int = 0
    ram: int = 0
    """What one more replica would take there."""
    cards: list[str] = []
    """The GPUs that it would get."""
    points: float = 0.0
    score: dict[str, float] = {}
    """The points by what they are for."""
    free: int = 0
    """Memory of all kinds that is free there."""
    replicas: int = 0
    """How many of the model live there."""


class ModelNeedsView(msgspec.Struct, kw_only=True):
    """What one replica takes, in bytes; 0 where nobody can tell, and then nothing is held against a node."""

    source: str
    """How the needs were found."""
    disk: int = 0
    ram: int = 0
    """RAM that a replica takes on a machine without GPUs."""
    vram: int = 0
    ram_beside_gpu: int = 0
    splits: bool = False
    """Whether its engine spreads it over several GPUs."""
    per_card: int = 0
    """What each further GPU takes then."""


class WhyView(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/models/{name}/why`."""

    model: str
    """The model that answers: the one that was asked for, or that it is an alias of."""
    asked: str
    summary: str
    """All of it in one sentence."""
    needs: ModelNeedsView
    verdicts: list[NodeVerdictView]
    """Where one more replica could go: the best node first, then those that cannot take it."""
    replicas: list[ReplicaView] = []
    """The model's living replicas."""
    jobs: list[LoadJobView] = []
    """Loads that are under way, or failed."""


class ModelLoadView(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/model-loads/{name}`."""

    model: str
    """The model that answers: the one that was asked for, or that it is an alias of."""
    loading: Loading | None = None
    """How far its load is, or how it failed; null while none is under way."""


class ReplicaList(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/replicas`."""

    items: list[ReplicaView]


class WhatIfAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/what-if`: one of `node`, `model` and `backend`, and what becomes of it."""

    node: str = ""
    """The id of a node."""
    model: str = ""
    backend: str = ""
    becomes: str = ""
    """`down` or `drained` for a node, `deleted` for a backend."""
    replicas: int | None = None
    """How many a model would have."""


class ConsequenceView(msgspec.Struct, kw_only=True):
    """What would become of one replica, or of one that would be wanted."""

    model: str
    fate: str
    """`moves`, `added`, `ended`, `stays`, `replica_lost`, `service_lost` or `not_added`."""
    node_id: str = ""
    node: str = ""
    """The node where the replica is."""
    to_node_id: str = ""
    to_node: str = ""
    """The node that the replica would move to."""
    why: str = ""
    is_interrupted: bool = False
    """Whether no other replica answers until this one is loaded elsewhere."""
    is_curable: bool = False
    """Whether there would be a place if something else ended."""
    verdicts: list[NodeVerdictView] = []
    """Every node's reason; only where there is no place."""


class WhatIfView(msgspec.Struct, kw_only=True):
    """Answer of `POST /api/v1/what-if`. Nothing was changed."""

    change: str
    """What was asked, in words."""
    summary: str
    consequences: list[ConsequenceView] = []
