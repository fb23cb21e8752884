"""Models as the admin API shows them."""

from typing import Any

import msgspec


class ReplicaView(msgspec.Struct, kw_only=True):
    id: str
    node_id: str
    node: str
    index: int
    state: str
    revision: str
    address: str
    url: str
    reason: str = ""
    in_flight: int = 0
    """Requests under way there, as far as gateways were heard lately."""
    created_at: str
    changed_at: str


class LoadJobView(msgspec.Struct, kw_only=True):
    state: str
    failures: int
    message: str = ""
    retry_at: str


class ModelView(msgspec.Struct, kw_only=True):
    """One model. Replicas that are gone are among them for a day, with their reasons."""

    name: str
    backend: str
    model: str
    alias_of: str = ""
    revision: str
    source: str
    state: str
    """`loaded`, `loading`, `failed`, or `cold` when nothing asks for it."""
    replicas: list[ReplicaView] = []
    load_job: LoadJobView | None = None
    config: dict[str, Any] = {}
    """Only when one model is asked for."""


class ModelProblemView(msgspec.Struct, kw_only=True):
    source: str
    name: str
    problem: str


class ModelList(msgspec.Struct, kw_only=True):
    items: list[ModelView]
    problems: list[ModelProblemView] = []
    """Files, and models in them, that were passed over."""
