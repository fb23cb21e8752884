"""Sessions of the web page under attack: a stolen cookie, and pages of other sites that a signed-in person visits."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.frontend.access.decide import Permission
from corral.frontend.api.route import RouteSpec
from corral.frontend.routes import ROUTES
from corral.gateway.inference import ROUTES as INFERENCE
from tests.kit.page_sessions import SignedIn, ask_page
from tests.kit.threats import AttackedFleet

PASSWORD = "correct horse battery"
CHANGES = [route for route in ROUTES if route.method != "GET" and isinstance(route.access, Permission)]


def administrator(fleet: AttackedFleet) -> SignedIn:
    return SignedIn.at(fleet.url, {"key": fleet.admin_key})


@contextmanager
def user(fleet: AttackedFleet, name: str, role: str) -> Iterator[SignedIn]:
    fleet.good("POST", "/api/v1/users", {"name": name, "role": role, "password": PASSWORD})
    yield SignedIn.at(fleet.url, {"name": name, "password": PASSWORD})
    fleet.admin("DELETE", f"/api/v1/users/{name}")


@pytest.fixture(scope="module")
def person(fleet: AttackedFleet) -> SignedIn:
    """An administrator who is signed in, and visits pages of other sites."""
    return administrator(fleet)


class TestStolenCookies:
    """The thief has the cookie, and so can make the secret that belongs to it: it is as good as the session."""

    def test_it_opens_what_the_person_may_do_and_no_more(self, fleet: AttackedFleet) -> None:
        with user(fleet, "v", "viewer") as stolen:
            assert stolen.call("GET", "/api/v1/nodes").status == 200
            victim = fleet.victim()
            assert stolen.call("POST", f"/api/v1/nodes/{victim}/drain", {}).status == 403
            assert stolen.call("GET", "/api/v1/keys").status == 403
            assert stolen.call("GET", "/api/v1/sessions").status == 403
            assert stolen.call("POST", "/api/v1/session/inference-key").status == 403
            assert stolen.call("POST", "/api/node/register", {"name": "x"}).status == 401
            assert stolen.call("POST", f"/api/node/{victim}/heartbeat", {}).status == 401

    def test_it_asks_no_model_by_itself_and_is_no_key(self, fleet: AttackedFleet) -> None:
        stolen = administrator(fleet)
        for path in map(bytes.decode, INFERENCE):
            assert stolen.call("POST", path, {"model": "none"}).status == 401
        for text in (stolen.token, str(stolen.session["csrf"]), stolen.cookie, f"session {stolen.token}"):
            assert fleet.call("GET", "/api/v1/nodes", key=text).status == 401
            assert fleet.call("POST", "/api/v1/session", {"key": text}).status == 401
            assert fleet.call("POST", "/api/node/register", {"name": "x"}, key=text).status in (400, 401)
        stolen.call("DELETE", "/api/v1/session")

    def test_it_tells_no_password_and_no_key(self, fleet: AttackedFleet) -> None:
        """So the thief cannot stay: the session ends after a working day, and a new password needs the old one."""
        with user(fleet, "o", "operator") as stolen:
            shown = stolen.call("GET", "/api/v1/session").body + stolen.call("GET", "/api/v1/me").body
            assert PASSWORD.encode() not in shown
            assert b"corral_" not in shown
            change = {"name": "o", "password": "not the old one", "new_password": "the thief's own"}
            assert stolen.call("POST", "/api/v1/login/password", change).status == 401

    def test_it_ends_for_the_thief_when_its_owner_an_administrator_or_a_change_ends_it(
        self, fleet: AttackedFleet
    ) -> None:
        admin = administrator(fleet)
        with user(fleet, "a", "operator") as own:
            chat = own.call("POST", "/api/v1/session/inference-key").json()["key"]
            assert own.call("DELETE", "/api/v1/session").status == 204
            assert not own.is_in()
            assert fleet.call("GET", "/v1/models", key=chat).status == 401
            other = SignedIn.at(fleet.url, {"name": "a", "password": PASSWORD})
            assert admin.call("DELETE", f"/api/v1/sessions/{other.session['id']}").status == 204
            assert not other.is_in()
            for change in ({"role": "viewer"}, {"password": "another password"}, {"disabled": True}):
                fleet.good("PATCH", "/api/v1/users/a", {"role": "operator", "password": PASSWORD, "disabled": False})
                session = SignedIn.at(fleet.url, {"name": "a", "password": PASSWORD})
                assert session.is_in()
                fleet.good("PATCH", "/api/v1/users/a", change)
                assert not session.is_in(), change
        made = fleet.good("POST", "/api/v1/keys", {"name": "k", "scopes": ["operator"]})
        by_key = SignedIn.at(fleet.url, {"key": made["key"]})
        fleet.admin("DELETE", f"/api/v1/keys/{made['id']}")
        assert not by_key.is_in()
        admin.call("DELETE", "/api/v1/session")

    def test_neither_scripts_nor_other_hosts_get_it_and_no_file_holds_it(self, fleet: AttackedFleet) -> None:
        reply = ask_page("POST", f"{fleet.url}/api/v1/session", {"key": fleet.admin_key})
        attributes = reply.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
        assert not any(attribute.startswith("Domain") for attribute in attributes)
        assert reply.token not in reply.body.decode()
        for folder in fleet.folders:
            held = [path for path in Path(folder).rglob("*") if path.is_file() and holds(path, reply.token)]
            assert held == []


def holds(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:  # it is gone by now
        return False


class TestOtherSites:
    """What a page of another site can have the browser of a signed-in person send. The worst case is assumed: that the
    browser adds the cookie, which `SameSite=Strict` forbids it to do."""

    ORIGINS = ("http://evil.test", "null", "https://127.0.0.1", "http://127.0.0.1:1", "http://127.0.0.1.evil.test")

    @pytest.mark.parametrize("route", CHANGES, ids=lambda route: f"{route.method} {route.path}")
    def test_no_route_changes_anything_without_the_secret(
        self, fleet: AttackedFleet, person: SignedIn, route: RouteSpec
    ) -> None:
        url = fleet.url + re.sub(r"\{\w+(:path)?\}", "x", route.path)
        simple = {"Cookie": person.cookie, "Content-Type": "text/plain"}  # what a form can send
        for headers in (simple, simple | {"Origin": fleet.url}, simple | {"X-Corral-CSRF": "guessed"}):
            reply = ask_page(route.method, url, b"{}", headers=headers)
            assert (reply.status, reply.code) == (403, "csrf")

    def test_a_page_of_another_origin_neither_acts_nor_reads_even_with_the_secret(self, person: SignedIn) -> None:
        for origin in self.ORIGINS:
            for method, path in (("POST", "/api/v1/keys"), ("GET", "/api/v1/session"), ("GET", "/api/v1/nodes")):
                reply = person.call(method, path, {} if method == "POST" else None, Origin=origin)
                assert (reply.status, reply.code) == (403, "csrf"), origin
                assert "access-control-allow-origin" not in reply.headers
                assert b'csrf":"' not in reply.body.replace(b'"code":"csrf"', b"")

    def test_no_page_signs_somebody_in_as_somebody_else(self, fleet: AttackedFleet) -> None:
        for origin in self.ORIGINS:
            headers = {"Origin": origin, "Content-Type": "text/plain"}
            reply = ask_page("POST", f"{fleet.url}/api/v1/session", {"key": fleet.admin_key}, headers=headers)
            assert (reply.status, reply.code) == (403, "csrf")
            assert "set-cookie" not in reply.headers

    def test_a_preflight_is_refused(self, fleet: AttackedFleet) -> None:
        asked = {"Origin": "http://evil.test", "Access-Control-Request-Method": "POST"}
        asked |= {"Access-Control-Request-Headers": "x-corral-csrf"}
        assert ask_page("OPTIONS", f"{fleet.url}/api/v1/keys", headers=asked).status == 403

    def test_no_page_shows_ours_inside_itself(self, fleet: AttackedFleet) -> None:
        for path in ("/ui/", "/ui/fleet", "/", "/docs", "/api/v1/nodes", "/no/such"):
            reply = ask_page("GET", fleet.url + path, headers={"Accept": "text/html"})
            assert reply.status == 302 or "frame-ancestors 'none'" in reply.headers["content-security-policy"], path
