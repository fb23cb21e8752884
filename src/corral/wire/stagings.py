"""Stagings of models, and what nodes have of them, as the admin API takes and shows them."""

import msgspec


class StagingStart(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-stagings`. Exactly one of `nodes`, `selector` and `all` says where."""

    model: str
    nodes: list[str] = []
    """Ids."""
    selector: dict[str, str] = {}
    """Every node that has these labels."""
    all: bool = False
    """Every node that runs models."""


class StagedModelView(msgspec.Struct, kw_only=True):
    """What was brought to a node for a model."""

    model: str
    bytes: int
    files: int
    """How many; 0 for models with so many that they are not recorded one by one."""
    revision: str
    staged_at: str
    used_at: str
    needed: str = ""
    """Why it stays when room is made for others; empty: it may go."""


class NodeFilesView(msgspec.Struct, kw_only=True):
    """What frontends have brought to a node, the longest unused first. Files that came another way are not listed."""

    node_id: str
    node: str
    items: list[StagedModelView]
    bytes: int
    total_disk: int
    """0: the node does not say."""
    available_disk: int
