"""Do the engines answer that somebody else runs?"""

from corral.base.words import listed
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.frontend.engines.decide import ASKED, EngineState
from corral.wire.nodes import Finding


async def check_engines(context: AdminContext) -> Finding:
    """What the last looks from this frontend found: nobody is asked for this."""
    seen = [
        (engine, context.engines.watch.of(engine.id))
        for engine in await context.engines.service.load()
        if engine.is_enabled
    ]
    away = [(engine, observed) for engine, observed in seen if observed.state not in ASKED]
    if away:
        engine, observed = away[0]
        names = listed([f"{each.model}/{each.name}" for each, _ in away])
        return Finding(
            check="engines",
            level=PROBLEM,
            summary=f"{len(away)} of {len(seen)} elsewhere are not asked: {names}: {observed.reason}",
            remedy=f"`corral engines test {engine.model}/{engine.name}` looks again, `corral engines set` mends it.",
        )
    failing = [engine for engine, observed in seen if observed.state is EngineState.FAILING]
    if failing:
        return Finding(
            check="engines",
            level=WARNING,
            summary=f"{listed([f'{each.model}/{each.name}' for each in failing])} fail, and are asked last",
            remedy="`corral engines list` tells why.",
        )
    return Finding(
        check="engines", level=OK, summary=f"{len(seen)} elsewhere, none fails" if seen else "none elsewhere"
    )
