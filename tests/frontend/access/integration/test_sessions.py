"""Sessions of the web page over the API, on both databases."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from corral.base.tasks import running
from corral.frontend.access.decide import CHAT_KEY_LIFETIME, MOST_CHAT_KEYS, MOST_SESSIONS
from corral.frontend.access.passwords import FOR_NAME_FROM_SOURCE, FROM_SOURCE
from corral.frontend.access.store.keys import Keys
from corral.frontend.store.access_schema import sessions
from corral.frontend.store.schema import api_keys
from corral.wire.keys import LIMITED_INFERENCE
from corral.wire.sessions import cookie_name, csrf_of, hash_token, new_token
from tests.kit.asgi import AsgiAnswer, call
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend
from tests.kit.waiting import within_timeout
from tests.kit.world import view_of

PASSWORD = "correct horse battery"
HOST = "corral.test"


def document(answer: AsgiAnswer) -> dict[str, Any]:
    value: Any = answer.json()
    return dict(value)


def code_of(answer: AsgiAnswer) -> object:
    return document(answer)["error"]["code"]


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser that signed in: it has the cookie, and its page the secret."""

    frontend: Frontend
    name: str
    """Of the cookie."""
    token: str
    session: dict[str, Any]

    @property
    def cookie(self) -> str:
        return f"{self.name}={self.token}"

    async def call(self, method: str, url: str, body: object = None, **headers: str) -> AsgiAnswer:
        """As our own page calls."""
        own = {"host": HOST, "origin": f"http://{HOST}", "cookie": self.cookie}
        sent = own | {"x_corral_csrf": str(self.session["csrf"])} | headers
        return await self.frontend.call(method, url, body, key="", **sent)

    async def is_in(self) -> bool:
        answer = await self.call("GET", "/api/v1/session")
        assert answer.status in (200, 401)
        return answer.status == 200


async def add_user(frontend: Frontend, name: str, role: str) -> None:
    body = {"name": name, "role": role, "password": PASSWORD}
    assert (await frontend.call("POST", "/api/v1/users", body)).status == 201


async def post(frontend: Frontend, body: object, **headers: str) -> AsgiAnswer:
    return await frontend.call("POST", "/api/v1/session", body, key="", host=HOST, **headers)


async def sign_in(frontend: Frontend, body: object, **headers: str) -> Browser:
    answer = await post(frontend, body, **headers)
    assert answer.status == 201, answer.body
    name, _, token = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return Browser(frontend, name, token, document(answer))


async def by_password(frontend: Frontend, name: str) -> Browser:
    return await sign_in(frontend, {"name": name, "password": PASSWORD})


async def make_key(frontend: Frontend, *scopes: str, **more: object) -> dict[str, Any]:
    answer = await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": list(scopes), **more})
    assert answer.status == 201, answer.body
    return document(answer)


async def events(frontend: Frontend, kind: str) -> list[dict[str, Any]]:
    all_events: Any = (await frontend.call("GET", "/api/v1/events?limit=1000")).json()
    return [event for event in all_events if event["kind"] == kind]


async def test_a_key_opens_a_session_with_all_that_it_gives_and_no_more(frontend: Frontend) -> None:
    key = await make_key(frontend, "viewer")
    answer = await post(frontend, {"key": key["key"]})
    assert (answer.status, answer.headers["cache-control"]) == (201, "no-store")
    session = document(answer)
    assert (session["user"], session["key_name"], session["scopes"], session["models"]) == ("", "k", ["viewer"], None)
    assert "nodes.read" in session["permissions"]
    assert "nodes.act" not in session["permissions"]
    assert session["fleet"]
    assert session["version"]

    browser = await sign_in(frontend, {"key": key["key"]})
    assert document(await browser.call("GET", "/api/v1/session")) == browser.session
    assert (await browser.call("GET", "/api/v1/nodes")).status == 200
    assert (await browser.call("GET", "/api/v1/keys")).status == 403
    assert document(await browser.call("GET", "/api/v1/me"))["key"] == "k"


