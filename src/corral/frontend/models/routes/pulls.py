"""Pulling models, and what stores hold: Corral's own routes."""

from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.frontend.access.decide import Permission
from corral.frontend.api.plans import STALE
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_body
from corral.frontend.models.decide.pull_words import pull_plan_text
from corral.frontend.models.decide.pulling import PullAsk
from corral.frontend.models.decide.storage import FileVerdict
from corral.frontend.models.decide.stored import KnownStore
from corral.frontend.models.routes.changes import may_trust
from corral.frontend.operations.routes.native import idempotency_key
from corral.frontend.operations.routes.starting import accepted
from corral.hubs.plans import PullPlan
from corral.oci.limits import names_loopback
from corral.wire.go_json import decode, format_time
from corral.wire.model_files import (
    BuildChoiceView,
    PruneAsk,
    PruneView,
    PullFileView,
    PullPlanView,
    PullStart,
    StalePullPlan,
    StorageView,
    StoreView,
    UnneededFileView,
)
from corral.wire.operation_views import OperationView
from corral.wire.plans import PlanError, plan_hash

_LOCAL: Final = ("file:", "/", "./", "../", "~")
"""How references begin that name files of the frontend's machine."""


def checked_sources(ask: PullAsk, caller: Caller) -> PullAsk:
    """AccessDenied for what only the frontend's machine has, unless the caller may read it: its files, and the answers
    of programs that listen on its loopback. Files of models go to nodes, so a caller that may name any of them and owns
    a node could read them all."""
    sources = (ask.definition or ask.reference, *(file.uri for file in ask.files))
    is_file = any(source.strip().lower().startswith(_LOCAL) for source in sources)
    downloads = sources[1:] if ask.definition else sources  # a definition is read as one, and goes to no node
    if is_file or any(map(names_loopback, downloads)):
        caller.demand(Permission.MACHINE_READ)
    return ask


async def start(context: AdminContext, request: Request, caller: Caller) -> Response:
    body, ask = await _read(context, request, caller)
    pulls = context.pulls.service
    if body.dry_run:
        return answer(await _plan_view(context, await pulls.plan(ask)))
    if not body.plan_hash:
        return accepted(context, await pulls.start(ask))
    if (earlier := await context.operations.service.with_key(ask.idempotency_key)) is not None:
        return accepted(context, earlier)
    plan = await pulls.plan(ask)
    view = await _plan_view(context, plan)
    if view.hash != body.plan_hash:
        return answer(StalePullPlan(error=PlanError(), plan=view), 409)
    return accepted(context, await pulls.start_planned(plan, ask))


async def plan(context: AdminContext, request: Request, caller: Caller) -> Response:
    _, ask = await _read(context, request, caller)
    return answer(await _plan_view(context, await context.pulls.service.plan(ask)))


async def _read(context: AdminContext, request: Request, caller: Caller) -> tuple[PullStart, PullAsk]:
    body = decode(await read_body(request, context.config.max_body), PullStart)
    if not body.reference.strip():
        raise InvalidInput("reference", "is missing: the name of a model in a gallery, hf://…, a URL or a path")
    ask = PullAsk(
        reference=body.reference,
        name=body.name.strip(),
        build=body.build.strip(),
        by=caller.name,
        may_trust=may_trust(caller),
        idempotency_key=idempotency_key(request),
    )
    return body, checked_sources(ask, caller)


async def _plan_view(context: AdminContext, plan: PullPlan) -> PullPlanView:
    pulls = context.pulls.service
    refusal = await pulls.refusal(plan)
    store, needed = context.pulls.stores.own, await pulls.needed_bytes(plan)
    view = PullPlanView(
        name=plan.name,
        config=plan.config,
        files=_files(plan),
        bytes=plan.bytes,
        needed_bytes=needed,
        free_bytes=0 if store is None else store.free_bytes,
        store="" if store is None else store.name,
        memory_bytes=plan.memory_bytes,
        choices=[msgspec.convert(choice, BuildChoiceView, from_attributes=True) for choice in plan.choices],
        notes=list(plan.notes),
        licence=plan.origin.licence,
        reference=plan.origin.reference,
        resolved=plan.origin.resolved,
        refusal=refusal,
        hash=_hash(plan, store="" if store is None else store.name, is_refused=bool(refusal)),
    )
    view.text = pull_plan_text(view)
    return view


