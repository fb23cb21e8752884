"""Is control alive, is it ready, what is wrong with it, and what is it: `/healthz`, `/readyz`, `/api/v1/ready`,
`/api/v1/doctor`, `/api/v1/version`, and LocalAI's `/api/features`.

The first two are the gateway's on the public port, which answers for itself there and tells how control is. Control's
own word reaches everybody as `/api/v1/ready`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from corral import __version__
from corral.base.errors import CorralError
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer
from corral.frontend.diagnosis.doctor import PROBLEM
from corral.frontend.diagnosis.doctor.control import check_bus, check_clock, check_database, check_disk, check_keys
from corral.frontend.diagnosis.doctor.models import check_model_galleries, check_models
from corral.frontend.diagnosis.doctor.nodes import check_nodes, check_strangers
from corral.frontend.diagnosis.doctor.operations import check_fleet_rules, check_operations
from corral.wire.nodes import DoctorReport, Finding, LocalAIFeatures, VersionView
from corral.wire.registration import FEATURES

Diagnostic = Callable[[AdminContext], Awaitable[Finding]]
DIAGNOSTICS: Final[tuple[tuple[str, Diagnostic], ...]] = (
    ("database", check_database),
    ("nats", check_bus),
    ("disk", check_disk),
    ("clock", check_clock),
    ("keys", check_keys),
    ("nodes", check_nodes),
    ("strangers", check_strangers),
    ("models", check_models),
    ("model galleries", check_model_galleries),
    ("operations", check_operations),
    ("fleet rules", check_fleet_rules),
)
_PATIENCE_SECONDS = 5


async def healthz(context: AdminContext, request: Request, caller: Caller) -> Response:
    return PlainTextResponse("ok")


async def readyz(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Ready when the database answers and NATS is connected."""
    reasons = await context.readiness.problems()
    if context.stopping.is_set():
        reasons.append("shutting down")
    if reasons:
        return PlainTextResponse(f"not ready: {'; '.join(reasons)}", 503)
    return PlainTextResponse("ok")


async def version(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(VersionView(version=__version__, frontend_id=context.frontend_id, features=list(FEATURES)))


async def features(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(LocalAIFeatures())


async def examine(context: AdminContext, request: Request, caller: Caller) -> Response:
    async def ask(name: str, diagnostic: Diagnostic) -> Finding:
        """A diagnostic that fails or hangs is a finding, not the end of the examination."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await diagnostic(context)
        except TimeoutError:
            return Finding(check=name, level=PROBLEM, summary=f"no answer within {_PATIENCE_SECONDS} s")
        except CorralError as error:
            return Finding(check=name, level=PROBLEM, summary=error.message)

    findings = await asyncio.gather(*(ask(name, diagnostic) for name, diagnostic in DIAGNOSTICS))
    return answer(DoctorReport(findings=list(findings)))


ROUTES = [
    RouteSpec(
        method="GET",
        path="/healthz",
        handler=healthz,
        access=Access.PUBLIC,
        summary="The process is alive.",
        codes={200: "always"},
    ),
    RouteSpec(
        method="GET",
        path="/readyz",
        handler=readyz,
        access=Access.PUBLIC,
        summary="Models can be served. The body tells how control is: `up`, `impaired` or `away`.",
        codes={200: "ready", 503: "no view of the fleet yet, or one that is too old"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/ready",
        handler=readyz,
        access=Access.PUBLIC,
        summary="Control can do its work: the database answers and NATS is connected.",
        codes={200: "ready", 503: "not ready, or not there; the text says why"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/version",
        handler=version,
        access=Access.ADMIN,
        summary="Version and features of this frontend.",
        gives=VersionView,
        codes={200: "the version"},
    ),
    RouteSpec(
        method="GET",
        path="/api/features",
        handler=features,
        access=Access.ADMIN,
        summary="Which of LocalAI's features there are: nodes, and none of the others.",
        gives=LocalAIFeatures,
        codes={200: "always the same"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/doctor",
        handler=examine,
        access=Access.ADMIN,
        summary="What is wrong with this frontend, and what to do.",
        gives=DoctorReport,
        codes={200: "the findings"},
    ),
]