async def test_the_cookie_is_for_this_host_and_its_own_page_alone(frontend: Frontend) -> None:
    answer = await post(frontend, {"key": frontend.admin_key})
    name, _, rest = answer.headers["set-cookie"].partition("=")
    token, *attributes = rest.split("; ")
    assert name == cookie_name(frontend.control.context.nodes.fleet_key.pin)
    assert attributes == ["Path=/", f"Max-Age={12 * 3600}", "HttpOnly", "SameSite=Strict"]
    assert token not in answer.body.decode()
    behind_proxy = await post(frontend, {"key": frontend.admin_key}, origin=f"https://{HOST}")
    assert behind_proxy.headers["set-cookie"].endswith("; SameSite=Strict; Secure")


async def test_a_password_opens_a_session_with_the_role(frontend: Frontend, clock: ManualClock) -> None:
    await add_user(frontend, "Alice", "operator")
    browser = await by_password(frontend, "alice")
    session = browser.session
    assert (session["user"], session["key_name"], session["scopes"]) == ("Alice", "", ["operator"])
    assert document(await browser.call("GET", "/api/v1/me"))["user"] == "Alice"
    label = {"name": "mine", "scopes": ["inference"]}
    assert (await browser.call("POST", "/api/v1/keys", label)).status == 403
    assert (await browser.call("GET", "/api/v1/nodes")).status == 200
    await clock.advance(timedelta(hours=12))
    over = await browser.call("GET", "/api/v1/nodes")
    assert (over.status, code_of(over)) == (401, "session_expired")


async def test_a_key_that_somebody_makes_in_a_session_is_their_own(frontend: Frontend) -> None:
    await add_user(frontend, "root", "admin")
    browser = await by_password(frontend, "root")
    made = await browser.call("POST", "/api/v1/keys", {"name": "mine", "scopes": ["viewer"]})
    assert (made.status, document(made)["user"], document(made)["created_by"]) == (201, "root", "root (session)")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "key"),
        ({"key": ""}, "key"),
        ({"name": "alice"}, "key"),
        ({"password": "x"}, "name"),
        ({"key": "x", "name": "alice", "password": "x"}, "key"),
        ({"key": 5}, None),
        (b"not json", None),
        (b"", None),
        ([], None),
    ],
)
async def test_what_names_nobody_is_refused_with_the_field(frontend: Frontend, body: object, field: str | None) -> None:
    answer = await post(frontend, body)
    assert answer.status == 400
    assert "set-cookie" not in answer.headers
    if field is not None:
        assert document(answer)["error"]["field"] == field


async def test_wrong_names_and_passwords_are_answered_alike(frontend: Frontend) -> None:
    await add_user(frontend, "alice", "viewer")
    await add_user(frontend, "gone", "viewer")
    await frontend.call("PATCH", "/api/v1/users/gone", {"disabled": True})
    wrong = {"name": "alice", "password": "wrong password"}
    refused = [await post(frontend, body) for body in (wrong, wrong | {"name": "nobody"}, wrong | {"name": "gone"})]
    refused.append(await post(frontend, {"name": "gone", "password": PASSWORD}))
    assert {answer.status for answer in refused} == {401}
    assert len({answer.body for answer in refused}) == 1
    assert not any("set-cookie" in answer.headers for answer in refused)


async def test_guesses_at_passwords_are_limited_together_with_those_of_logins(
    frontend: Frontend, clock: ManualClock
) -> None:
    await add_user(frontend, "alice", "viewer")
    guess = {"name": "alice", "password": "wrong password"}
    for number in range(FOR_NAME_FROM_SOURCE.guesses):
        path = "/api/v1/login" if number % 2 else "/api/v1/session"
        assert (await frontend.call("POST", path, guess, key="")).status == 401
    limited = await post(frontend, {"name": "alice", "password": PASSWORD})
    assert (limited.status, limited.headers["retry-after"]) == (429, "30")
    await clock.advance(timedelta(seconds=FOR_NAME_FROM_SOURCE.regained_after))
    assert (await post(frontend, {"name": "alice", "password": PASSWORD})).status == 201