def _hash(plan: PullPlan, *, store: str, is_refused: bool) -> str:
    """The hash of what would come from where, and as what; free space and files that are there are left out."""
    files = [[file.path, file.digest or file.url, file.size] for file in plan.files]
    return plan_hash([plan.name, plan.config, plan.origin.resolved, files, store, is_refused])


def _files(plan: PullPlan) -> list[PullFileView]:
    return [PullFileView(path=file.path, url=file.url, size=file.size, digest=file.digest) for file in plan.files]


async def storage(context: AdminContext, request: Request, caller: Caller) -> Response:
    keeper = context.pulls.stores
    await keeper.measure(make=True)
    await keeper.look()
    stores = [_store_view(context, store) for store in await keeper.all()]
    if keeper.own is None:
        return answer(StorageView(stores=stores, problem=keeper.problem))
    report = await context.pulls.storage.report()
    return answer(
        StorageView(
            stores=stores,
            used_bytes=report.used_bytes,
            quota_bytes=context.config.pulls.quota_bytes,
            models=report.by_model,
            unneeded=[_file_view(verdict) for verdict in report.unneeded],
            partial_bytes=report.partial_bytes,
        )
    )


def _store_view(context: AdminContext, store: KnownStore) -> StoreView:
    keeper = context.pulls.stores
    return StoreView(
        id=store.id,
        name=store.name,
        is_own=keeper.own is not None and keeper.own.id == store.id,
        is_away=keeper.is_away(store),
        total_bytes=store.total_bytes,
        free_bytes=store.free_bytes,
        seen_at=format_time(store.seen_at),
    )


def _file_view(verdict: FileVerdict) -> UnneededFileView:
    return UnneededFileView(path=verdict.path, bytes=verdict.bytes, kept=verdict.kept)


async def prune(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_body(request, context.config.max_body)
    ask = decode(body, PruneAsk) if body else PruneAsk()
    report = await context.pulls.storage.prune(dry_run=ask.dry_run)
    deleted = [_file_view(verdict) for verdict in report.unneeded if not verdict.kept]
    return answer(
        PruneView(
            dry_run=ask.dry_run,
            freed_bytes=sum(file.bytes for file in deleted) + report.partial_bytes,
            deleted=deleted,
            kept=[_file_view(verdict) for verdict in report.unneeded if verdict.kept],
            partial_bytes=report.partial_bytes,
        )
    )


_REFUSED: Final = {
    400: "the reference cannot be understood; `field` names what is wrong",
    404: "no gallery or hub has such a model; near names are suggested",
    422: "the file is no GGUF that can be used",
    502: "the hub refuses: the sentence says what to do",
    503: "the hub or the gallery does not answer",
}
_START = RouteSpec(
    method="POST",
    path="/api/v1/pulls",
    handler=start,
    access=Permission.MODELS_ACT,
    summary="Download the files of a model into the models directory of this frontend, and add the model. Who asks for "
    "what is being pulled gets that operation. With `dry_run`, the answer tells what would be done (`PullPlanView`). A "
    "repeated call with the same header `Idempotency-Key` starts nothing.",
    takes=PullStart,
    gives=OperationView,
    codes={
        200: "the plan, for `dry_run`",
        202: "accepted",
        **_REFUSED,
        409: "another model has the name, something else is being pulled by it, it is being removed, or there is too "
        f"little room; or {STALE}",
    },
    refusals={409: StalePullPlan},
)

ROUTES = [
    _START,
    replace(
        _START,
        path="/api/v1/pulls/plan",
        handler=plan,
        access=Permission.MODELS_ACT,
        summary="What a pull would do: files, bytes, builds and which of them fits; nothing is stored or downloaded.",
        gives=PullPlanView,
        refusals={},
        codes={200: "the plan; `refusal` says why a pull would be refused now", **_REFUSED},
    ),
    replace(
        _START,
        method="GET",
        path="/api/v1/model-storage",
        handler=storage,
        access=Permission.MODELS_READ,
        summary="The directories with files of models; what is in that of this frontend, for which models, and which "
        "files nobody needs.",
        takes=None,
        gives=StorageView,
        refusals={},
        codes={200: "all of it"},
    ),
    replace(
        _START,
        path="/api/v1/model-storage/prune",
        handler=prune,
        access=Permission.MODELS_ACT,
        summary="Delete files that came by a pull and that no model needs, and downloads that no pull will go on with. "
        "With `dry_run`, nothing is deleted.",
        takes=PruneAsk,
        gives=PruneView,
        refusals={},
        codes={200: "what was deleted, and what was kept and why", 409: "this frontend has no models directory"},
    ),
]
