"""Is control alive, is it ready, and what is it: `/healthz`, `/readyz`, `/api/v1/ready`, `/api/v1/version`, and
LocalAI's `/api/features`.

The first two are the gateway's on the public port, which answers for itself there and tells how control is. Control's
own word reaches everybody as `/api/v1/ready`.
"""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from corral import __version__
from corral.frontend.api.answers import answer
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, RouteSpec
from corral.wire.nodes import LocalAIFeatures, VersionView
from corral.wire.registration import FEATURES


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
    return answer(VersionView(version=__version__, frontend_id=context.foundation.frontend_id, features=list(FEATURES)))


async def features(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(LocalAIFeatures())


_VITAL = RouteSpec(
    method="GET",
    path="",
    handler=healthz,
    access=Access.PUBLIC,
    summary="",
    codes={},
)

ROUTES = [
    replace(_VITAL, path="/healthz", summary="The process is alive.", codes={200: "always"}),
    replace(
        _VITAL,
        path="/readyz",
        handler=readyz,
        summary="Models can be served. The body tells how control is: `up`, `impaired` or `away`.",
        codes={200: "ready", 503: "no view of the fleet yet, or one that is too old"},
    ),
    replace(
        _VITAL,
        path="/api/v1/ready",
        handler=readyz,
        summary="Control can do its work: the database answers and NATS is connected.",
        codes={200: "ready", 503: "not ready, or not there; the text says why"},
    ),
    replace(
        _VITAL,
        path="/api/v1/version",
        handler=version,
        access=Access.ADMIN,
        summary="Version and features of this frontend.",
        gives=VersionView,
        codes={200: "the version"},
    ),
    replace(
        _VITAL,
        path="/api/features",
        handler=features,
        access=Access.ADMIN,
        summary="Which of LocalAI's features there are: nodes, and none of the others.",
        gives=LocalAIFeatures,
        codes={200: "always the same"},
    ),
]
