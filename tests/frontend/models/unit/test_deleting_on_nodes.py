"""The intents about models, as they are sent to nodes."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.base.ids import NodeId
from corral.frontend.models.decide.model import folder_of
from corral.frontend.models.removal import ModelKind


class RecordingClient:
    """Keeps the names of the models that are to be deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def delete_model(self, node_id: NodeId, model: str, *, timeout: timedelta) -> None:
        self.deleted.append(model)


@pytest.mark.parametrize(
    ("model", "deleted"), [("small", ["small"]), ("a/../b", [folder_of("a/../b"), "a/../b"])], ids=["plain", "odd"]
)
async def test_files_are_deleted_where_they_were_staged(model: str, deleted: list[str]) -> None:
    client = RecordingClient()
    policy = SimpleNamespace(timeout=lambda _: timedelta(seconds=1))
    kind = ModelKind(cast("Any", client), cast("Any", None), cast("Any", policy))
    intent = SimpleNamespace(node_id=NodeId("n"), subject=model, verb=None)

    await kind.send(cast("Any", intent), replaces=False)

    assert client.deleted == deleted


@pytest.mark.parametrize("model", [".corral", ".corral/receipts"])
def test_no_model_is_staged_where_corral_keeps_files_of_its_own(model: str) -> None:
    assert folder_of(model).startswith("model-")