async def test_guesses_at_keys_are_limited_by_source(frontend: Frontend) -> None:
    statuses = [
        (await post(frontend, {"key": f"corral_wrong{number}"})).status for number in range(FROM_SOURCE.guesses + 1)
    ]
    assert statuses == [401] * FROM_SOURCE.guesses + [429]
    assert (await post(frontend, {"key": frontend.admin_key})).status == 201, "whoever has a key is let in"


async def test_a_right_key_costs_no_guess(frontend: Frontend) -> None:
    for _ in range(FROM_SOURCE.guesses + 5):
        assert (await post(frontend, {"key": frontend.admin_key})).status == 201
    assert (await post(frontend, {"key": "corral_wrong"})).status == 401


@pytest.mark.parametrize("scope", ["node", "gateway"])
async def test_keys_of_processes_open_no_session(frontend: Frontend, scope: str) -> None:
    key = await make_key(frontend, scope)
    answer = await post(frontend, {"key": key["key"]})
    assert (answer.status, code_of(answer)) == (403, "access_denied")


async def test_the_registration_token_and_a_session_token_are_no_keys(frontend: Frontend) -> None:
    browser = await sign_in(frontend, {"key": frontend.admin_key})
    for text in ("tok", browser.token, browser.session["csrf"], f"session {browser.token}"):
        assert (await post(frontend, {"key": text})).status == 401
        assert (await frontend.call("GET", "/api/v1/nodes", key=text)).status == 401


class TestCrossSite:
    @pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
    async def test_a_change_without_the_secret_is_refused_on_every_kind_of_route(
        self, frontend: Frontend, method: str
    ) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        paths = {
            "POST": ["/api/v1/keys", "/api/v1/session/inference-key", "/api/nodes/x/drain"],
            "PUT": ["/api/v1/nodes/x/labels", "/api/nodes/x/labels"],
            "PATCH": ["/api/v1/users/alice"],
            "DELETE": ["/api/v1/session", "/api/v1/keys/x", "/api/nodes/x"],
        }[method]
        for path in paths:
            for secret in ("", "wrong", csrf_of("another token")):
                answer = await browser.call(method, path, {}, x_corral_csrf=secret)
                assert (answer.status, code_of(answer)) == (403, "csrf"), path
        assert await browser.is_in()

    async def test_a_page_of_another_origin_neither_acts_nor_reads(self, frontend: Frontend) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        for origin in ("http://evil.test", "http://corral.test:3000", "null", f"http://{HOST}.evil.test"):
            for method, path in (("POST", "/api/v1/keys"), ("GET", "/api/v1/session"), ("GET", "/api/v1/nodes")):
                answer = await browser.call(method, path, {}, origin=origin)
                assert (answer.status, code_of(answer)) == (403, "csrf"), (origin, path)
                assert "access-control-allow-origin" not in answer.headers

    async def test_without_an_origin_the_secret_decides(self, frontend: Frontend) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        sent = {"host": HOST, "cookie": browser.cookie}
        body = {"name": "k", "scopes": ["inference"]}
        refused = await frontend.call("POST", "/api/v1/keys", body, key="", **sent)
        assert (refused.status, code_of(refused)) == (403, "csrf")
        csrf = str(browser.session["csrf"])
        taken = await frontend.call("POST", "/api/v1/keys", body, key="", x_corral_csrf=csrf, **sent)
        assert taken.status == 201

    async def test_the_secret_of_another_session_does_not_fit(self, frontend: Frontend) -> None:
        one, other = [await sign_in(frontend, {"key": frontend.admin_key}) for _ in range(2)]
        answer = await one.call("DELETE", "/api/v1/session", x_corral_csrf=str(other.session["csrf"]))
        assert (answer.status, code_of(answer)) == (403, "csrf")

    async def test_no_other_site_signs_somebody_in(self, frontend: Frontend) -> None:
        answer = await post(frontend, {"key": frontend.admin_key}, origin="http://evil.test")
        assert (answer.status, code_of(answer)) == (403, "csrf")
        assert "set-cookie" not in answer.headers
        assert (await post(frontend, {"key": frontend.admin_key}, origin=f"http://{HOST}")).status == 201

    async def test_a_key_beside_the_cookie_is_what_counts(self, frontend: Frontend) -> None:
        """So a program with a key needs no secret, and a wrong key is not helped by a cookie."""
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        viewer = await make_key(frontend, "viewer")
        body = {"name": "k", "scopes": ["inference"]}
        as_admin = await frontend.call("POST", "/api/v1/keys", body, cookie="corral_session=x")
        assert as_admin.status == 201
        as_viewer = await frontend.call("POST", "/api/v1/keys", body, key=viewer["key"], cookie=browser.cookie)
        assert as_viewer.status == 403
        wrong = await frontend.call("GET", "/api/v1/nodes", key="corral_wrong", cookie=browser.cookie)
        assert (wrong.status, code_of(wrong)) == (401, 401)
        by_header = await frontend.call("GET", "/api/v1/nodes", key="", x_api_key="wrong", cookie=browser.cookie)
        assert by_header.status == 401

    async def test_a_password_of_a_proxy_in_front_is_no_key(self, frontend: Frontend) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        assert (await browser.call("GET", "/api/v1/nodes", authorization="Basic dTpw")).status == 200


