"""Engines that somebody else runs, for administrators: `/api/v1/external-engines`."""

from starlette.requests import Request
from starlette.responses import Response

from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, no_content, read_body
from corral.frontend.engines.decide import EngineLook, EngineObservation, ExternalEngine
from corral.frontend.engines.service import ANY_REVISION
from corral.wire.engines import EngineAsk, EngineTrial, ExternalEngineView
from corral.wire.go_json import decode, format_time

DISABLED = "disabled"


def engine_view(
    engine: ExternalEngine, observed: EngineObservation, *, in_flight: int | None, last_used_at: str | None
) -> ExternalEngineView:
    return ExternalEngineView(
        id=engine.id,
        model=engine.model,
        name=engine.name,
        url=engine.url,
        remote_model=engine.remote_model,
        uses=list(engine.uses),
        has_key=bool(engine.key),
        ca=engine.ca,
        health_path=engine.health_path,
        max_concurrent=engine.max_concurrent,
        weight=engine.weight,
        fallback_order=engine.fallback_order,
        is_enabled=engine.is_enabled,
        state=observed.state.value if engine.is_enabled else DISABLED,
        reason=observed.reason if engine.is_enabled else "",
        since=None if observed.since is None or not engine.is_enabled else format_time(observed.since),
        checked_at=None if observed.checked_at is None else format_time(observed.checked_at),
        in_flight=in_flight,
        last_used_at=last_used_at,
        created_at=format_time(engine.created_at),
        created_by=engine.created_by,
        changed_at=format_time(engine.changed_at),
        changed_by=engine.changed_by,
        revision=engine.revision,
    )


def trial_view(engine: ExternalEngine, look: EngineLook) -> EngineTrial:
    return EngineTrial(
        state=look.state.value,
        reason=look.reason,
        seconds=round(look.seconds, 3),
        models=list(look.models or ()),
        has_model=None if look.models is None else engine.remote_model in look.models,
    )


_LARGEST = 512 * 1024
"""Bytes of a body: certificates of authorities may be long."""


async def list_engines(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer([_view(context, engine) for engine in await context.engines.service.load()])


async def add_engine(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, max(context.config.max_body, _LARGEST)), EngineAsk)
    engine = await context.engines.service.add(ask, by=caller.name)
    return answer(_view(context, engine), 201, {"Location": f"/api/v1/external-engines/{engine.id}"})


async def show_engine(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(_view(context, await context.engines.service.get(request.path_params["id"])))


async def change_engine(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, max(context.config.max_body, _LARGEST)), EngineAsk)
    revision = request.headers.get("If-Match", ANY_REVISION).strip('"')
    engine = await context.engines.service.change(request.path_params["id"], ask, revision=revision, by=caller.name)
    return answer(_view(context, engine))


async def remove_engine(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.engines.service.remove(request.path_params["id"], by=caller.name)
    return no_content()


async def test_engine(context: AdminContext, request: Request, caller: Caller) -> Response:
    engine = await context.engines.service.get(request.path_params["id"])
    return answer(trial_view(engine, await context.engines.watch.try_out(engine)))


def _view(context: AdminContext, engine: ExternalEngine) -> ExternalEngineView:
    gateways = context.serving.gateways
    used = gateways.last_used(engine.id)
    return engine_view(
        engine,
        context.engines.watch.of(engine.id),
        in_flight=None if gateways.silent() else gateways.in_flight()[engine.id],
        last_used_at=None if used is None else format_time(used),
    )


_BAD = {400: "a field makes no sense, or leads where nobody is sent; the answer names it"}
_TAKEN = {409: "the model has an engine of this name"}
_UNKNOWN = {404: "no engine has this id"}

ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/external-engines",
        list_engines,
        "All engines that somebody else runs, and whether they answer. Keys are never shown.",
        access=Permission.ENGINES_READ,
        gives=list[ExternalEngineView],
        codes={200: "a list"},
    ),
    RouteSpec(
        "POST",
        "/api/v1/external-engines",
        add_engine,
        "Add an engine that answers for a model, beside the fleet or instead of it.",
        access=Permission.ENGINES_MANAGE,
        takes=EngineAsk,
        gives=ExternalEngineView,
        codes={201: "added", **_BAD, **_TAKEN},
    ),
    RouteSpec(
        "GET",
        "/api/v1/external-engines/{id}",
        show_engine,
        "One engine that somebody else runs.",
        access=Permission.ENGINES_READ,
        gives=ExternalEngineView,
        codes={200: "the engine", **_UNKNOWN},
    ),
    RouteSpec(
        "PUT",
        "/api/v1/external-engines/{id}",
        change_engine,
        "Make an engine what the body says. A key that it does not mention stays, unless the host is another one.",
        access=Permission.ENGINES_MANAGE,
        takes=EngineAsk,
        gives=ExternalEngineView,
        codes={200: "changed", **_BAD, **_UNKNOWN, **_TAKEN, 412: "it is not of the revision in If-Match any more"},
    ),
    RouteSpec(
        "DELETE",
        "/api/v1/external-engines/{id}",
        remove_engine,
        "Ask an engine no longer. The engine itself is left alone.",
        access=Permission.ENGINES_MANAGE,
        codes={204: "removed", **_UNKNOWN},
    ),
    RouteSpec(
        "POST",
        "/api/v1/external-engines/{id}/test",
        test_engine,
        "Look at an engine now, from this frontend.",
        access=Permission.ENGINES_MANAGE,
        gives=EngineTrial,
        codes={200: "what was found, good or bad", **_UNKNOWN},
    ),
]
