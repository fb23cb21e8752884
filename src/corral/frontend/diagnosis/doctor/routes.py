"""All diagnostics in one answer: `/api/v1/doctor`."""

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import CorralError
from corral.frontend.api.answers import answer
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, RouteSpec
from corral.frontend.diagnosis.doctor.bus import check_bus
from corral.frontend.diagnosis.doctor.clock import check_clock
from corral.frontend.diagnosis.doctor.database import check_database
from corral.frontend.diagnosis.doctor.diagnostic import PROBLEM, Diagnostic
from corral.frontend.diagnosis.doctor.disk import check_disk
from corral.frontend.diagnosis.doctor.fleet_rules import check_fleet_rules
from corral.frontend.diagnosis.doctor.keys import check_keys
from corral.frontend.diagnosis.doctor.models import check_models
from corral.frontend.diagnosis.doctor.nodes import check_nodes
from corral.frontend.diagnosis.doctor.operations import check_operations
from corral.frontend.diagnosis.doctor.strangers import check_strangers
from corral.wire.nodes import DoctorReport, Finding

DIAGNOSTICS: Final[tuple[tuple[str, Diagnostic], ...]] = (
    ("database", check_database),
    ("nats", check_bus),
    ("disk", check_disk),
    ("clock", check_clock),
    ("keys", check_keys),
    ("nodes", check_nodes),
    ("strangers", check_strangers),
    ("models", check_models),
    ("operations", check_operations),
    ("fleet rules", check_fleet_rules),
)
_PATIENCE_SECONDS = 5


async def examine(context: AdminContext, request: Request, caller: Caller) -> Response:
    findings = await asyncio.gather(*(_ask(name, diagnostic, context) for name, diagnostic in DIAGNOSTICS))
    return answer(DoctorReport(findings=list(findings)))


async def _ask(name: str, diagnostic: Diagnostic, context: AdminContext) -> Finding:
    """One that fails or hangs is a finding, not the end of the examination."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await diagnostic(context)
    except TimeoutError:
        return Finding(check=name, level=PROBLEM, summary=f"no answer within {_PATIENCE_SECONDS} s")
    except CorralError as error:
        return Finding(check=name, level=PROBLEM, summary=error.message)


ROUTES = [
    RouteSpec(
        method="GET",
        path="/api/v1/doctor",
        handler=examine,
        access=Access.ADMIN,
        summary="What is wrong with this frontend, and what to do.",
        gives=DoctorReport,
        codes={200: "the findings"},
    )
]
