"""Users, their passwords and their keys, over the API on both databases."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from corral.frontend.access.decide import MOST_LOGINS
from corral.frontend.access.passwords import FOR_NAME_FROM_SOURCE
from corral.frontend.access.store.keys import Keys
from corral.frontend.store.access_schema import users
from corral.wire.keys import LIMITED_INFERENCE
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend
from tests.kit.world import view_of

PASSWORD = "correct horse battery"


async def add(frontend: Frontend, name: str, role: str, password: str = PASSWORD) -> dict[str, Any]:
    answer = await frontend.call("POST", "/api/v1/users", {"name": name, "role": role, "password": password})
    assert answer.status == 201, answer.body
    return document(answer)


def document(answer: AsgiAnswer) -> dict[str, Any]:
    value: Any = answer.json()
    return dict(value)


async def login(frontend: Frontend, name: str, password: str = PASSWORD, **more: object) -> AsgiAnswer:
    return await frontend.call("POST", "/api/v1/login", {"name": name, "password": password, **more}, key="")


async def key_of(frontend: Frontend, name: str, password: str = PASSWORD) -> str:
    answer = await login(frontend, name, password)
    assert answer.status == 201, answer.body
    return str(document(answer)["key"])


async def works(frontend: Frontend, key: str) -> bool:
    return (await frontend.call("GET", "/api/v1/me", key=key)).status == 200


async def actors(frontend: Frontend) -> dict[str, str]:
    events: Any = (await frontend.call("GET", "/api/v1/events?limit=1000")).json()
    return {event["kind"]: event["actor"] for event in events}


async def test_a_user_logs_in_and_gets_a_key_with_the_role_for_a_while(frontend: Frontend, clock: ManualClock) -> None:
    added = await add(frontend, "Alice", "operator")
    assert (added["role"], added["has_password"], added["is_disabled"]) == ("operator", True, False)

    answer = document(await login(frontend, "alice"))
    assert (answer["user"], answer["name"], answer["scopes"]) == ("Alice", "login", ["operator"])
    me = document(await frontend.call("GET", "/api/v1/me", key=answer["key"]))
    assert (me["user"], me["scopes"], me["models"]) == ("Alice", ["operator"], None)
    assert "nodes.act" in me["permissions"]
    assert "keys.manage" not in me["permissions"]
    assert (await frontend.call("GET", "/api/v1/nodes", key=answer["key"])).status == 200
    assert (await frontend.call("GET", "/api/v1/users", key=answer["key"])).status == 403

    await clock.advance(timedelta(hours=12))
    assert not await works(frontend, answer["key"])


@pytest.mark.parametrize("form", ["Alice", "aLICE", " alice"])
async def test_two_users_do_not_differ_in_case_alone(frontend: Frontend, form: str) -> None:
    await add(frontend, "alice", "viewer")
    answer = await frontend.call("POST", "/api/v1/users", {"name": form, "role": "admin"})
    assert answer.status == 409


async def test_of_two_who_add_the_same_user_one_wins(frontend: Frontend) -> None:
    body = {"name": "alice", "role": "viewer"}
    answers = await asyncio.gather(*(frontend.call("POST", "/api/v1/users", body) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [201, 409, 409, 409]


async def test_wrong_names_and_passwords_are_answered_alike(frontend: Frontend) -> None:
    await add(frontend, "alice", "viewer")
    await add(frontend, "keys-only", "viewer", password="")
    await add(frontend, "gone", "viewer")
    await frontend.call("PATCH", "/api/v1/users/gone", {"disabled": True})
    refused = [
        await login(frontend, "alice", "wrong password"),
        await login(frontend, "nobody"),
        await login(frontend, "keys-only"),
        await login(frontend, "gone"),
        await login(frontend, "", ""),
        await login(frontend, "a\0b"),
        await login(frontend, "x" * 10_000),
    ]
    assert {answer.status for answer in refused} == {401}
    assert len({answer.body for answer in refused}) == 1


async def test_guessing_is_limited_for_the_name_and_ends_with_time(frontend: Frontend, clock: ManualClock) -> None:
    await add(frontend, "alice", "viewer")
    guesses = [
        await login(frontend, "alice", f"wrong password {number}") for number in range(FOR_NAME_FROM_SOURCE.guesses)
    ]
    assert {answer.status for answer in guesses} == {401}
    limited = await login(frontend, "alice")
    assert (limited.status, limited.headers["retry-after"]) == (429, "30")
    changed = {"name": "alice", "password": PASSWORD, "new_password": "another password"}
    assert (await frontend.call("POST", "/api/v1/login/password", changed, key="")).status == 429
    clock.jump(timedelta(hours=-5))
    assert (await login(frontend, "alice")).headers["retry-after"] == "30", "a clock that is set back locks nobody out"
    await clock.advance(timedelta(seconds=FOR_NAME_FROM_SOURCE.regained_after))
    assert (await login(frontend, "alice")).status == 201


async def test_what_was_typed_is_not_logged(frontend: Frontend, caplog: pytest.LogCaptureFixture) -> None:
    await add(frontend, "alice", "viewer")
    with caplog.at_level(logging.DEBUG, logger="corral"):
        await login(frontend, "my-secret-password", "x" * 12)
        await login(frontend, "alice", "my-secret-password")
    text = " ".join(str(vars(record)) for record in caplog.records)
    assert "login.refused" in text
    assert "my-secret-password" not in text
    async with frontend.control.context.database.look() as connection:
        rows = (await connection.execute(users.select())).all()
    assert PASSWORD not in str(rows)
    assert "argon2" not in (await frontend.call("GET", "/api/v1/users")).body.decode()
    assert "argon2" not in (await frontend.call("GET", "/api/v1/events?limit=1000")).body.decode()


async def test_logging_out_ends_the_key_of_the_login_alone(frontend: Frontend) -> None:
    await add(frontend, "alice", "viewer")
    first, second = await key_of(frontend, "alice"), await key_of(frontend, "alice")
    assert (await frontend.call("DELETE", "/api/v1/login", key=first)).status == 204
    assert (await works(frontend, first), await works(frontend, second)) == (False, True)
    assert (await frontend.call("DELETE", "/api/v1/login")).status == 409  # the administrator's key is no login


async def test_a_new_password_ends_earlier_logins_and_no_other_keys(frontend: Frontend) -> None:
    await add(frontend, "alice", "operator")
    body = {"name": "laptop", "scopes": ["viewer"], "user": "alice"}
    laptop = document(await frontend.call("POST", "/api/v1/keys", body))
    session = await key_of(frontend, "alice")

    change = {"name": "alice", "password": PASSWORD, "new_password": "another password"}
    assert (await frontend.call("POST", "/api/v1/login/password", change | {"password": "wrong"}, key="")).status == 401
    short = await frontend.call("POST", "/api/v1/login/password", change | {"new_password": "x"}, key="")
    assert (short.status, document(short)["error"]["field"]) == (400, "new_password")
    assert (await frontend.call("POST", "/api/v1/login/password", change, key="")).status == 204
    assert (await works(frontend, session), await works(frontend, laptop["key"])) == (False, True)
    assert (await login(frontend, "alice")).status == 401
    assert (await login(frontend, "alice", "another password")).status == 201


async def test_keys_never_exceed_the_role_of_their_user(frontend: Frontend) -> None:
    await add(frontend, "alice", "operator")
    for scope in ("admin", "node", "gateway"):
        body = {"name": "k", "scopes": [scope], "user": "alice"}
        refused = await frontend.call("POST", "/api/v1/keys", body)
        assert (refused.status, document(refused)["error"]["field"]) == (400, "scopes")
    unknown = await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": ["viewer"], "user": "bob"})
    assert (unknown.status, document(unknown)["error"]["field"]) == (400, "user")
    taken = await frontend.call("POST", "/api/v1/keys", {"name": "login", "scopes": ["viewer"], "user": "alice"})
    assert (taken.status, document(taken)["error"]["field"]) == (400, "name")

    made = {}
    for scope in ("operator", "viewer", "inference"):
        body = {"name": scope, "scopes": [scope], "user": "alice"}
        made[scope] = document(await frontend.call("POST", "/api/v1/keys", body))
    session = await key_of(frontend, "alice")
    demoted = document(await frontend.call("PATCH", "/api/v1/users/alice", {"role": "viewer"}))
    assert demoted["role"] == "viewer"
    assert len(demoted["revoked_keys"]) == 3  # the login, and both that a viewer may not have
    assert [await works(frontend, made[scope]["key"]) for scope in made] == [False, True, False]
    assert not await works(frontend, session)
    assert demoted["active_keys"] == 1


@pytest.mark.parametrize("act", ["disable", "delete"])
async def test_all_keys_die_with_their_user(frontend: Frontend, act: str) -> None:
    await add(frontend, "alice", "operator")
    body = {"name": "laptop", "scopes": ["inference"], "user": "alice"}
    laptop = document(await frontend.call("POST", "/api/v1/keys", body))
    session = await key_of(frontend, "alice")
    assert laptop["id"] in {entry.id for entry in (await view_of(frontend.control)).keys.values()}

    if act == "disable":
        answer = await frontend.call("PATCH", "/api/v1/users/ALICE", {"disabled": True})
    else:
        answer = await frontend.call("DELETE", "/api/v1/users/alice")
    assert (answer.status, len(document(answer)["revoked_keys"])) == (200, 2)
    assert [await works(frontend, key) for key in (laptop["key"], session)] == [False, False]
    assert laptop["id"] not in {entry.id for entry in (await view_of(frontend.control)).keys.values()}
    assert (await login(frontend, "alice")).status == 401
    assert (await frontend.call("POST", "/api/v1/keys", body)).status in (400, 409)

    if act == "disable":  # enabled again, the user logs in again; what ended stays so
        await frontend.call("PATCH", "/api/v1/users/alice", {"disabled": False})
    else:
        await add(frontend, "alice", "operator")
    assert not await works(frontend, laptop["key"])
    assert (await login(frontend, "alice")).status == 201


async def test_the_last_administrator_stays(frontend: Frontend) -> None:
    await add(frontend, "root", "admin")
    session = await key_of(frontend, "root")
    (first,) = [key for key in await keys(frontend) if key["name"] == "admin"]
    assert (await frontend.call("DELETE", f"/api/v1/keys/{first['id']}", key=session)).status == 204
    for method, body in (
        ("DELETE", None),
        ("PATCH", {"disabled": True}),
        ("PATCH", {"role": "operator"}),
        ("PATCH", {"disabled": True, "role": "operator", "password": ""}),
    ):
        refused = await frontend.call(method, "/api/v1/users/root", body, key=session)
        assert refused.status == 409
        assert "nobody could administer without root" in refused.body.decode()
    await frontend.call("POST", "/api/v1/users", {"name": "other", "role": "admin", "password": PASSWORD}, key=session)
    assert (await frontend.call("DELETE", "/api/v1/users/root", key=session)).status == 200
    assert (await login(frontend, "other")).status == 201


async def test_of_two_administrators_who_delete_each_other_one_stays(frontend: Frontend) -> None:
    for name in ("one", "two"):
        await add(frontend, name, "admin")
    one, two = await key_of(frontend, "one"), await key_of(frontend, "two")
    (first,) = [key for key in await keys(frontend) if key["name"] == "admin"]
    assert (await frontend.call("DELETE", f"/api/v1/keys/{first['id']}")).status == 204
    answers = await asyncio.gather(
        frontend.call("DELETE", "/api/v1/users/two", key=one), frontend.call("DELETE", "/api/v1/users/one", key=two)
    )
    statuses = sorted(answer.status for answer in answers)
    assert statuses in ([200, 401], [200, 409])
    assert sorted([(await login(frontend, "one")).status, (await login(frontend, "two")).status]) == [201, 401]


async def keys(frontend: Frontend) -> list[dict[str, Any]]:
    listed: Any = (await frontend.call("GET", "/api/v1/keys")).json()
    return list(listed)


async def test_every_act_is_on_the_record_with_its_user_and_key(frontend: Frontend) -> None:
    await add(frontend, "root", "admin")
    session = await key_of(frontend, "root")
    await frontend.call("POST", "/api/v1/users", {"name": "bob", "role": "viewer"}, key=session)
    await frontend.call("PATCH", "/api/v1/users/bob", {"role": "operator"}, key=session)
    await frontend.call("POST", "/api/v1/keys", {"name": "laptop", "scopes": ["viewer"]}, key=session)
    await frontend.call("DELETE", "/api/v1/users/bob", key=session)
    done = await actors(frontend)
    acts = ("user.created", "user.changed", "user.deleted", "key.created")
    assert {kind: done[kind] for kind in acts} == dict.fromkeys(acts, "root (login)")

    await frontend.call("DELETE", "/api/v1/login", key=session)
    await key_of(frontend, "root")
    done = await actors(frontend)
    assert (done["key.revoked"], done["key.created"]) == ("root (login)", "root (password)")


async def test_a_key_goes_with_its_maker_unless_it_shall_be_nobodys(frontend: Frontend) -> None:
    await add(frontend, "root", "admin")
    session = await key_of(frontend, "root")
    own = document(await frontend.call("POST", "/api/v1/keys", {"name": "a", "scopes": ["viewer"]}, key=session))
    body = {"name": "b", "scopes": ["gateway"], "user": ""}
    service = document(await frontend.call("POST", "/api/v1/keys", body, key=session))
    assert (own["user"], service["user"]) == ("root", "")
    await frontend.call("DELETE", "/api/v1/users/root")
    states = {key["name"]: key["state"] for key in await keys(frontend)}
    assert (states["a"], states["b"]) == ("revoked", "active")


async def test_a_key_may_be_limited_to_models(frontend: Frontend) -> None:
    body = {"name": "app", "scopes": ["inference"], "models": ["llama", "gpt-4"]}
    made = document(await frontend.call("POST", "/api/v1/keys", body))
    assert made["models"] == ["gpt-4", "llama"]
    entry = next(entry for entry in (await view_of(frontend.control)).keys.values() if entry.id == made["id"])
    assert (entry.models, entry.scopes) == ({"llama", "gpt-4"}, (LIMITED_INFERENCE,))
    me = document(await frontend.call("GET", "/api/v1/me", key=made["key"]))
    assert (me["models"], me["scopes"]) == (["gpt-4", "llama"], ["inference"])
    for wrong in ({"scopes": ["operator"]}, {"models": [""]}, {"models": ["x"] * 257}, {"models": ["a\nb"]}):
        refused = await frontend.call("POST", "/api/v1/keys", body | wrong)
        assert (refused.status, document(refused)["error"]["field"]) == (400, "models")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "", "role": "viewer"}, "name"),
        ({"name": "a b", "role": "viewer"}, "name"),
        ({"name": "a", "role": "node"}, "role"),
        ({"name": "a", "role": "viewer", "password": "short"}, "password"),
        ({"name": "christopher", "role": "viewer", "password": "Christopher"}, "password"),
    ],
)
async def test_a_user_that_makes_no_sense_is_refused_and_the_field_named(
    frontend: Frontend, body: dict[str, object], field: str
) -> None:
    answer = await frontend.call("POST", "/api/v1/users", body)
    assert (answer.status, document(answer)["error"]["field"]) == (400, field)


async def test_a_login_lasts_no_longer_than_the_setting_says(frontend: Frontend) -> None:
    await add(frontend, "alice", "viewer")
    assert (await login(frontend, "alice", expires_in="1h")).status == 201
    refused = await login(frontend, "alice", expires_in="13h")
    assert (refused.status, document(refused)["error"]["field"]) == (400, "expires_in")
    assert "CORRAL_LOGIN_LIFETIME" in document(refused)["error"]["message"]


async def test_a_user_who_is_changed_while_logging_in_gets_no_key(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(frontend, "alice", "operator")
    accounts = frontend.control.context.access.users
    matches = accounts._hasher.matches

    async def slow(hash: str | None, password: str) -> bool:
        is_right = await matches(hash, password)
        await frontend.call("PATCH", "/api/v1/users/alice", {"disabled": True})
        await frontend.call("PATCH", "/api/v1/users/alice", {"disabled": False, "role": "viewer"})
        return is_right

    monkeypatch.setattr(accounts._hasher, "matches", slow)
    assert (await login(frontend, "alice")).status == 409
    assert [key for key in await keys(frontend) if key["user"]] == []


async def test_nothing_changes_where_nothing_is_asked(frontend: Frontend) -> None:
    await add(frontend, "alice", "viewer")
    session = await key_of(frontend, "alice")
    before = await actors(frontend)
    answer = await frontend.call("PATCH", "/api/v1/users/alice", {"role": "viewer", "disabled": False})
    assert (answer.status, document(answer)["revoked_keys"]) == (200, [])
    assert await works(frontend, session)
    assert await actors(frontend) == before
    assert (await frontend.call("PATCH", "/api/v1/users/nobody", {"role": "viewer"})).status == 404
    assert (await frontend.call("DELETE", "/api/v1/users/nobody")).status == 404


async def test_a_user_has_so_many_logins_and_the_oldest_ends(frontend: Frontend, clock: ManualClock) -> None:
    await add(frontend, "alice", "viewer")
    asked = {"name": "laptop", "scopes": ["viewer"], "user": "alice"}
    laptop = document(await frontend.call("POST", "/api/v1/keys", asked))
    made = []
    for _ in range(MOST_LOGINS + 1):
        made.append(await key_of(frontend, "alice"))
        await clock.advance(timedelta(seconds=1))
    assert [await works(frontend, key) for key in (*made[:2], laptop["key"])] == [False, True, True]
    events = (await frontend.call("GET", "/api/v1/events?limit=1000")).body
    assert events.count(b'"key.revoked"') == 1
    assert len((await view_of(frontend.control)).keys) == MOST_LOGINS + 2


async def test_logins_that_are_over_leave_the_view_and_later_the_database(
    frontend: Frontend, clock: ManualClock
) -> None:
    await add(frontend, "alice", "viewer")
    await login(frontend, "alice")
    context = frontend.control.context
    keys = Keys(context.database)
    assert len(await keys.valid(clock.now())) == 2
    await clock.advance(timedelta(hours=13))
    assert [key.name for key in await keys.valid(clock.now())] == ["admin"]
    await context.operations.housekeeping.tidy()
    assert len(await keys.list()) == 2
    await clock.advance(context.config.event_retention)
    await context.operations.housekeeping.tidy()
    assert [key.name for key in await keys.list()] == ["admin"]
