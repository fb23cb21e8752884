"""What a user's keys may be, and what becomes of them when the user changes."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.ids import KeyId, UserId
from corral.frontend.access.decide import (
    LOGIN,
    PERMISSIONS,
    Administration,
    User,
    administration,
    ending_keys,
    fold_name,
    read_password,
    read_role,
    read_user_name,
    scopes_of_role,
)
from corral.wire.keys import ROLES, ApiKey, Scope

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_user(role: Scope | None = Scope.OPERATOR, **more: object) -> User:
    user = User(
        id=UserId("u1"), name="alice", role=role, password_hash="h", created_at=NOW, created_by="x", changed_at=NOW
    )
    return replace(user, **more)  # type: ignore[arg-type]


def key_of(user: User | None, *scopes: Scope, name: str = "laptop", **more: object) -> ApiKey:
    key = ApiKey(
        id=KeyId(name + "".join(scopes)),
        name=name,
        hash=name,
        scopes=frozenset(scopes),
        created_at=NOW,
        created_by="x",
        user_id=None if user is None else user.id,
    )
    return replace(key, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ROLES)
def test_no_scope_of_a_users_key_gives_more_than_the_role(role: Scope) -> None:
    for scope in scopes_of_role(role):
        assert PERMISSIONS[scope] <= PERMISSIONS[role]
    assert not {Scope.NODE, Scope.GATEWAY} & scopes_of_role(role)


@pytest.mark.parametrize("role", [None, "", "root", "node", "gateway"])
def test_what_is_no_role_gives_nothing(role: str | None) -> None:
    assert scopes_of_role(role) == frozenset()


roles, scope_sets = st.sampled_from(ROLES), st.frozensets(st.sampled_from(ROLES), min_size=1)


@given(roles, roles, st.lists(scope_sets, max_size=5), st.booleans())
def test_after_a_change_no_key_exceeds_the_role(
    old: Scope, new: Scope, kinds: list[frozenset[Scope]], has_new_password: bool
) -> None:
    before = a_user(old)
    after = replace(before, role=new, password_hash="other" if has_new_password else before.password_hash)
    keys = [key_of(before, *scopes) for scopes in kinds if before.covers(scopes)]
    login, foreign = key_of(before, old, name=LOGIN), key_of(None, Scope.ADMIN)
    ended = ending_keys([*keys, login, foreign], before, after)
    left = [key for key in [*keys, login] if key not in ended]
    assert all(after.covers(key.scopes) for key in left)
    assert foreign not in ended
    assert (login in ended) == (has_new_password or not after.covers([old]))
    assert all(key in left for key in keys if after.covers(key.scopes))


@pytest.mark.parametrize("after", [None, a_user(disabled_at=NOW)])
def test_all_keys_end_with_the_user(after: User | None) -> None:
    user = a_user()
    own = [key_of(user, Scope.VIEWER), key_of(user, Scope.OPERATOR, name=LOGIN)]
    revoked, foreign = key_of(user, Scope.INFERENCE, revoked_at=NOW), key_of(None, Scope.ADMIN)
    assert ending_keys([*own, revoked, foreign], user, after) == own


def test_who_can_administer() -> None:
    admin, later = a_user(Scope.ADMIN), NOW + timedelta(hours=1)
    nobody, lasting = Administration.NOBODY, Administration.LASTING
    assert administration([], [admin], NOW) is lasting
    assert administration([], [replace(admin, disabled_at=NOW)], NOW) is nobody
    assert administration([], [replace(admin, password_hash=None)], NOW) is nobody
    assert administration([], [a_user()], NOW) is nobody
    assert administration([key_of(None, Scope.ADMIN)], [], NOW) is lasting
    assert administration([key_of(None, Scope.ADMIN, expires_at=later)], [], NOW) is Administration.FOR_A_TIME
    assert administration([key_of(None, Scope.ADMIN, expires_at=NOW)], [], NOW) is nobody
    assert administration([key_of(None, Scope.OPERATOR)], [], NOW) is nobody


@pytest.mark.parametrize("name", ["alice", "a", "alice@example.com", "A.b_c-d+e", "9lives", "x" * 64])
def test_names(name: str) -> None:
    assert read_user_name(f" {name} ") == name


@pytest.mark.parametrize("name", ["", " ", "-a", "a b", "a/b", "ä", "x" * 65, "a\nb", "a (b)", "@a", "a\0"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"name: is .*it takes 1 to 64 letters"):
        read_user_name(name)


def test_names_differ_by_more_than_case() -> None:
    assert fold_name("Alice") == fold_name("aLICE")


def test_passwords() -> None:
    assert read_password("correct horse", of="alice") == "correct horse"
    assert read_password("pa\u0308ssword-x", of="alice") == read_password("p\u00e4ssword-x", of="alice")
    for text in ("", "short", "x" * 1025):
        with pytest.raises(InvalidInput, match="password: must have 10 to 1024 characters, and has"):
            read_password(text, of="alice")
    with pytest.raises(InvalidInput, match="must not be the name"):
        read_password("Christopher", of="christopher")


def test_roles() -> None:
    assert [read_role(role) for role in ROLES] == list(ROLES)
    with pytest.raises(InvalidInput, match="role: is 'node'; say one of admin, operator, viewer, inference"):
        read_role("node")
