"""The API under attack: what each credential opens, and what it does not, over real processes."""

import re
from collections.abc import Callable

import pytest

from corral.base.ids import new_secret
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import Access, RouteSpec
from corral.frontend.routes import ROUTES
from corral.gateway.inference import ROUTES as INFERENCE
from corral.wire.joining import new_code
from corral.wire.registration import FEATURES
from tests.kit.threats import AttackedFleet, HttpReply, ask_http

GUARDED = [route for route in ROUTES if route.access not in (Access.PUBLIC, Access.WORKER, Permission.SELF)]
"""Routes that need more than any key: one may ask who its holder is with every key."""
OF_WORKERS = [route for route in ROUTES if route.access is Access.WORKER and "{id}" in route.path]
DENIED = (401, 403)
READING = (".read", ".list")
"""How permissions end that change nothing."""


def refused(fleet: AttackedFleet, routes: list[RouteSpec], key: str) -> list[str]:
    """Call routes with a credential, about the first worker; those that do not refuse it."""
    victim = fleet.victim()
    open_to_it = []
    for route in routes:
        path = re.sub(r"\{\w+(:path)?\}", victim, route.path)
        body = {} if route.method in ("POST", "PUT", "PATCH") else None
        if (status := fleet.call(route.method, path, body, key=key).status) not in DENIED:
            open_to_it.append(f"{route.method} {path}: {status}")
    return open_to_it


def asks_models(fleet: AttackedFleet, key: str) -> list[str]:
    """The paths that answer a question about a model with something else than a refusal."""
    body = {"model": "none", "messages": [], "input": "x", "prompt": "x"}
    paths = [path.decode() for path in INFERENCE]
    return [path for path in paths if fleet.call("POST", path, body, key=key).status not in DENIED]


@pytest.fixture(scope="module")
def holders(fleet: AttackedFleet) -> dict[str, str]:
    """What thieves found, by whom it was taken from; each opens less than the API."""
    return {
        "stranger": "",
        "somebody who guesses": "corral_" + "A" * 43,
        "registration token": fleet.registration_token,
        "worker": fleet.secret_of("worker-1"),
        "pending worker": fleet.register("waits").secret,
        "node key": fleet.new_key("of a rack", "node"),
        "gateway": fleet.new_key("of a gateway", "gateway"),
        "expired key": fleet.new_key("short", "admin", expires_in="1ms"),
    }


HOLDERS = (
    "stranger",
    "somebody who guesses",
    "registration token",
    "worker",
    "pending worker",
    "node key",
    "gateway",
    "expired key",
)


@pytest.mark.parametrize("holder", HOLDERS)
def test_nobody_else_administers_the_fleet(fleet: AttackedFleet, holders: dict[str, str], holder: str) -> None:
    routes = [route for route in GUARDED if holder != "gateway" or route.permission is not Permission.GATEWAY_SERVE]
    assert refused(fleet, routes, holders[holder]) == []


@pytest.mark.parametrize("holder", HOLDERS)
def test_nobody_else_asks_models(fleet: AttackedFleet, holders: dict[str, str], holder: str) -> None:
    assert asks_models(fleet, holders[holder]) == []
    assert fleet.call("GET", "/v1/models", key=holders[holder]).status in DENIED


def test_an_inference_key_asks_models_and_opens_nothing_else(fleet: AttackedFleet) -> None:
    key = fleet.new_key("app", "inference")
    others = [route for route in GUARDED if route.permission not in (Permission.INFERENCE, Permission.MODELS_LIST)]
    assert refused(fleet, others, key) == []
    assert refused(fleet, OF_WORKERS, key) == []
    assert asks_models(fleet, key) != []


def test_a_viewer_changes_nothing_and_asks_no_model(fleet: AttackedFleet) -> None:
    key = fleet.new_key("screen", "viewer")
    before = fleet.good("GET", "/api/v1/events?limit=1")
    changing = [route for route in GUARDED if route.method != "GET" and not route.permission.endswith(READING)]
    assert refused(fleet, changing, key) == []
    assert refused(fleet, OF_WORKERS, key) == []
    assert asks_models(fleet, key) == []
    assert fleet.good("GET", "/api/v1/events?limit=1") == before
    assert fleet.call("GET", "/api/v1/nodes", key=key).status == 200


