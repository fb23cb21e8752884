"""LocalAI's routes that change configurations of models. Each change is checked, and kept in the model's history."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import CorralError, InvalidInput, NotFound
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.yaml_values import write_document
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import (
    STATUS_OF_CODE,
    AdminContext,
    BodyTooLarge,
    Caller,
    Dialect,
    RouteSpec,
    answer,
    read_body,
)
from corral.frontend.models.changes import ChangedModel
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.reading import read_one
from corral.frontend.models.decide.stored import ModelChangeKind
from corral.frontend.models.routes.changes import may_trust
from corral.wire.localai_models import ModelResponse, ModelText
from corral.wire.operation_views import Acknowledgement

_NO_CONFIGURATION = {"error": "model configuration not found"}
_EMPTY_PATCH = {"error": "request body is empty or unreadable"}


# For its pages, whose errors are a text.


async def show_config(context: AdminContext, request: Request, caller: Caller) -> Response:
    row = context.models.catalogue.rows.get(_name(request))
    spec = None if row is None else context.models.catalogue.spec_of(row)
    return answer(dict(spec.config)) if isinstance(spec, ModelSpec) else answer(_NO_CONFIGURATION, 404)


async def show_text(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        newest = (await context.models.changes.history(_name(request)))[0]
    except NotFound:
        return answer(_NO_CONFIGURATION, 404)
    if newest.change is ModelChangeKind.REMOVED:
        return answer(_NO_CONFIGURATION, 404)
    return answer(ModelText(config=newest.text, name=newest.name))


async def patch_config(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_body(request, context.config.max_body)
    if not body.strip():
        return answer(_EMPTY_PATCH, 400)
    try:
        patch = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"invalid JSON: {error}") from error
    changed = await context.models.changes.patch(_name(request), patch, by=caller.name, may_trust=may_trust(caller))
    return answer(_updated(changed))


async def save_config(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Only the configuration: its files are not fetched."""
    try:
        chosen = await context.models.galleries.take_itself(_name(request))
    except NotFound:
        return answer({"error": "model not found"}, 404)
    # An administrator decided to trust the gallery.
    await context.models.changes.add(write_document(chosen.plan.config), by=caller.name, may_trust=True)
    return answer(Acknowledgement(message="Configuration file saved"))


# For its editor, whose answers say whether it went well.


async def import_config(context: AdminContext, request: Request, caller: Caller) -> Response:
    async def change() -> ModelResponse:
        text = _as_yaml(await _body(context, request), request.headers.get("content-type", ""))
        changed = await context.models.changes.add(text, by=caller.name, may_trust=may_trust(caller))
        message = "Model configuration created successfully"
        return msgspec.structs.replace(_response(changed, message), filename=_file_name(changed.name))

    return await _answered(change)


async def edit_config(context: AdminContext, request: Request, caller: Caller) -> Response:
    async def change() -> ModelResponse:
        text = (await _body(context, request)).decode("utf-8", "replace")
        changed = await context.models.changes.edit(_name(request), text, by=caller.name, may_trust=may_trust(caller))
        config = dict(read_one(changed.text).spec.config)
        return msgspec.structs.replace(_updated(changed), filename=_file_name(changed.name), config=config)

    return await _answered(change)


async def toggle_state(context: AdminContext, request: Request, caller: Caller) -> Response:
    changes = context.models.changes
    return await _toggled(request, caller, {"enable": changes.enable, "disable": changes.disable})


async def toggle_pinned(context: AdminContext, request: Request, caller: Caller) -> Response:
    changes = context.models.changes
    return await _toggled(request, caller, {"pin": changes.pin, "unpin": changes.unpin})


_Toggle = Callable[..., Awaitable[ChangedModel]]
_SAID = {
    "enable": "enabled successfully.",
    "disable": "disabled successfully. The model will not be loaded on demand until re-enabled.",
    "pin": "pinned successfully. The model will be excluded from automatic eviction.",
    "unpin": "unpinned successfully.",
}


async def _toggled(request: Request, caller: Caller, actions: Mapping[str, _Toggle]) -> Response:
    async def change() -> ModelResponse:
        action = request.path_params["action"]
        if action not in actions:
            raise InvalidInput("", f"Action must be {' or '.join(map(repr, actions))}")
        changed = await actions[action](_name(request), by=caller.name)
        message = f"Model '{changed.name}' has been {_SAID[action]}"
        return msgspec.structs.replace(_response(changed, message), filename=_file_name(changed.name))

    return await _answered(change)


