"""LocalAI's routes that show models: what galleries offer, what the fleet has, how far a load is."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace
from msgspec.structs import replace as replace_struct
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import NotFound
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import QueryField, number, one_of, switch
from corral.frontend.api.route import AdminContext, Caller, Dialect, RouteSpec, answer, read_compat
from corral.frontend.backends.inventory import may_have_backends
from corral.frontend.backends.shapes import repositories
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.offers import installed_entries
from corral.frontend.models.decide.stored import StoredModel
from corral.frontend.models.shapes import (
    ModelPageQuery,
    available_model,
    backend_uses,
    capabilities_of,
    estimate_view,
    galleries_by_name,
    model_page,
    variant_list,
)
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.decide.operation import Operation, compat_status
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.shapes import loading_view
from corral.galleries.config import sources_of
from corral.galleries.model_galleries import ModelReadings
from corral.wire.backends import Gallery
from corral.wire.localai_models import (
    AvailableModel,
    CapableModel,
    LoadedModel,
    LoadedOn,
    ModelCapabilities,
    ModelEstimate,
    ModelPageView,
    SystemView,
    VariantList,
)
from corral.wire.view import Loading

_USUAL_CONTEXT = 8192
_MOST_CONTEXTS = 32
_NOT_IN_GALLERY = {"error": "model not found"}


async def list_available(context: AdminContext, request: Request, caller: Caller) -> Response:
    readings = await context.models.galleries.readings()
    galleries = galleries_by_name(reading.source for reading in readings.readings)
    installed = installed_entries(context.models.catalogue.rows.values())
    return answer([available_model(entry, galleries, installed) for entry in readings.catalogue.entries])


async def list_galleries(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(repositories(await context.models.galleries.sources()))


async def add_gallery(context: AdminContext, request: Request, caller: Caller) -> Response:
    (source,) = sources_of([await read_compat(context, request, Gallery)])
    return answer(repositories(await context.models.galleries.add(source, by=caller.name)))


async def remove_gallery(context: AdminContext, request: Request, caller: Caller) -> Response:
    name = (await read_compat(context, request, Gallery)).name.strip()
    return answer(repositories(await context.models.galleries.remove(name, by=caller.name)))


async def list_page(context: AdminContext, request: Request, caller: Caller) -> Response:
    query = ModelPageQuery(**{name: request.query_params.get(name, "") for name in _PAGE_QUERY})
    readings = await context.models.galleries.readings()
    nodes = [seen.node for seen in await context.nodes.fleet.all() if may_have_backends(seen)]
    rows = context.models.catalogue.rows
    installed, moving = installed_entries(rows.values()), await _moving(context)
    return answer(model_page(readings, query, installed, moving, nodes, installed_models=len(rows)))


async def _moving(context: AdminContext) -> Mapping[str, Operation]:
    """Operations about models that are under way, by what they are about."""
    current = await context.operations.stores.operations.current()
    return {
        operation.subject: operation
        for operation in current
        if operation.verb.kind is not IntentKind.BACKEND and not compat_status(operation).processed
    }


async def list_capabilities(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Where models run is shown to those who may see nodes."""
    where = await _loaded_on(context) if caller.can(Permission.NODES_READ) else {}
    models = context.models.catalogue.rows
    items = [_capable(context, row, where) for _, row in sorted(models.items())]
    items += [
        CapableModel(id=name, capabilities=[], loaded_on=places, source="registry-only")
        for name, places in sorted(where.items())
        if name not in models
    ]
    return answer(ModelCapabilities(data=[item for item in items if _may_ask(context, caller, item.id)]))


def _may_ask(context: AdminContext, caller: Caller, name: str) -> bool:
    """Whether the caller's key is for the model, or for the one that this is an alias of: as `/v1/models` shows it."""
    spec = context.models.catalogue.catalogue.serving(name)
    return caller.may_ask(name) or (spec is not None and caller.may_ask(spec.name))