def test_an_operator_lets_nobody_in_and_makes_no_keys(fleet: AttackedFleet) -> None:
    key = fleet.new_key("on call", "operator")
    deciding = {
        Permission.NODES_ADMIT,
        Permission.BACKENDS_TRUST,
        Permission.GALLERIES_MANAGE,
        Permission.ENGINES_MANAGE,
        Permission.KEYS_MANAGE,
        Permission.USERS_MANAGE,
        Permission.GATEWAY_SERVE,
    }
    assert refused(fleet, [route for route in GUARDED if route.permission in deciding], key) == []
    assert refused(fleet, OF_WORKERS, key) == []


def test_a_gateway_sees_replicas_and_no_secret_of_nodes_or_people(fleet: AttackedFleet) -> None:
    """It carries requests, so it knows where they go. Keys of people it has as hashes only."""
    key = fleet.new_key("another gateway", "gateway")
    view = ask_http("GET", f"{fleet.url}/api/v1/gateway/view", key=key, is_stream=True)
    assert (view.status, b"keys" in view.body) == (200, True)
    for secret in (fleet.admin_key, fleet.registration_token, fleet.secret_of("worker-1"), key):
        assert secret.encode() not in view.body


class TestSpeakingForAnotherNode:
    """With the credential of one node, about another one."""

    @pytest.mark.parametrize("holder", ["stranger", "registration token", "worker-2", "pending worker", "admin"])
    def test_a_node_listens_to_its_own_secret_only(
        self, fleet: AttackedFleet, holders: dict[str, str], holder: str
    ) -> None:
        thief = {**holders, "worker-2": fleet.secret_of("worker-2"), "admin": fleet.admin_key}[holder]
        assert refused(fleet, OF_WORKERS, thief) == []
        assert fleet.node(fleet.victim())["status"] == "healthy"

    def test_a_stranger_under_its_name_is_another_pending_node(self, fleet: AttackedFleet) -> None:
        body = {"name": "worker-1", "address": "127.0.0.1:9", "token": fleet.registration_token}
        reply = fleet.call("POST", "/api/node/register", body, key=fleet.registration_token)
        assert (reply.status, reply.json()["status"]) == (201, "pending")
        assert reply.json()["id"] != fleet.victim("worker-2")
        assert "nats_jwt" not in reply.json()
        kinds = [event["kind"] for event in fleet.good("GET", "/api/v1/events?limit=5")]
        assert "node.impersonation" in kinds
        fleet.admin("DELETE", f"/api/v1/nodes/{reply.json()['id']}")

    def test_no_registration_takes_a_nodes_id(self, fleet: AttackedFleet) -> None:
        mine = fleet.register("thief", id=fleet.victim())
        assert mine.id != fleet.victim()
        fleet.remove(mine)

    def test_a_node_that_is_removed_speaks_for_nobody(self, fleet: AttackedFleet) -> None:
        node = fleet.register("stolen")
        fleet.good("POST", f"/api/v1/nodes/{node.id}/approve")
        beat = f"/api/node/{node.id}/heartbeat"
        assert fleet.call("POST", beat, {}, key=node.secret).status == 200
        fleet.remove(node)
        assert fleet.call("POST", beat, {}, key=node.secret).status in (401, 404)
        again = fleet.register_again(node).json()
        assert (again["status"], again["id"] == node.id) == ("pending", False)
        fleet.admin("DELETE", f"/api/v1/nodes/{again['id']}")


