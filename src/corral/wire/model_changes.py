"""Changes of models' configurations, and their history, as the admin API takes and shows them."""

from typing import Any

import msgspec


class ModelAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/models`."""

    config: str | dict[str, Any]
    """YAML, which is kept as it was written, or an object."""
    dry_run: bool = False


class ModelEdit(msgspec.Struct, kw_only=True):
    """Body of `PUT /api/v1/models/NAME`."""

    config: str | dict[str, Any]
    if_revision: str = ""
    """The revision that the new configuration was made from; empty: any."""
    dry_run: bool = False


class ModelRollback(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-rollbacks`."""

    name: str
    number: int
    """Number of the change whose result is restored."""
    dry_run: bool = False


class ModelCopy(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-copies`."""

    name: str
    to: str


class ModelStateAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-states`; what is left out stays as it is."""

    name: str
    is_disabled: bool | None = None
    is_pinned: bool | None = None


class ModelChange(msgspec.Struct, kw_only=True):
    """A model after a change, or as it would be."""

    name: str
    number: int
    """Number of the change; it only ever counts up."""
    revision: str
    """Hash of the configuration; equal configurations have equal ones."""
    change: str
    """What was done, such as `edited`; empty when it was like this already."""
    warnings: list[str] = []
    """What its author probably meant otherwise."""
    reloads: list[str] = []
    """Ids of replicas that are replaced, because they serve another revision."""


class ModelRevisionView(msgspec.Struct, kw_only=True):
    """What a model was after one of its changes."""

    number: int
    revision: str
    text: str
    """Its YAML as it was written."""
    change: str
    changed_at: str
    changed_by: str


class ModelHistory(msgspec.Struct, kw_only=True):
    name: str
    items: list[ModelRevisionView]
    """The newest first. The first is what the model is, unless its change is `removed`."""
