"""What galleries of models offer: Corral's own routes."""

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import number, one_of
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer
from corral.frontend.models.decide.offers import installed_entries
from corral.frontend.models.shapes import gallery_detail, gallery_item, with_measures
from corral.galleries.model_catalogue import ModelQuery, page_of
from corral.galleries.model_variants import parse_size
from corral.galleries.readings import index_views
from corral.wire.gallery_models import GalleryModelDetail, GalleryModelList

_PER_PAGE = 50


async def search(context: AdminContext, request: Request, caller: Caller) -> Response:
    parameters = request.query_params
    query = ModelQuery(
        term=parameters.get("term", ""),
        gallery=parameters.get("gallery", ""),
        tag=parameters.get("tag", ""),
        license=parameters.get("license", ""),
        usecase=parameters.get("use", ""),
        backend=parameters.get("backend", ""),
        most_bytes=_size(parameters, "max_bytes"),
    )
    page, per_page = whole_number(parameters, "page", 1), whole_number(parameters, "per_page", _PER_PAGE)
    readings = await context.models.galleries.readings(newest=parameters.get("refresh") == "1")
    catalogue = readings.catalogue
    matches = page_of(catalogue.search(query), page=page, per_page=per_page)
    installed = installed_entries(context.models.catalogue.rows.values())
    machines = await context.models.galleries.machines()
    return answer(
        GalleryModelList(
            items=[gallery_item(entry, installed, catalogue, machines) for entry in matches.items],
            total=matches.total,
            page=matches.page,
            pages=matches.pages,
            galleries=index_views(readings.readings, catalogue.problems, context.clock.now()),
            near=[] if matches.total or not query.term else list(catalogue.near(query.term)),
        )
    )


async def show(context: AdminContext, request: Request, caller: Caller) -> Response:
    chosen = await context.models.galleries.take(
        request.path_params["name"], build=request.query_params.get("build", "")
    )
    detail = gallery_detail(chosen, installed_entries(context.models.catalogue.rows.values()))
    if request.query_params.get("estimate") == "0":
        return answer(detail)
    measured = await context.models.galleries.measure(chosen)
    free = max((store.free_bytes for store in await context.models.stores.all()), default=None)
    return answer(with_measures(detail, chosen, measured, free))


def whole_number(query: QueryParams, name: str, usual: int) -> int:
    text = query.get(name, "") or str(usual)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInput(name, f"must be a whole number, got {text[:20]!r}")
    return int(text)


def _size(query: QueryParams, name: str) -> int | None:
    text = query.get(name, "")
    size = parse_size(text) if text else None
    if text and size is None:
        raise InvalidInput(name, f"must be a size such as 8GB, got {text[:20]!r}")
    return size


ROUTES = [
    RouteSpec(
        method="GET",
        path="/api/v1/gallery-models",
        handler=search,
        access=Permission.MODELS_READ,
        summary="Search the galleries of models: a page of entries, and how each gallery is known.",
        gives=GalleryModelList,
        query={
            "term": "words that name, tags or description mention, all of them",
            "gallery": "only entries of this gallery",
            "tag": "only entries with this tag",
            "use": "only models for this use, in LocalAI's words: `chat`, `embeddings`, `vision`",
            "backend": "only models of this backend",
            "license": "only models whose licence mentions this",
            "max_bytes": "only models up to this size, such as `8GB`; without those of unknown size",
            "page": number("which page, from 1", least=1),
            "per_page": number(f"how many on a page; {_PER_PAGE} by default", least=1),
            "refresh": one_of("1 asks every gallery for something new first", ("0", "1")),
        },
        codes={200: "a page; a gallery that cannot be read is named with its problem", 400: "a number or size is none"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/gallery-models/{name:path}",
        handler=show,
        access=Permission.MODELS_READ,
        summary="One entry, by name or `GALLERY@NAME`: its builds and which suits the fleet, configuration and files.",
        gives=GalleryModelDetail,
        query={
            "build": "the name of a build to show instead of the one that suits best",
            "estimate": one_of("0 asks no hub what the model needs", ("0", "1")),
        },
        codes={
            200: "the entry",
            400: "it has no such build",
            404: "no gallery that could be read has it",
            409: "its base definition cannot be used",
            503: "its base definition is away; try again",
        },
    ),
]