class TestCookies:
    async def test_the_same_cookie_twice_is_one(self, frontend: Frontend) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        answer = await browser.call("GET", "/api/v1/session", cookie=f"{browser.cookie}; {browser.cookie}")
        assert answer.status == 200

    async def test_beside_one_that_was_planted_the_valid_one_counts_unless_both_are(self, frontend: Frontend) -> None:
        own, planted = [await sign_in(frontend, {"key": frontend.admin_key}) for _ in range(2)]
        both = f"{planted.cookie}; {own.cookie}"
        refused = await own.call("GET", "/api/v1/session", cookie=both)
        assert (refused.status, code_of(refused)) == (401, "session_expired")
        await planted.call("DELETE", "/api/v1/session")
        assert (await own.call("GET", "/api/v1/session", cookie=both)).status == 200

    async def test_a_session_of_another_fleet_on_this_host_is_in_nobodys_way(self, frontend: Frontend) -> None:
        own = await sign_in(frontend, {"key": frontend.admin_key}, cookie=f"corral_session_aaaaaaaa={new_token()}")
        both = f"corral_session_aaaaaaaa={new_token()}; {own.cookie}"
        assert (await own.call("GET", "/api/v1/session", cookie=both)).status == 200

    async def test_one_of_a_version_without_fleets_in_names_counts_until_it_ends(self, frontend: Frontend) -> None:
        own = await sign_in(frontend, {"key": frontend.admin_key})
        old = f"corral_session={own.token}"
        assert (await own.call("GET", "/api/v1/session", cookie=old)).status == 200
        new = await sign_in(frontend, {"key": frontend.admin_key}, cookie=old)
        both = f"{old}; {new.cookie}"
        assert (await new.call("GET", "/api/v1/session", cookie=both)).status == 200

    @pytest.mark.parametrize("value", ["", "x", "A" * 43, "A" * 5000, "\xe9" * 43])
    async def test_what_is_no_session_is_refused_as_one_that_is_over(self, frontend: Frontend, value: str) -> None:
        answer = await frontend.call("GET", "/api/v1/nodes", key="", cookie=f"corral_session={value}")
        assert (answer.status, code_of(answer)) == (401, "session_expired")

    async def test_without_a_session_a_key_is_asked_for(self, frontend: Frontend) -> None:
        answer = await frontend.call("GET", "/api/v1/nodes", key="", cookie="other=1")
        assert (answer.status, code_of(answer)) == (401, 401)


