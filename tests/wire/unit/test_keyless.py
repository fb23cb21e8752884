"""Which routes may be called without a key: control and the gateways go by one list."""

import pytest

from corral.frontend.api.route import Access
from corral.frontend.routes import ROUTES
from corral.wire.keys import KEYLESS, REGISTER, RequiredProof, find_keyless

ACCESS = {
    Access.PUBLIC: RequiredProof.NOTHING,
    Access.METRICS: RequiredProof.NOTHING_BY_SETTING,
    Access.WORKER: RequiredProof.NODE,
}


OWN_OF_GATEWAYS = {("GET", "/health"): RequiredProof.NOTHING}


def test_every_route_of_control_that_needs_no_key_is_on_the_list_and_no_other() -> None:
    by_control = {(route.method, route.path): ACCESS[route.access] for route in ROUTES if route.access in ACCESS}
    assert {(route.method, route.path): route.proof for route in KEYLESS} == by_control | OWN_OF_GATEWAYS


def test_routes_that_take_no_body_have_no_room_for_one() -> None:
    assert {route.max_body for route in KEYLESS if route.method == "GET"} == {0}
    assert REGISTER.max_body == 1024 * 1024
    assert all(route.max_body <= 64 * 1024 for route in KEYLESS if route is not REGISTER)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        (b"GET", b"/", "/"),
        (b"HEAD", b"/docs", "/docs"),
        (b"POST", b"/api/node/register", "/api/node/register"),
        (b"POST", b"/api/node/n1/heartbeat", "/api/node/{id}/heartbeat"),
        (b"DELETE", b"/api/node/n1", "/api/node/{id}"),
        (b"GET", b"/ui", "/ui"),
        (b"GET", b"/ui/", "/ui/{path:path}"),
        (b"HEAD", b"/ui/assets/index-1.js", "/ui/{path:path}"),
        (b"GET", b"/ui/models/org%2Fname", "/ui/{path:path}"),
        (b"POST", b"/ui/", None),
        (b"GET", b"/uix", None),
        (b"POST", b"/", None),
        (b"GET", b"/api/node/register", None),
        (b"POST", b"/api/node/%72egister", None),
        (b"POST", b"/api/node//heartbeat", None),
        (b"POST", b"/api/node/n1/x/heartbeat", None),
        (b"POST", b"/api/node/n1%2Fx/heartbeat", None),
        (b"DELETE", b"/api/node/n1%2fmodels", None),
        (b"GET", b"/api/nodes", None),
        (b"GET", b"/docs/", None),
    ],
)
def test_only_what_is_written_as_on_the_list_is_found(method: bytes, path: bytes, found: str | None) -> None:
    route = find_keyless(method, path)
    assert (None if route is None else route.path) == found
