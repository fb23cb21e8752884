"""The list of models as Anthropic's clients read it, answered from the gateway's view."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from corral.wire.view import ModelEntry


def model_list(entries: Sequence[ModelEntry]) -> dict[str, Any]:
    """Return all models in one page."""
    models = [model(entry) for entry in entries]
    first, last = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {"data": models, "has_more": False, "first_id": first, "last_id": last}


def model(entry: ModelEntry) -> dict[str, Any]:
    return {"type": "model", "id": entry.name, "display_name": entry.name, "created_at": rfc3339(entry.created)}


def rfc3339(seconds: int) -> str:
    """Return Unix seconds as a time that clients can read."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