class TestEnds:
    async def test_signing_out_ends_this_session_alone(self, frontend: Frontend) -> None:
        one, other = [await sign_in(frontend, {"key": frontend.admin_key}) for _ in range(2)]
        hashes = (await view_of(frontend.control)).keys
        assert {hash_token(one.token), hash_token(other.token)} <= hashes.keys()
        out = await one.call("DELETE", "/api/v1/session")
        assert (out.status, out.headers["set-cookie"].split("; ")[:3]) == (
            204,
            [f"{one.name}=", "Path=/", "Max-Age=0"],
        )
        assert (await one.is_in(), await other.is_in()) == (False, True)
        hashes = (await view_of(frontend.control)).keys
        assert hash_token(one.token) not in hashes
        assert hash_token(other.token) in hashes
        assert (await frontend.call("GET", "/api/v1/nodes")).status == 200, "the key that opened it stays"

    async def test_signing_in_again_ends_the_session_that_the_browser_had(self, frontend: Frontend) -> None:
        old = await sign_in(frontend, {"key": frontend.admin_key})
        new = await sign_in(frontend, {"key": frontend.admin_key}, cookie=old.cookie)
        assert (await old.is_in(), await new.is_in()) == (False, True)
        refused = await post(frontend, {"key": "wrong"}, cookie=new.cookie)
        assert refused.status == 401
        assert await new.is_in(), "a failed sign-in ends nothing"

    @pytest.mark.parametrize("change", [{"role": "admin"}, {"role": "viewer"}, {"password": "another password"}])
    async def test_any_change_of_the_user_ends_sessions_by_password(
        self, frontend: Frontend, change: dict[str, str]
    ) -> None:
        await add_user(frontend, "alice", "operator")
        browser = await by_password(frontend, "alice")
        chat = document(await browser.call("POST", "/api/v1/session/inference-key"))["key"]
        assert (await frontend.call("GET", "/api/v1/me", key=chat)).status == 200
        changed = await frontend.call("PATCH", "/api/v1/users/alice", change)
        assert (changed.status, document(changed)["revoked_keys"]) == (200, [])
        assert not await browser.is_in()
        assert (await frontend.call("GET", "/api/v1/me", key=chat)).status == 401

    @pytest.mark.parametrize("act", ["disable", "delete"])
    @pytest.mark.parametrize("how", ["password", "key"])
    async def test_no_session_outlives_its_user(self, frontend: Frontend, act: str, how: str) -> None:
        await add_user(frontend, "alice", "operator")
        laptop = await make_key(frontend, "operator", user="alice")
        browser = await sign_in(
            frontend, {"key": laptop["key"]} if how == "key" else {"name": "alice", "password": PASSWORD}
        )
        chat = document(await browser.call("POST", "/api/v1/session/inference-key"))["key"]
        assert browser.session["user"] == "alice"
        if act == "disable":
            await frontend.call("PATCH", "/api/v1/users/alice", {"disabled": True})
        else:
            await frontend.call("DELETE", "/api/v1/users/alice")
        refused = await browser.call("GET", "/api/v1/nodes")
        assert (refused.status, code_of(refused)) == (401, "session_expired")
        assert (await frontend.call("GET", "/api/v1/me", key=chat)).status == 401
        entries = (await view_of(frontend.control)).keys
        assert hash_token(browser.token) not in entries
        assert {entry.id for entry in entries.values()}.isdisjoint({laptop["id"]})
        if act == "disable":
            await frontend.call("PATCH", "/api/v1/users/alice", {"disabled": False})
            assert not await browser.is_in(), "what ended does not come back"

    async def test_no_session_outlives_its_key(self, frontend: Frontend, clock: ManualClock) -> None:
        key = await make_key(frontend, "operator")
        short = await make_key(frontend, "operator", expires_in="1h")
        browser, brief = [await sign_in(frontend, {"key": each["key"]}) for each in (key, short)]
        chats = [document(await each.call("POST", "/api/v1/session/inference-key"))["key"] for each in (browser, brief)]
        assert brief.session["expires_at"] == short["expires_at"]
        await frontend.call("DELETE", f"/api/v1/keys/{key['id']}")
        assert (await browser.is_in(), await brief.is_in()) == (False, True)
        assert [(await frontend.call("GET", "/api/v1/me", key=chat)).status for chat in chats] == [401, 200]
        hashes = {entry.id for entry in (await view_of(frontend.control)).keys.values()}
        assert browser.session["id"] not in hashes
        assert brief.session["id"] in hashes
        await clock.advance(timedelta(hours=1))
        assert not await brief.is_in()

    async def test_a_session_gives_no_more_than_the_role_does_now(self, frontend: Frontend) -> None:
        await add_user(frontend, "alice", "operator")
        key = await make_key(frontend, "viewer", user="alice")
        browser = await sign_in(frontend, {"key": key["key"]})
        await frontend.call("PATCH", "/api/v1/users/alice", {"role": "inference"})
        assert not await browser.is_in()

    async def test_the_oldest_of_very_many_sessions_ends(self, frontend: Frontend, clock: ManualClock) -> None:
        first = await sign_in(frontend, {"key": frontend.admin_key})
        key = await make_key(frontend, "viewer")
        other = await sign_in(frontend, {"key": key["key"]})
        for _ in range(MOST_SESSIONS):
            await clock.advance(timedelta(seconds=1))
            last = await sign_in(frontend, {"key": frontend.admin_key})
        assert [await each.is_in() for each in (first, other, last)] == [False, True, True]
        ended = await events(frontend, "session.ended")
        assert [(event["data"]["id"], event["data"]["why"]) for event in ended] == [
            (first.session["id"], "too many sessions")
        ]

    async def test_an_event_stream_ends_with_its_session(self, frontend: Frontend, clock: ManualClock) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        headers = {"accept": "text/event-stream", "cookie": browser.cookie, "host": HOST}
        ended = asyncio.Event()

        async def read() -> None:
            await call(frontend.app, "GET", "/api/v1/events?after=0", headers=headers, leaves=asyncio.Event())
            ended.set()

        async with running(read(), name="reader"):
            await clock.until_sleeping(1)
            await browser.call("DELETE", "/api/v1/session")
            await clock.advance(timedelta(seconds=2))
            await within_timeout(ended.wait(), lambda: "the stream to end")

    async def test_sessions_that_are_over_are_forgotten_with_the_record(
        self, frontend: Frontend, clock: ManualClock
    ) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        await browser.call("POST", "/api/v1/session/inference-key")
        await clock.advance(timedelta(days=1))
        housekeeping = frontend.control.context.operations.housekeeping
        await housekeeping.tidy()
        database = frontend.control.context.database
        async with database.look() as connection:
            assert len((await connection.execute(sessions.select())).all()) == 1
            of_sessions = api_keys.select().where(api_keys.c.session_id.is_not(None))
            assert (await connection.execute(of_sessions)).all() == []
        await clock.advance(timedelta(days=40))
        await housekeeping.tidy()
        async with database.look() as connection:
            assert (await connection.execute(sessions.select())).all() == []