class TestThePending:
    def test_registration_opens_nothing_but_a_place_in_the_list(self, fleet: AttackedFleet) -> None:
        node = fleet.register("new here")
        answer = fleet.register_again(node).json()
        assert answer["status"] == "pending"
        assert {"nats_jwt", "nats_user_seed", "api_token"} & answer.keys() == set()
        assert fleet.call("POST", f"/api/node/{node.id}/resume", {}, key=node.secret).status == 200
        assert fleet.node(node.id)["status"] == "pending", "nothing that it says approves it"
        fleet.remove(node)

    def test_waiting_nodes_are_limited(self, fleet: AttackedFleet) -> None:
        token = fleet.registration_token
        crowd = [{"name": f"crowd-{number}", "address": "127.0.0.1:9", "token": token} for number in range(40)]
        replies = [fleet.call("POST", "/api/node/register", body, key=token) for body in crowd]
        assert replies[-1].status == 429
        assert {reply.status for reply in replies} == {201, 429}
        for reply in replies:
            if reply.status == 201:
                fleet.admin("DELETE", f"/api/v1/nodes/{reply.json()['id']}")


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Corral-Node", "X-Forwarded-Host"])
def test_no_header_of_a_stranger_opens_anything(fleet: AttackedFleet, header: str) -> None:
    for url in ("/api/v1/nodes", "/api/v1/gateway/view", "/api/v1/keys"):
        assert ask_http("GET", fleet.url + url, headers={header: "127.0.0.1"}).status == 401


def spellings(path: str) -> list[str]:
    return [path.replace("/api", "//api"), f"/healthz/..{path}", path.replace("a", "%61", 1), path + "/", path.upper()]


@pytest.mark.parametrize("make", spellings("/api/v1/keys"))
def test_no_spelling_of_a_path_goes_around_the_check(fleet: AttackedFleet, make: str) -> None:
    assert ask_http("GET", fleet.url + make).status in (400, 401, 404, 405)


def test_a_revoked_key_opens_nothing_when_that_is_answered(fleet: AttackedFleet) -> None:
    made = fleet.good("POST", "/api/v1/keys", {"name": "lost", "scopes": ["admin"]})
    assert fleet.call("GET", "/api/v1/nodes", key=made["key"]).status == 200
    assert fleet.admin("DELETE", f"/api/v1/keys/{made['id']}").status == 204
    assert refused(fleet, GUARDED[:20], made["key"]) == []
    assert asks_models(fleet, made["key"]) == []


@pytest.mark.parametrize("asked", [["admin"], ["gateway"], ["admin", "inference"]])
def test_no_key_makes_a_greater_one(fleet: AttackedFleet, asked: list[str]) -> None:
    holder: Callable[[str], str] = lambda scope: fleet.new_key(f"small {scope}", scope)  # noqa: E731
    for scope in ("inference", "viewer", "operator", "node", "gateway"):
        body = {"name": "greater", "scopes": asked}
        assert fleet.call("POST", "/api/v1/keys", body, key=holder(scope)).status == 403


class TestJoinCodes:
    def join(self, fleet: AttackedFleet, code: str, secret: str) -> HttpReply:
        hello = {"version": "1", "features": list(FEATURES), "secret": secret, "incarnation": "1"}
        body = {"name": "invited", "address": "127.0.0.1:9", "token": code, "corral": hello}
        return fleet.call("POST", "/api/node/register", body, key=code)

    def test_a_code_lets_one_machine_ask_and_opens_nothing_else(self, fleet: AttackedFleet) -> None:
        code = fleet.good("POST", "/api/v1/invitations", {"expires_in": "1h"})["code"]
        assert refused(fleet, GUARDED, code) == []
        assert refused(fleet, OF_WORKERS, code) == []
        assert asks_models(fleet, code) == []
        first = self.join(fleet, code, new_secret())
        assert (first.status, first.json()["status"], "nats_jwt" in first.json()) == (201, "pending", False)
        assert self.join(fleet, code, new_secret()).status == 401, "a code that somebody read is of no use any more"
        fleet.admin("DELETE", f"/api/v1/nodes/{first.json()['id']}")

    def test_a_revoked_code_admits_nobody(self, fleet: AttackedFleet) -> None:
        made = fleet.good("POST", "/api/v1/invitations", {"expires_in": "1h", "approve": True})
        assert fleet.admin("DELETE", f"/api/v1/invitations/{made['id']}").status == 204
        assert self.join(fleet, made["code"], new_secret()).status == 401

    def test_codes_are_not_guessed(self, fleet: AttackedFleet) -> None:
        """After ten wrong ones the source has to wait, so this comes last."""
        statuses = [self.join(fleet, new_code(), new_secret()).status for _ in range(12)]
        assert set(statuses[:8]) == {401}
        assert statuses[-1] == 429
