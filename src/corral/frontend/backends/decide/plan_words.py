"""The plan of an operation in words: the same for the command line and for the API. Pure."""

from collections.abc import Sequence
from typing import Final

from corral.base.words import aligned, counted, format_size, printable
from corral.wire.operation_views import Plan, PlanCounts, PlannedView
from corral.wire.plans import EndingReplicaView
from corral.wire.state_words import Subject, state_word

_REACHED: Final = {"install": "it is there", "upgrade": "it has the newest", "delete": "it is not there"}
_AWAY: Final = ("offline", "unhealthy")
_TITLES: Final = ("NODE", "STATUS", "BACKEND", "BYTES", "WHAT WOULD HAPPEN")


def counts_of(items: Sequence[PlannedView]) -> PlanCounts:
    """How many nodes there are of each kind."""
    counts = PlanCounts()
    for item in items:
        kind = "blocked" if item.blocked else "already" if item.reached else "unknown" if item.unknown else "fits"
        setattr(counts, kind, getattr(counts, kind) + 1)
    return counts


def outcome(planned: PlannedView, verb: str) -> str:
    """What would happen on one node."""
    if planned.blocked:
        return f"blocked: {planned.blocked}"
    if planned.reached:
        return f"nothing: {_REACHED.get(verb, 'it is as it should be')}"
    deed = f"{verb} when it comes back" if planned.node_status in _AWAY else verb
    return f"{deed}; unknown: {planned.unknown}" if planned.unknown else deed


def fetched(planned: PlannedView) -> str:
    """What one node would download; a dash where nobody knows."""
    return "–" if planned.download_bytes is None else format_size(planned.download_bytes)


def cells(planned: PlannedView, verb: str) -> tuple[str, ...]:
    """One line of the plan, in the order of its titles."""
    status = state_word(Subject.NODE, planned.node_status).label
    words = (planned.node_name, status, planned.backend, fetched(planned), outcome(planned, verb))
    return tuple(map(printable, words))


def notes(plan: Plan, verb: str) -> list[str]:
    """What follows below the table: all of it in one sentence, replicas that end, and rules in the way."""
    lines = [_summary(plan, verb), *map(_ending, plan.replicas_end), *(f"In the way: {rule}." for rule in plan.rules)]
    return list(map(printable, lines))


def plan_text(plan: Plan, verb: str) -> str:
    """The whole plan, as the command line prints it where no terminal is."""
    rows = [_TITLES, *(cells(item, verb) for item in plan.items)]
    return "\n".join([*aligned(rows), *notes(plan, verb)])


def _summary(plan: Plan, verb: str) -> str:
    counts = plan.counts
    numbers = {
        f"would {verb}": counts.fits,
        "blocked": counts.blocked,
        "unknown": counts.unknown,
        "already as wanted": counts.already,
    }
    words = ", ".join(f"{number} {word}" for word, number in numbers.items() if number)
    fetched_bytes = sum(item.download_bytes or 0 for item in plan.items)
    fetch = f"; {format_size(fetched_bytes)} to fetch" if fetched_bytes else ""
    return f"{counted(len(plan.items), 'node')}: {words}{fetch}."


def _ending(replica: EndingReplicaView) -> str:
    requests = "an unknown number of requests" if replica.in_flight is None else counted(replica.in_flight, "request")
    return f"Ends: {replica.model} on {replica.node}, {requests} under way."
