"""Checks of the users that nodes log in to NATS with: whether each has its own, and whether a removed node's ends."""

from corral.base.words import format_duration
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.frontend.nodes.decide.nats_users import LeftBehind, left_behind
from corral.wire.nodes import Finding

_CHECK = "nats users"
_SHOWN = 5


async def check_nats_users(context: AdminContext) -> Finding:
    lifetime, revocations = context.nodes.nats_users.lifetime, context.nodes.revocations
    if lifetime is None:
        return Finding(
            check=_CHECK,
            level=WARNING,
            summary="nodes share a login to NATS: who has one worker's login can read and answer the messages of all",
            remedy="Set the seed of a NATS account (CORRAL_NATS_ACCOUNT_SEED); see the guide to several frontends.",
        )
    if revocations.problem:
        return Finding(
            check=_CHECK,
            level=PROBLEM,
            summary=f"users of nodes that are gone still live on NATS: {revocations.problem}",
            remedy="Correct nats_operator_seed and nats_system_creds, or the resolver of the NATS server.",
        )
    reasons = [(seen.node.name, left_behind(seen.node)) for seen in await context.nodes.fleet.all()]
    remaining = [(name, why) for name, why in reasons if why is not None]
    if remaining:
        more = f" and {len(remaining) - _SHOWN} more" if len(remaining) > _SHOWN else ""
        names = ", ".join(name for name, _ in remaining[:_SHOWN])
        return Finding(
            check=_CHECK,
            level=WARNING,
            summary=f"these workers do not log in to NATS as users of their own: {names}{more}",
            remedy=_remedy(remaining),
        )
    ends = "at once" if revocations.is_possible else f"when it expires, within {format_duration(lifetime)}"
    return Finding(check=_CHECK, level=OK, summary=f"each node has its own; that of a removed node ends {ends}")


def _remedy(remaining: list[tuple[str, LeftBehind]]) -> str:
    named = {why: [name for name, its in remaining if its is why] for why in LeftBehind}
    return " ".join(
        f"For {', '.join(names[:_SHOWN])}{' and others' if len(names) > _SHOWN else ''}: {why}."
        for why, names in named.items()
        if names
    )