def _capable(context: AdminContext, row: StoredModel, where: Mapping[str, list[LoadedOn]]) -> CapableModel:
    spec = context.models.catalogue.spec_of(row)
    if not isinstance(spec, ModelSpec):
        spec = ModelSpec(name=row.name)
    return CapableModel(
        id=row.name,
        capabilities=capabilities_of(spec),
        backend=spec.backend,
        disabled=row.is_disabled,
        pinned=row.is_pinned,
        loaded_on=where.get(spec.alias_of or row.name, []),
    )


async def _loaded_on(context: AdminContext) -> dict[str, list[LoadedOn]]:
    loaded = [served for served in await context.serving.replicas.living() if served.state is ReplicaState.LOADED]
    nodes = await context.nodes.fleet.some({replica.node_id for replica in loaded})
    places: dict[str, list[LoadedOn]] = defaultdict(list)
    for replica in loaded:
        seen = nodes.get(replica.node_id)
        places[replica.model].append(
            LoadedOn(
                node_id=replica.node_id,
                node_name="" if seen is None else seen.node.name,
                state=replica.state.value,
                node_status="" if seen is None else seen.status.value,
            )
        )
    return places


async def list_backend_uses(context: AdminContext, request: Request, caller: Caller) -> Response:
    """What is known of galleries already: nobody waits for this list."""
    return answer(backend_uses([ModelReadings(readings=context.models.galleries.known)]))


