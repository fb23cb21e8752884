"""Which permission each role has: one table, in which every role has all that a lesser one has."""

import pytest

from corral.frontend.access.decide import PERMISSIONS, Permission, permits, scopes_with
from corral.frontend.routes import ROUTES
from corral.wire.keys import IMPLIED, Scope

DECIDING_WHOM_TO_TRUST = {
    Permission.NODES_ADMIT,
    Permission.BACKENDS_TRUST,
    Permission.MACHINE_READ,
    Permission.GALLERIES_MANAGE,
    Permission.ENGINES_MANAGE,
    Permission.KEYS_MANAGE,
    Permission.USERS_MANAGE,
}


def test_roles_grow() -> None:
    assert PERMISSIONS[Scope.VIEWER] < PERMISSIONS[Scope.OPERATOR] < PERMISSIONS[Scope.ADMIN]
    assert PERMISSIONS[Scope.INFERENCE] < PERMISSIONS[Scope.OPERATOR]


def test_operators_decide_everything_but_whom_to_trust() -> None:
    assert PERMISSIONS[Scope.ADMIN] - PERMISSIONS[Scope.OPERATOR] == DECIDING_WHOM_TO_TRUST


def test_viewers_change_nothing_and_ask_no_model() -> None:
    others = PERMISSIONS[Scope.VIEWER] - {Permission.SELF}
    assert {permission.partition(".")[2] for permission in others} == {"read", "list"}


def test_only_gateways_see_the_keys_of_others() -> None:
    assert scopes_with(Permission.GATEWAY_SERVE) == (Scope.GATEWAY,)


def test_keys_of_workers_open_no_route_of_people() -> None:
    assert not PERMISSIONS[Scope.NODE]


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("implied", Scope)
def test_what_gateways_take_a_scope_for_agrees_with_its_permissions(scope: Scope, implied: Scope) -> None:
    if implied in IMPLIED[scope]:
        assert PERMISSIONS[implied] <= PERMISSIONS[scope]


def test_several_scopes_give_what_each_gives() -> None:
    assert permits([Scope.VIEWER, Scope.INFERENCE], Permission.INFERENCE)
    assert permits([Scope.VIEWER, Scope.INFERENCE], Permission.NODES_READ)
    assert not permits([Scope.VIEWER, Scope.INFERENCE], Permission.NODES_ACT)
    assert not permits([], Permission.INFERENCE)


def test_the_least_scope_is_named_first() -> None:
    assert scopes_with(Permission.NODES_READ) == (Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN)


def test_every_permission_is_needed_by_some_route_or_by_what_some_bodies_ask_for() -> None:
    needed = {route.permission for route in ROUTES}
    assert set(Permission) - needed == {Permission.MACHINE_READ}
