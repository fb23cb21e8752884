"""Acting on a plan that somebody has seen: if it is another one by now, the new one is shown and nothing is done."""

from collections.abc import Awaitable, Callable

from msgspec import UnsetType
from starlette.datastructures import QueryParams
from starlette.responses import Response

from corral.base.errors import InvalidInput, Overtaken
from corral.frontend.api.route import answer
from corral.frontend.serving.decide.act_plan import ActPlan
from corral.frontend.serving.shapes import act_plan_view
from corral.wire.plans import PlanError, StaleActPlan

_LONGEST = 64
PLAN_HASH = "the hash of the plan that was seen; if the plan is another one by now, nothing is done"
STALE = "`plan_hash` is of another plan than that of now, which is in the answer (`stale_plan`)"


async def act_on_plan(
    plan_hash: str | UnsetType, plan: Callable[[], Awaitable[ActPlan]], act: Callable[[str | None], Awaitable[Response]]
) -> Response:
    """Act, if the plan of now has this hash; without a hash always.

    `act` gets the mark of the plan, and raises Overtaken when what the mark stands for has changed since: so of two
    people who act on one plan, one wins.
    """
    if not plan_hash:
        return await act(None)
    current = await plan()
    if current.hash == plan_hash:
        try:
            return await act(current.mark)
        except Overtaken:
            current = await plan()
    return answer(StaleActPlan(error=PlanError(), plan=act_plan_view(current)), 409)


def plan_hash_in(query: QueryParams) -> str:
    """The hash that a request without a body names; empty when it names none."""
    text = query.get("plan_hash", "")
    if len(text) > _LONGEST:
        raise InvalidInput("plan_hash", f"must be the hash of a plan, got {text[:20]!r}")
    return text
