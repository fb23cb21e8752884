"""Can somebody still administer this fleet?"""

from datetime import timedelta

from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.wire.keys import Scope
from corral.wire.nodes import Finding

_SOON = timedelta(days=7)


async def check_keys(context: AdminContext) -> Finding:
    now = context.clock.now()
    admins = [key for key in await context.access.key_ring.list() if key.allows(Scope.ADMIN) and key.is_valid(now)]
    if not admins:
        return Finding(
            check="keys",
            level=PROBLEM,
            summary="no administrator key is valid",
            remedy="Run `corral keys reset-admin` on the frontend's machine.",
        )
    if all(key.expires_at is not None and key.expires_at - now < _SOON for key in admins):
        return Finding(
            check="keys",
            level=WARNING,
            summary="every administrator key expires within a week",
            remedy="Make a new one with `corral keys create NAME --scope admin`.",
        )
    valid = "1 administrator key is" if len(admins) == 1 else f"{len(admins)} administrator keys are"
    return Finding(check="keys", level=OK, summary=f"{valid} valid")
