"""Engines that somebody else runs, as answers of the API. Keys are in none of them."""

from corral.frontend.engines.decide import EngineLook, EngineObservation, ExternalEngine
from corral.wire.engines import EngineTrial, ExternalEngineView
from corral.wire.go_json import format_time

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
