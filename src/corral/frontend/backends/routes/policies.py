"""How backends are confined, for administrators: `/api/v1/backend-policies`."""

from starlette.requests import Request
from starlette.responses import Response

from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, no_content, read_body
from corral.frontend.backends.decide.policy import BackendPolicy
from corral.wire.confinement import PolicyAsk, PolicyView
from corral.wire.go_json import decode, format_time


async def list_policies(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer([_view(policy) for policy in await context.backends.policies.all()])


async def put_policy(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), PolicyAsk)
    policy = await context.backends.policies.put(request.path_params["backend"], ask, by=caller.name)
    return answer(_view(policy))


async def remove_policy(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.backends.policies.remove(request.path_params["backend"], by=caller.name)
    return no_content()


def _view(policy: BackendPolicy) -> PolicyView:
    return PolicyView(
        backend=policy.backend,
        network=policy.network or "",
        is_confined=policy.is_confined,
        reason=policy.reason,
        changed_at=format_time(policy.changed_at),
        changed_by=policy.changed_by,
    )


ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/backend-policies",
        list_policies,
        "What people decided about the confinement of backends. All others are confined as their manifests and the "
        "settings of workers say.",
        access=Permission.BACKENDS_READ,
        gives=list[PolicyView],
        codes={200: "a list, by name"},
    ),
    RouteSpec(
        "PUT",
        "/api/v1/backend-policies/{backend}",
        put_policy,
        "Decide how a backend is confined, by the name that models use. It holds for processes that start afterwards.",
        access=Permission.BACKENDS_TRUST,
        takes=PolicyAsk,
        gives=PolicyView,
        codes={200: "decided", 400: "a field makes no sense; the answer names it"},
    ),
    RouteSpec(
        "DELETE",
        "/api/v1/backend-policies/{backend}",
        remove_policy,
        "Have a backend confined again as its manifest and the settings of workers say.",
        access=Permission.BACKENDS_TRUST,
        codes={204: "removed", 404: "nobody decided anything about it"},
    ),
]