async def list_variants(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        chosen = await context.models.galleries.take(request.path_params["id"])
    except NotFound:
        return answer(_NOT_IN_GALLERY, 404)
    siblings = (await context.models.galleries.readings()).catalogue.siblings(chosen.asked)
    return answer(variant_list(chosen, siblings))


async def show_estimate(context: AdminContext, request: Request, caller: Caller) -> Response:
    galleries = context.models.galleries
    try:
        chosen = await galleries.take_itself(request.path_params["id"])
    except NotFound:
        return answer(_NOT_IN_GALLERY, 404)
    return answer(estimate_view(chosen, await galleries.measure(chosen), _contexts(request)))


def _contexts(request: Request) -> list[int]:
    """The requested context lengths. Texts that are not numbers are ignored, as LocalAI does."""
    words = request.query_params.get("contexts", "").split(",")
    numbers = [int(word) for word in map(str.strip, words) if word.isascii() and word.isdigit() and len(word) < 10]
    return list(dict.fromkeys(number for number in numbers if number > 0))[:_MOST_CONTEXTS] or [_USUAL_CONTEXT]


async def show_system(context: AdminContext, request: Request, caller: Caller) -> Response:
    nodes = [seen.node.id for seen in await context.nodes.fleet.all() if may_have_backends(seen)]
    inventories = await context.backends.inventory.known(nodes)
    names = {entry.name for inventory in inventories.values() for entry in inventory.entries}
    loaded = {
        replica.model for replica in await context.serving.replicas.living() if replica.state is ReplicaState.LOADED
    }
    return answer(SystemView(backends=sorted(names), loaded_models=[LoadedModel(id=name) for name in sorted(loaded)]))


async def show_load(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Names of nodes and what engines print are shown to those who may read logs."""
    name = request.path_params["id"]
    spec = context.models.catalogue.catalogue.serving(name)
    served = name if spec is None else spec.name
    status = await context.serving.loads.status_of(served)
    if status is None or not (caller.may_ask(name) or caller.may_ask(served)):
        message = f"no load is running for model {name}"
        return answer({"error": {"code": 404, "message": message, "type": "not_found_error"}}, 404)
    loading = loading_view(status)
    if not caller.can(Permission.NODES_LOGS):
        loading = replace_struct(loading, node="", message="", file="", engine_lines=[])
    return answer(loading.for_client())


_PAGE_QUERY: Final[Mapping[str, str | QueryField]] = {
    "term": "words that name, tags or description mention",
    "tag": "only models with these tags or for these uses, separated by commas",
    "backend": "only models of this backend",
    "page": number("which page, from 1", least=1),
    "items": number("how many on a page; 9 by default", least=1),
    "sort": one_of("what to sort by", ("name", "repository", "license", "status")),
    "order": one_of("which way", ("asc", "desc")),
    "collapse_variants": switch("`true` leaves out what is a variant of another model, unless a term is given"),
}
_PAGE = RouteSpec(
    method="GET",
    path="/api/models",
    handler=list_page,
    access=Permission.MODELS_READ,
    dialect=Dialect.LOCALAI_UI,
    summary="A page of the galleries of models, with what the fleet has and what is under way.",
    gives=ModelPageView,
    query=_PAGE_QUERY,
    codes={200: "a page; galleries that cannot be read are named"},
)
_PROGRAM = replace(_PAGE, dialect=Dialect.LOCALAI_CLI, query={})

_CAPABILITIES = replace(
    _PAGE,
    path="/api/models/capabilities",
    handler=list_capabilities,
    access=Permission.MODELS_LIST,
    summary="What each model is for; for those who may see nodes also where it runs.",
    gives=ModelCapabilities,
    query={},
    codes={200: "a list, by name"},
)

ROUTES = [
    _PAGE,
    _CAPABILITIES,
    replace(_CAPABILITIES, path="/v1/models/capabilities", dialect=Dialect.OPENAI),
    replace(
        _PAGE,
        path="/api/models/variants/{id:path}",
        handler=list_variants,
        access=Permission.MODELS_READ,
        summary="The builds of a gallery's model, and which the fleet would get.",
        gives=VariantList,
        query={},
        codes={
            200: "a list; empty for a model with one build",
            404: "no gallery that could be read has it",
            409: "its base definition cannot be used",
            503: "its base definition is away; try again",
        },
    ),
    replace(
        _PAGE,
        path="/api/models/estimate/{id:path}",
        handler=show_estimate,
        access=Permission.MODELS_READ,
        summary="How large a gallery's model is, and the memory that it needs: from the heads of its files.",
        gives=ModelEstimate,
        query={"contexts": f"lengths of the context, separated by commas; {_USUAL_CONTEXT} by default"},
        codes={
            200: "what is known; nothing if no hub tells",
            404: "no gallery that could be read has it",
            409: "its base definition cannot be used",
            503: "its base definition is away; try again",
        },
    ),
    replace(
        _PAGE,
        path="/api/backends/usecases",
        handler=list_backend_uses,
        access=Permission.BACKENDS_READ,
        summary="What backends are for, as Corral and the galleries that were read know it.",
        gives=dict[str, list[str]],
        query={},
        codes={200: "a map from names to uses"},
    ),
    replace(
        _PROGRAM,
        path="/models/available",
        handler=list_available,
        access=Permission.MODELS_READ,
        summary="All models of all galleries.",
        gives=list[AvailableModel],
        codes={200: "a list, in the order of the galleries; without those of galleries that cannot be read"},
    ),
    replace(
        _PROGRAM,
        path="/models/galleries",
        handler=list_galleries,
        access=Permission.MODELS_READ,
        summary="Where this frontend looks for models.",
        gives=list[Gallery],
        codes={200: "a list, in the order in which they count"},
    ),
    replace(
        _PROGRAM,
        method="POST",
        path="/models/galleries",
        handler=add_gallery,
        access=Permission.GALLERIES_MANAGE,
        summary="Have all frontends look for models in one more gallery.",
        takes=Gallery,
        gives=list[Gallery],
        codes={200: "all galleries", 400: "its name or a URL cannot be used", 409: "there is one of this name"},
    ),
    replace(
        _PROGRAM,
        method="DELETE",
        path="/models/galleries",
        handler=remove_gallery,
        access=Permission.GALLERIES_MANAGE,
        summary="Forget a gallery that was added; the body names it.",
        takes=Gallery,
        gives=list[Gallery],
        codes={200: "all others", 404: "nobody added it", 409: "the settings name it"},
    ),
    replace(
        _PROGRAM,
        path="/system",
        handler=show_system,
        access=Permission.FLEET_READ,
        summary="Backends that some node has, and models that are loaded.",
        gives=SystemView,
        codes={200: "both lists, by name"},
    ),
    replace(
        _PAGE,
        path="/api/models/{id:path}/load-status",
        handler=show_load,
        access=Permission.MODELS_LIST,
        summary="How far the load of a model is, as the 503 of a request for it tells.",
        gives=Loading,
        query={},
        codes={200: "a load is under way, or failed", 404: "no load is running for it"},
    ),
]