async def reload(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.models.watch.look()
    message = "Model configurations reloaded successfully"
    return answer(ModelResponse(success=True, message=message, pending_cleanup=0))


async def _answered(change: Callable[[], Awaitable[ModelResponse]]) -> Response:
    """What became of a change, or why there was none."""
    try:
        return answer(await change())
    except CorralError as error:
        if error.retryable:
            raise
        status = 413 if isinstance(error, BodyTooLarge) else STATUS_OF_CODE.get(error.code, 500)
        return answer(ModelResponse(success=False, error=error.message), status)


async def _body(context: AdminContext, request: Request) -> bytes:
    body = await read_body(request, context.config.max_body)
    if not body.strip():
        raise InvalidInput("", "Request body is empty")
    return body


def _as_yaml(body: bytes, content_type: str) -> str:
    """YAML stays as it was written; JSON is rewritten. What is neither said to be one nor the other tells itself."""
    is_yaml = "yaml" in content_type
    if "json" not in content_type and (is_yaml or not body.lstrip().startswith(b"{")):
        return body.decode("utf-8", "replace")
    try:
        return write_document(msgspec.json.decode(body, type=dict[str, Any]))
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"Failed to parse JSON: {error}") from error


def _response(changed: ChangedModel, message: str) -> ModelResponse:
    return ModelResponse(
        success=True,
        message=message,
        details=list(changed.warnings),
        config_revision=changed.revision,
        pending_cleanup=len(changed.reloads),
    )


def _updated(changed: ChangedModel) -> ModelResponse:
    return _response(changed, f"Model '{changed.name}' updated successfully")


def _file_name(model: str) -> str:
    return model.replace("/", "__").replace("\\", "__") + ".yaml"


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


_REFUSED = {400: "the configuration cannot be used; which line and key, and why", 409: "somebody changed it meanwhile"}
_UNKNOWN = {404: "no model has this name"}
_CHANGED = "changed, with the new revision and how many replicas are replaced for it"
_PAGE = RouteSpec(
    method="GET",
    path="/api/models/config-json/{name:path}",
    handler=show_config,
    access=Permission.MODELS_READ,
    dialect=Dialect.LOCALAI_UI,
    summary="The configuration of a model as JSON.",
    gives=dict[str, Any],
    codes={200: "the configuration", **_UNKNOWN},
)
_EDITOR = replace(
    _PAGE,
    method="POST",
    path="/models/edit/{name:path}",
    handler=edit_config,
    access=Permission.MODELS_ACT,
    summary="Give a model another configuration; the body is its YAML.",
    gives=ModelResponse,
    codes={200: _CHANGED, **_REFUSED, **_UNKNOWN, 413: "the body is too large"},
)

ROUTES = [
    _PAGE,
    replace(
        _PAGE,
        method="PATCH",
        handler=patch_config,
        access=Permission.MODELS_ACT,
        summary="Change some keys of a model: mappings are merged, null takes a key away.",
        gives=ModelResponse,
        codes={200: _CHANGED, **_REFUSED, **_UNKNOWN, 413: "the body is too large"},
    ),
    replace(
        _PAGE,
        path="/api/models/edit/{name:path}",
        handler=show_text,
        access=Permission.MODELS_READ,
        summary="The YAML of a model as it was written.",
        gives=ModelText,
    ),
    replace(
        _PAGE,
        method="POST",
        path="/api/models/config/{name:path}",
        handler=save_config,
        access=Permission.MODELS_ACT,
        summary="Add a gallery's model without fetching its files.",
        gives=Acknowledgement,
        codes={
            200: "added",
            **_REFUSED,
            404: "no gallery that could be read has it",
            409: "there is a model of this name, or its base definition cannot be used",
        },
    ),
    _EDITOR,
    replace(
        _EDITOR,
        path="/models/import",
        handler=import_config,
        access=Permission.MODELS_ACT,
        summary="Add a model; the body is its configuration as YAML or JSON.",
        codes={200: "added", **_REFUSED, 409: "there is a model of this name", 413: "the body is too large"},
    ),
    replace(
        _EDITOR,
        method="PUT",
        path="/models/toggle-state/{name:path}/{action}",
        handler=toggle_state,
        access=Permission.MODELS_ACT,
        summary="`enable` a model, or `disable` it: then it is there, but answers nobody.",
        codes={200: "it is so", 400: "another action", **_UNKNOWN, 409: _REFUSED[409]},
    ),
    replace(
        _EDITOR,
        method="PUT",
        path="/models/toggle-pinned/{name:path}/{action}",
        handler=toggle_pinned,
        access=Permission.MODELS_ACT,
        summary="`pin` a model, or `unpin` it.",
        codes={200: "it is so", 400: "another action", **_UNKNOWN, 409: _REFUSED[409]},
    ),
    replace(
        _EDITOR,
        path="/models/reload",
        handler=reload,
        access=Permission.MODELS_ACT,
        summary="Read the files of the models directory again now.",
        codes={200: "read"},
    ),
]
