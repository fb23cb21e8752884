"""The part of the gateways' view about external engines, and about the models that they answer for."""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from corral.frontend.engines.decide import ASKED, EngineObservation, ExternalEngine, rank_of, share_of
from corral.frontend.engines.service import ExternalEngines
from corral.frontend.engines.watch import EngineWatch
from corral.wire.engines import model_uses
from corral.wire.models import LoadReason
from corral.wire.view import EngineEntry, Loading, ModelEntry, ReplicaEntry

OWNER = "external"
ELSEWHERE = "elsewhere"


class EngineEntries(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a view that engines make."""

    replicas: tuple[ReplicaEntry, ...]
    models: Mapping[str, ModelEntry]
    """By name: all models, those of the fleet too."""


def entries_of(
    engines: Iterable[ExternalEngine],
    observed: Callable[[str], EngineObservation],
    models: Mapping[str, ModelEntry],
    *,
    hidden: Collection[str],
    gateways: int,
) -> EngineEntries:
    """Add engines to the fleet's own models. Nobody answers for names that are aliases, or `hidden`."""
    entries: list[ReplicaEntry] = []
    named = dict(models)
    for engine in engines:
        fleet_model = models.get(engine.model)
        if not engine.is_enabled or engine.model in hidden or (fleet_model is not None and fleet_model.alias_of):
            continue
        named[engine.model] = _with_uses(named.get(engine.model), engine)
        state = observed(engine.id).state
        if state in ASKED:
            rank, limit = rank_of(engine, state), share_of(engine.max_concurrent, gateways)
            entries.append(_replica_entry(engine, rank=rank, limit=limit, has_fleet=fleet_model is not None))
    return EngineEntries(replicas=tuple(entries), models=named)


def _with_uses(entry: ModelEntry | None, engine: ExternalEngine) -> ModelEntry:
    uses = {use.value for use in model_uses(engine.uses)}
    if entry is None:
        created = int(engine.created_at.timestamp())
        return ModelEntry(name=engine.model, owned_by=OWNER, created=created, uses=tuple(sorted(uses)))
    return replace(entry, uses=tuple(sorted({*entry.uses, *uses}))) if entry.uses else entry


def _replica_entry(engine: ExternalEngine, *, rank: int, limit: int, has_fleet: bool) -> ReplicaEntry:
    return ReplicaEntry(
        id=engine.id,
        model=engine.model,
        node_id=f"engine:{engine.name}",
        node_name=f"engine {engine.name}",
        url=engine.origin,
        key=engine.key,
        limit=limit,
        state=ELSEWHERE,
        rank=rank,
        routes=engine.routes,
        engine=EngineEntry(
            base=engine.base,
            model=engine.remote_model,
            ca=engine.ca,
            weight=engine.weight,
            is_fallback=engine.fallback_order > 0,
            has_fleet=has_fleet,
        ),
    )


def engines_status(engines: ExternalEngines, watch: EngineWatch, model: str) -> Loading | None:
    """What to tell requests that wait for a model which the fleet itself does not have; None without any engine."""
    model_engines = [engine for engine in engines.current if engine.model == model and engine.is_enabled]
    if not model_engines:
        return None
    looks = [(engine, watch.of(engine.id)) for engine in model_engines]
    if any(observed.state in ASKED for _, observed in looks):
        return Loading(model=model, state="loaded")
    reasons = "; ".join(f"{engine.name} is {seen.state.value}: {seen.reason}" for engine, seen in looks)
    return Loading(model=model, state="failed", reason=LoadReason.ENGINES_AWAY.value, message=reasons)
