"""Changing models, and their history: Corral's own routes."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.yaml_values import write_document
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_body
from corral.frontend.models.changes import ChangedModel
from corral.frontend.models.decide.stored import ModelRevision
from corral.wire.go_json import decode, format_time
from corral.wire.model_changes import (
    ModelAsk,
    ModelChange,
    ModelCopy,
    ModelEdit,
    ModelHistory,
    ModelRevisionView,
    ModelRollback,
    ModelStateAsk,
)

T = TypeVar("T", bound=msgspec.Struct)


def may_trust(caller: Caller) -> bool:
    """Whether the caller may let code run that is of no gallery."""
    return caller.can(Permission.BACKENDS_TRUST)


async def add(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = await _body(context, request, ModelAsk)
    changed = await context.models.changes.add(
        _text(ask.config), by=caller.name, may_trust=may_trust(caller), dry_run=ask.dry_run
    )
    return answer(_view(changed), 200 if ask.dry_run else 201)


async def edit(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask, name = await _body(context, request, ModelEdit), request.path_params["name"]
    changed = await context.models.changes.edit(
        name,
        _text(ask.config),
        by=caller.name,
        if_revision=ask.if_revision,
        may_trust=may_trust(caller),
        dry_run=ask.dry_run,
    )
    return answer(_view(changed))


async def history(context: AdminContext, request: Request, caller: Caller) -> Response:
    name = request.path_params["name"]
    revisions = await context.models.changes.history(name)
    return answer(ModelHistory(name=name, items=[_revision(revision) for revision in revisions]))


async def rollback(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = await _body(context, request, ModelRollback)
    changed = await context.models.changes.rollback(
        ask.name, ask.number, by=caller.name, may_trust=may_trust(caller), dry_run=ask.dry_run
    )
    return answer(_view(changed))


async def copy(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = await _body(context, request, ModelCopy)
    changed = await context.models.changes.copy(ask.name, ask.to, by=caller.name, may_trust=may_trust(caller))
    return answer(_view(changed), 201)


async def set_state(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask, changes = await _body(context, request, ModelStateAsk), context.models.changes
    switches = []
    if ask.is_disabled is not None:
        switches.append(changes.disable if ask.is_disabled else changes.enable)
    if ask.is_pinned is not None:
        switches.append(changes.pin if ask.is_pinned else changes.unpin)
    if not switches:
        raise InvalidInput("is_disabled", "or is_pinned is needed: nothing else can be set here")
    for switch in switches:
        changed = await switch(ask.name, by=caller.name)
    return answer(_view(changed))


async def _body(context: AdminContext, request: Request, struct: type[T]) -> T:
    return decode(await read_body(request, context.config.max_body), struct)


def _text(config: str | Mapping[str, Any]) -> str:
    """The configuration as YAML. InvalidInput when there is none."""
    text = config if isinstance(config, str) else write_document(config)
    if not text.strip():
        raise InvalidInput("config", "is empty; it is the model's YAML")
    return text


def _view(changed: ChangedModel) -> ModelChange:
    return ModelChange(
        name=changed.name,
        number=changed.number,
        revision=changed.revision,
        change="" if changed.change is None else changed.change.value,
        warnings=list(changed.warnings),
        reloads=list(changed.reloads),
    )


def _revision(revision: ModelRevision) -> ModelRevisionView:
    return ModelRevisionView(
        number=revision.number,
        revision=revision.revision,
        text=revision.text,
        change=revision.change.value,
        changed_at=format_time(revision.changed_at),
        changed_by=revision.changed_by,
    )


_UNKNOWN = {404: "no model has this name; near names are suggested"}
_REFUSED = {400: "the configuration cannot be used; which line and key, and why"}
_OVERTAKEN = {409: "somebody changed it meanwhile; who and when"}
_ADD = RouteSpec(
    method="POST",
    path="/api/v1/models",
    handler=add,
    access=Permission.MODELS_ACT,
    summary="Add a model. With `dry_run`, only say what would become of it.",
    takes=ModelAsk,
    gives=ModelChange,
    codes={200: "what would be added", 201: "added", **_REFUSED, 409: "a model has this name already"},
)

ROUTES = [
    _ADD,
    replace(
        _ADD,
        method="PUT",
        path="/api/v1/models/{name:path}",
        handler=edit,
        access=Permission.MODELS_ACT,
        summary="Give a model another configuration, if it is of the revision `if_revision`. With `dry_run`, only say "
        "what would be replaced.",
        takes=ModelEdit,
        codes={200: "the model after it", **_REFUSED, **_UNKNOWN, **_OVERTAKEN},
    ),
    replace(
        _ADD,
        method="GET",
        path="/api/v1/model-history/{name:path}",
        handler=history,
        access=Permission.MODELS_READ,
        summary="What a model was after each of its changes, the newest first; also one that was removed.",
        takes=None,
        gives=ModelHistory,
        codes={200: "all changes that are kept", **_UNKNOWN},
    ),
    replace(
        _ADD,
        path="/api/v1/model-rollbacks",
        handler=rollback,
        access=Permission.MODELS_ACT,
        summary="Make a model what it was after one of its changes; also one that was removed.",
        takes=ModelRollback,
        codes={200: "the model after it", **_REFUSED, 404: "there is no such model, or no such change", **_OVERTAKEN},
    ),
    replace(
        _ADD,
        path="/api/v1/model-copies",
        handler=copy,
        access=Permission.MODELS_ACT,
        summary="Add a model with the configuration of another one. They share their files.",
        takes=ModelCopy,
        codes={201: "added", 400: "the name cannot be used", **_UNKNOWN, 409: "a model has the new name already"},
    ),
    replace(
        _ADD,
        path="/api/v1/model-states",
        handler=set_state,
        access=Permission.MODELS_ACT,
        summary="Disable or enable a model, or pin it: note that it shall stay loaded.",
        takes=ModelStateAsk,
        codes={200: "the model after it", 400: "nothing is to be set", **_UNKNOWN, **_OVERTAKEN},
    ),
]
