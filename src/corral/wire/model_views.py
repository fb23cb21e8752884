"""Models as the admin API shows them."""

from typing import Any

import msgspec

from corral.wire.replica_views import ReplicaView


class ModelProblemView(msgspec.Struct, kw_only=True):
    """A file, or a model in one, that was passed over."""

    source: str
    name: str
    problem: str


class LoadJobView(msgspec.Struct, kw_only=True):
    state: str
    failures: int
    message: str = ""
    retry_at: str
    reason: str = ""
    """Why it waits or failed, in a word: the one that clients without an administrator's key see."""
    engine_lines: list[str] = []
    """What the engine wrote last before the load failed."""
    phase: str = ""
    """What is being done, when the frontend that answers does it itself."""
    current_bytes: int | None = None
    total_bytes: int | None = None
    """Of what the node downloads, or of the weights."""
    eta_seconds: float | None = None


class ModelView(msgspec.Struct, kw_only=True):
    """One model. Replicas that are gone are among them for a day, with their reasons."""

    name: str
    backend: str
    model: str
    alias_of: str = ""
    revision: str
    source: str
    state: str
    """`loaded`, `loading`, `failed`, `cold` when nothing asks for it, `unserved` when it is loaded only where no
    request can be sent to it, or `unusable` when its file was passed over."""
    warnings: list[str] = []
    """What its author probably meant otherwise, such as keys that nobody knows, with lines of the file."""
    replicas: list[ReplicaView] = []
    load_job: LoadJobView | None = None
    config: dict[str, Any] = {}
    """Only when one model is asked for."""
    problems: list[ModelProblemView] = []
    """What was passed over under this name; only when one model is asked for."""


class ModelList(msgspec.Struct, kw_only=True):
    items: list[ModelView]
    problems: list[ModelProblemView] = []
    """Files, and models in them, that were passed over."""