class TestInferenceKeys:
    async def test_it_asks_models_for_a_quarter_of_an_hour_and_nothing_else(
        self, frontend: Frontend, clock: ManualClock
    ) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        answer = await browser.call("POST", "/api/v1/session/inference-key")
        assert (answer.status, answer.headers["cache-control"]) == (201, "no-store")
        key = document(answer)["key"]
        me = document(await frontend.call("GET", "/api/v1/me", key=key))
        assert (me["key"], me["scopes"]) == ("chat", ["inference"])
        assert (await frontend.call("GET", "/api/v1/nodes", key=key)).status == 403
        assert (await post(frontend, {"key": key})).status == 403, "it opens no session of its own"
        entry = next(each for each in (await view_of(frontend.control)).keys.values() if each.id == me["key_id"])
        assert entry.scopes == ("inference",)
        await clock.advance(CHAT_KEY_LIFETIME)
        assert (await frontend.call("GET", "/api/v1/me", key=key)).status == 401
        assert await browser.is_in()

    async def test_it_never_outlives_its_session(self, frontend: Frontend, clock: ManualClock) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        await clock.advance(timedelta(hours=12) - timedelta(minutes=5))
        made = document(await browser.call("POST", "/api/v1/session/inference-key"))
        assert made["expires_at"] == browser.session["expires_at"]
        await browser.call("DELETE", "/api/v1/session")
        assert (await frontend.call("GET", "/api/v1/me", key=made["key"])).status == 401
        assert "inference" not in {
            scope for entry in (await view_of(frontend.control)).keys.values() for scope in entry.scopes
        }

    async def test_it_is_limited_to_the_models_of_the_session(self, frontend: Frontend) -> None:
        limited = await make_key(frontend, "inference", models=["small"])
        browser = await sign_in(frontend, {"key": limited["key"]})
        assert browser.session["models"] == ["small"]
        key = document(await browser.call("POST", "/api/v1/session/inference-key"))["key"]
        me = document(await frontend.call("GET", "/api/v1/me", key=key))
        assert (me["models"], me["scopes"]) == (["small"], ["inference"])
        entry = next(each for each in (await view_of(frontend.control)).keys.values() if each.id == me["key_id"])
        assert (entry.scopes, entry.models) == ((LIMITED_INFERENCE,), frozenset({"small"}))

    async def test_who_may_not_ask_models_gets_none(self, frontend: Frontend) -> None:
        browser = await sign_in(frontend, {"key": (await make_key(frontend, "viewer"))["key"]})
        assert (await browser.call("POST", "/api/v1/session/inference-key")).status == 403

    async def test_it_is_no_clutter(self, frontend: Frontend, clock: ManualClock) -> None:
        await add_user(frontend, "alice", "operator")
        browser = await by_password(frontend, "alice")
        before: Any = (await frontend.call("GET", "/api/v1/keys")).json()
        made = []
        for _ in range(MOST_CHAT_KEYS + 2):
            await clock.advance(timedelta(seconds=1))
            made.append(document(await browser.call("POST", "/api/v1/session/inference-key"))["key"])
        after: Any = (await frontend.call("GET", "/api/v1/keys")).json()
        assert [key["id"] for key in after] == [key["id"] for key in before]
        everything: Any = (await frontend.call("GET", "/api/v1/keys?all=true")).json()
        chat = [key for key in everything if key["name"] == "chat"]
        assert {key["session"] for key in chat} == {browser.session["id"]}
        assert {(key["user"], key["created_by"]) for key in chat} == {("alice", "alice (session)")}
        assert len(chat) == MOST_CHAT_KEYS
        statuses = [(await frontend.call("GET", "/api/v1/me", key=key)).status for key in made]
        assert statuses == [401] * 2 + [200] * MOST_CHAT_KEYS
        users: Any = (await frontend.call("GET", "/api/v1/users")).json()
        assert users[0]["active_keys"] == 0
        assert not [event for event in await events(frontend, "key.created") if event["data"]["name"] == "chat"]
        await clock.advance(CHAT_KEY_LIFETIME)
        await browser.call("POST", "/api/v1/session/inference-key")
        assert len(await Keys(frontend.control.context.database).list()) == len(before) + 1

    async def test_a_key_instead_of_a_session_is_told_so(self, frontend: Frontend) -> None:
        calls = [("GET", ""), ("DELETE", ""), ("POST", "/inference-key")]
        answers = [await frontend.call(method, f"/api/v1/session{more}") for method, more in calls]
        assert {(answer.status, code_of(answer)) for answer in answers} == {(409, "conflict")}


