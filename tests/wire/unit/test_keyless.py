"""Which routes may be called without a key: control and the gateways go by one list."""

from collections.abc import Sequence
from urllib.parse import unquote

import pytest
from starlette.routing import Match, Route

from corral.frontend.api.route import Access
from corral.frontend.routes import ROUTES
from corral.wire.keys import KEYLESS, REGISTER, KeylessRoute, RequiredProof, find_keyless, is_respelled_keyless

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


REACHED_BY_OTHER_SPELLINGS = [
    ("POST", "/api/node%2fregister"),
    ("POST", "/api%2Fnode%2Fregister"),
    ("POST", "/%61pi/node/register"),
    ("POST", "/api/node/%72egister"),
    ("POST", "/api/node/register%0a"),
    ("POST", "/api/node/n1%2fheartbeat"),
    ("POST", "/api/node/n%31/heartbeat"),
    ("POST", "/api/node/n1/heartbea%74"),
    ("POST", "/api/node/%252f/heartbeat"),
    ("POST", "/api/node/%00/heartbeat"),
    ("DELETE", "/api/node/n1%3f"),
    ("POST", "/api/v1/%73ession"),
    ("POST", "/api/v1/join-check%73"),
    ("GET", "/ui%2Fassets%2Fx.js"),
    ("HEAD", "/%64ocs"),
    ("GET", "/metric%73"),
]
REACHING_NONE = [
    ("POST", "/api/node/%2572egister"),
    ("POST", "/api//node/register"),
    ("POST", "/api/./node/register"),
    ("POST", "/api/x/../node/register"),
    ("POST", "/api/x/%2e%2e/node/register"),
    ("POST", "/api/node/register;x"),
    ("POST", "/api/node/register%3bx"),
    ("POST", "/api/node/register%00"),
    ("POST", "/api/node/register%20"),
    ("POST", "/api/node/register%0d"),
    ("POST", "/API/node/register"),
    ("POST", "/api/node/regi%53ter"),
    ("POST", "/api/node/n1%2fx/heartbeat"),
    ("POST", "/api/v1/models/org%2Fname/pin"),
    ("GET", "/api/v1/models/org%2Fname"),
]


def routes_of_control() -> Sequence[Route]:
    """Every route of control, as its router has them; each answers with its own specification."""
    return [Route(spec.path, lambda _: None, methods=[spec.method], name=str(spec.access)) for spec in ROUTES]  # type: ignore[arg-type,return-value]


def access_at_control(method: str, path: str) -> str | None:
    """The access of the route that control's router takes for what its HTTP server makes of a path."""
    scope = {"type": "http", "method": method, "path": unquote(path), "root_path": "", "headers": []}
    matching = (route for route in routes_of_control() if route.matches(scope)[0] is Match.FULL)
    return next((route.name for route in matching), None)


@pytest.mark.parametrize(("method", "path"), REACHED_BY_OTHER_SPELLINGS)
def test_a_spelling_that_control_takes_for_a_keyless_route_is_recognised(method: str, path: str) -> None:
    assert access_at_control(method, path) in {str(access) for access in ACCESS}, "else it is in the wrong table"
    assert is_respelled_keyless(method.encode(), path.encode())


@pytest.mark.parametrize(("method", "path"), REACHING_NONE)
def test_a_spelling_that_reaches_no_keyless_route_is_left_to_control(method: str, path: str) -> None:
    assert access_at_control(method, path) not in {str(access) for access in ACCESS}, "else it is in the wrong table"
    assert not is_respelled_keyless(method.encode(), path.encode())


@pytest.mark.parametrize("route", KEYLESS, ids=lambda route: f"{route.method} {route.path}")
def test_no_keyless_route_is_respelled_where_it_is_written_as_on_the_list(route: KeylessRoute) -> None:
    path = route.path.replace("{id}", "n1").replace("{path:path}", "models/org%2Fname")
    assert not is_respelled_keyless(route.method.encode(), path.encode())
