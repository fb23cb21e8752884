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
from corral.base.errors import CorralError, InvalidInput
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import switch
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer
from corral.frontend.diagnosis.doctor import PROBLEM
from corral.frontend.diagnosis.doctor.addresses import check_addresses
from corral.frontend.diagnosis.doctor.control import (
    check_bus,
    check_clock,
    check_database,
    check_disk,
    check_integrity,
    check_keys,
    check_secrets_key,
    check_web_page,
)
from corral.frontend.diagnosis.doctor.engines import check_engines
from corral.frontend.diagnosis.doctor.fleet_tls import check_fleet_tls
from corral.frontend.diagnosis.doctor.gateways import check_gateways
from corral.frontend.diagnosis.doctor.models import check_model_galleries, check_models, check_scaling
from corral.frontend.diagnosis.doctor.nats import check_nats_users
from corral.frontend.diagnosis.doctor.nodes import check_confinement, check_nodes, check_strangers
from corral.frontend.diagnosis.doctor.operations import check_fleet_rules, check_operations
from corral.frontend.nodes.routes.localai_self import offered_features
from corral.frontend.store.soundness import DEEP
from corral.wire.nodes import DoctorReport, Finding, LocalAIFeatures, VersionView

Diagnostic = Callable[[AdminContext], Awaitable[Finding]]
DIAGNOSTICS: Final[tuple[tuple[str, Diagnostic], ...]] = (
    ("database", check_database),
    ("nats", check_bus),
    ("nats users", check_nats_users),
    ("disk", check_disk),
    ("clock", check_clock),
    ("keys", check_keys),
    ("secrets key", check_secrets_key),
    ("nodes", check_nodes),
    ("strangers", check_strangers),
    ("confinement", check_confinement),
    ("addresses", check_addresses),
    ("fleet tls", check_fleet_tls),
    ("gateways", check_gateways),
    ("web page", check_web_page),
    ("models", check_models),
    ("scaling", check_scaling),
    ("model galleries", check_model_galleries),
    ("engines", check_engines),
    ("operations", check_operations),
    ("fleet rules", check_fleet_rules),
)
_PATIENCE_SECONDS = 5
_DEEP_SECONDS: Final = DEEP.total_seconds() + 30


class DeepCheckUnderWay(CorralError):
    """One reads the whole database already, and a second would only slow it down."""

    code = "too_many_calls"
    retryable = True


async def healthz(context: AdminContext, request: Request, caller: Caller) -> Response:
    return PlainTextResponse("ok")


async def readyz(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Ready when the database answers and has room, NATS is connected, and the disk is not full."""
    reasons = await context.readiness.problems()
    if context.stopping.is_set():
        reasons.append("shutting down")
    if reasons:
        return PlainTextResponse(f"not ready: {'; '.join(reasons)}", 503)
    return PlainTextResponse("; ".join(["ok", *context.readiness.warnings()]))


async def version(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(VersionView(version=__version__, frontend_id=context.frontend_id, features=offered_features(context)))


async def features(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(LocalAIFeatures())


async def examine(context: AdminContext, request: Request, caller: Caller) -> Response:
    async def ask(name: str, diagnostic: Diagnostic, patience: float = _PATIENCE_SECONDS) -> Finding:
        """A diagnostic that fails or hangs is a finding, not the end of the examination."""
        try:
            async with asyncio.timeout(patience):
                return await diagnostic(context)
        except TimeoutError:
            return Finding(check=name, level=PROBLEM, summary=f"no answer within {patience:g} s")
        except CorralError as error:
            return Finding(check=name, level=PROBLEM, summary=error.message)

    deep = request.query_params.get("deep", "false")
    if deep not in ("true", "false"):
        raise InvalidInput("deep", f"must be true or false, got {deep[:20]!r}")
    if deep == "false":
        checks = [ask(name, diagnostic) for name, diagnostic in DIAGNOSTICS]
        return answer(DoctorReport(findings=list(await asyncio.gather(*checks))))
    caller.demand(Permission.OPERATIONS_ACT)
    if context.readiness.deep_check.locked():
        raise DeepCheckUnderWay("somebody has the whole database checked just now; try again when that is over")
    async with context.readiness.deep_check:
        checks = [ask(name, diagnostic) for name, diagnostic in DIAGNOSTICS]
        checks.append(ask("integrity", check_integrity, _DEEP_SECONDS))
        return answer(DoctorReport(findings=list(await asyncio.gather(*checks))))


ROUTES = [
    RouteSpec(
        method="GET",
        path="/healthz",
        handler=healthz,
        access=Access.PUBLIC,
        summary="The process is alive.",
        codes={200: "always"},
        media="text/plain",
    ),
    RouteSpec(
        method="GET",
        path="/readyz",
        handler=readyz,
        access=Access.PUBLIC,
        summary="Models can be served. The body tells how control is: `up`, `impaired` or `away`.",
        codes={200: "ready", 503: "no view of the fleet yet, or one that is too old"},
        media="text/plain",
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/ready",
        handler=readyz,
        access=Access.PUBLIC,
        summary="Control can do its work: the database answers and has room, NATS is connected, the disk is not full.",
        codes={
            200: "ready; the text also says that the disk is nearly full",
            503: "not ready, or not there; the text says why",
        },
        media="text/plain",
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/version",
        handler=version,
        access=Permission.FLEET_READ,
        summary="Version and features of this frontend.",
        gives=VersionView,
        codes={200: "the version"},
    ),
    RouteSpec(
        method="GET",
        path="/api/features",
        handler=features,
        access=Permission.FLEET_READ,
        summary="Which of LocalAI's features there are: nodes, and none of the others.",
        gives=LocalAIFeatures,
        codes={200: "always the same"},
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/doctor",
        handler=examine,
        access=Permission.FLEET_READ,
        summary="What is wrong with this frontend, and what to do.",
        gives=DoctorReport,
        query={
            "deep": switch(
                "`true` also reads all of the database, which may take minutes; for operators and administrators "
                "(permission `operations.act`), one at a time"
            )
        },
        codes={
            200: "the findings",
            400: "`deep` is neither true nor false",
            403: "`deep` needs the permission `operations.act`",
            429: "a deep check is under way already",
        },
    ),
]