class TestAdministration:
    async def test_sessions_are_listed_and_ended_by_who_manages_keys(self, frontend: Frontend) -> None:
        await add_user(frontend, "alice", "operator")
        alice = await sign_in(frontend, {"name": "alice", "password": PASSWORD}, user_agent="Fire\x07fox " + "x" * 999)
        admin = await sign_in(frontend, {"key": frontend.admin_key})
        assert (await alice.call("GET", "/api/v1/sessions")).status == 403
        assert (await alice.call("DELETE", f"/api/v1/sessions/{admin.session['id']}")).status == 403

        listed: Any = (await admin.call("GET", "/api/v1/sessions")).json()
        by_id = {each["id"]: each for each in listed}
        row = by_id[alice.session["id"]]
        assert (row["user"], row["key_name"], row["key_id"], row["scopes"]) == ("alice", "", "", ["operator"])
        assert (row["source"], row["state"], row["is_own"]) == ("127.0.0.1", "active", False)
        assert (row["agent"][:8], len(row["agent"])) == ("Firefox ", 199)
        assert by_id[admin.session["id"]]["is_own"]
        assert alice.token not in str(listed)
        assert hash_token(alice.token) not in str(listed)

        ended = await admin.call("DELETE", f"/api/v1/sessions/{alice.session['id']}")
        assert ended.status == 204
        assert not await alice.is_in()
        assert (await admin.call("DELETE", f"/api/v1/sessions/{alice.session['id']}")).status == 409
        assert (await admin.call("DELETE", "/api/v1/sessions/nonsense")).status == 404
        left: Any = (await admin.call("GET", "/api/v1/sessions")).json()
        assert [each["id"] for each in left] == [admin.session["id"]]
        everything: Any = (await admin.call("GET", "/api/v1/sessions?all=true")).json()
        assert {each["id"]: each["state"] for each in everything} == {
            admin.session["id"]: "active",
            alice.session["id"]: "ended",
        }

    async def test_who_signed_in_and_out_is_on_the_record_with_where_from(self, frontend: Frontend) -> None:
        await add_user(frontend, "alice", "operator")
        alice, admin = await by_password(frontend, "alice"), await sign_in(frontend, {"key": frontend.admin_key})
        await alice.call("DELETE", "/api/v1/session")
        again = await by_password(frontend, "alice")
        await admin.call("DELETE", f"/api/v1/sessions/{again.session['id']}")
        opened, ended = await events(frontend, "session.opened"), await events(frontend, "session.ended")
        assert [event["actor"] for event in opened] == ["alice (session)", "admin", "alice (session)"]
        data = opened[0]["data"]
        assert (data["user"], data["key"], data["source"]) == ("alice", "", "127.0.0.1")
        assert opened[1]["data"]["key"] == "admin"
        assert [(event["actor"], event["data"]["why"], event["data"]["user"]) for event in ended] == [
            ("alice (session)", "signed out", "alice"),
            ("admin", "ended", "alice"),
        ]

    async def test_refused_ones_are_on_the_record_but_do_not_fill_it(
        self, frontend: Frontend, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        await add_user(frontend, "alice", "viewer")
        with caplog.at_level(logging.DEBUG, logger="corral"):
            await post(frontend, {"name": "alice", "password": "my-secret-password"})
            await post(frontend, {"name": "my-secret-password", "password": "x"})
            await post(frontend, {"key": "corral_my-secret-key"})
        refused = await events(frontend, "login.refused")
        data = [(event["data"]["how"], event["data"]["user"], event["data"]["source"]) for event in refused]
        assert data == [
            ("password", "alice", "127.0.0.1"),
            ("password", "", "127.0.0.1"),
            ("key", "", "127.0.0.1"),
        ]
        assert {event["actor"] for event in refused} == {"anonymous"}
        told = str(refused) + " ".join(str(vars(record)) for record in caplog.records)
        assert "my-secret" not in told

        for number in range(25):
            await frontend.control.context.access.users._refused.record(how="key", source=f"10.0.0.{number}")
        assert len(await events(frontend, "login.refused")) == 20
        await clock.advance(timedelta(seconds=3))
        await post(frontend, {"key": "corral_wrong"})
        assert (await events(frontend, "login.refused"))[-1]["data"]["unwritten"] == 8

    async def test_the_database_holds_nothing_that_can_be_presented(self, frontend: Frontend) -> None:
        browser = await sign_in(frontend, {"key": frontend.admin_key})
        async with frontend.control.context.database.look() as connection:
            text = str((await connection.execute(sessions.select())).all())
        assert browser.token not in text
        assert str(browser.session["csrf"]) not in text
        assert frontend.admin_key not in text
