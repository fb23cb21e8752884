"""Every route needs its key; keys have scopes, expire and are revoked."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import AsyncAdaptedQueuePool, func, select
from starlette.types import Message

from corral.base.errors import AccessDenied
from corral.base.ids import NodeId
from corral.base.logs import record_fields
from corral.bus.port import Bus
from corral.frontend.api.route import Access
from corral.frontend.nodes.decide.liveness import Heartbeat
from corral.frontend.nodes.decide.node import Node
from corral.frontend.routes import ROUTES
from corral.frontend.store.db import Database
from corral.frontend.store.schema import metadata
from corral.frontend.store.secrets import SecretsKey
from corral.wire.keys import hash_secret
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.databases import DatabaseSource
from tests.kit.frontend import REGISTRATION_TOKEN, Frontend, frontend_config, open_frontend
from tests.kit.world import view_of

shares_a_frontend = pytest.mark.asyncio(loop_scope="module")
"""For tests that change nothing: they run in the loop of the frontend that they share."""
_COUNTS = select(*(select(func.count()).select_from(table).scalar_subquery() for table in metadata.sorted_tables))
"""How many rows each table has. Every change of ours is an event, too: one that keeps the numbers adds one there."""
PAGES = {"/", "/docs", "/openapi.json", "/ui", "/ui/{path:path}"}
PUBLIC = {"/healthz", "/readyz", "/api/v1/ready", "/api/v1/fleet", *PAGES}
LOGINS = {"/api/v1/login", "/api/v1/login/password", "/api/v1/session"}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
async def lasting_frontend(
    request: pytest.FixtureRequest, database_source: DatabaseSource, module_folder: Path
) -> AsyncIterator[Frontend]:
    config, key = frontend_config(module_folder), SecretsKey.generate()
    async with (
        database_source.fresh_database(request.param) as database,
        MemoryBus(MemoryServer()) as bus,
        open_frontend(database, ManualClock(), bus, config, key=key) as opened,
    ):
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def shared(lasting_frontend: Frontend) -> AsyncIterator[Frontend]:
    """A frontend that was started once. After each test its rows and tasks must be those from before."""
    database = lasting_frontend.control.context.database

    async def state() -> tuple[object, object]:
        async with database.look() as connection:
            rows = (await connection.execute(_COUNTS)).one()
        return rows, asyncio.all_tasks() - {asyncio.current_task()}

    before = await state()
    yield lasting_frontend
    assert await state() == before
    for engine in database.engines:
        assert isinstance(engine.pool, AsyncAdaptedQueuePool)
        assert engine.pool.checkedout() == 0


async def new_key(frontend: Frontend, *scopes: str, expires_in: str = "") -> dict[str, Any]:
    answer = await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": scopes, "expires_in": expires_in})
    assert answer.status == 201, answer.body
    document: Any = answer.json()
    return dict(document)


def test_only_health_static_pages_and_logins_are_public() -> None:
    public = [route for route in ROUTES if route.access is Access.PUBLIC]
    assert {route.path for route in public if route.method == "GET"} == PUBLIC
    assert {route.path for route in public if route.method != "GET"} == LOGINS


@shares_a_frontend
@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.access is not Access.PUBLIC], ids=lambda r: f"{r.method} {r.path}"
)
@pytest.mark.parametrize("key", ["", "corral_wrong"])
async def test_no_route_answers_without_a_valid_key(shared: Frontend, route: Any, key: str) -> None:
    url = route.path.replace("{id}", "x").replace("{key:path}", "x")
    assert (await shared.call(route.method, url, {}, key=key)).status == 401


@shares_a_frontend
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_every_answer_of_a_page_forbids_frames_guessed_types_and_referrers(
    shared: Frontend, method: str, path: str
) -> None:
    answer = await shared.call(method, path, key="")
    assert answer.status == (405 if method == "POST" else 200)
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@shares_a_frontend
@pytest.mark.parametrize("path", ["/healthz", "/no/route", "/api/nodes"])
async def test_every_answer_is_named_as_its_request_or_anew(shared: Frontend, path: str) -> None:
    named = await shared.call("GET", path, x_request_id="mine")
    first, second = [await shared.call("GET", path, x_request_id="not fit") for _ in range(2)]
    assert named.headers["x-request-id"] == "mine"
    assert first.headers["x-request-id"].startswith("req-")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


@shares_a_frontend
async def test_lines_of_the_log_name_the_request(shared: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, object]] = []

    def noted(record: logging.LogRecord) -> None:
        lines.append(record_fields(record))

    async def failing(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    handler = logging.Handler()
    monkeypatch.setattr(handler, "handle", noted)
    logger = logging.getLogger("corral.frontend.app")
    logger.addHandler(handler)
    monkeypatch.setattr(type(shared.control.context.access.key_ring), "list", failing)
    try:
        with pytest.raises(RuntimeError):  # which the server would log as well
            await shared.call("GET", "/api/v1/keys", x_request_id="mine")
    finally:
        logger.removeHandler(handler)
    assert [(line["event"], line["request_id"]) for line in lines] == [("request.failed", "mine")]


@shares_a_frontend
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/node/register"), ("POST", "/api/v1/keys"), ("PUT", "/api/nodes/x/labels")]
)
async def test_a_body_is_not_read_before_its_sender_is_known(shared: Frontend, method: str, path: str) -> None:
    async def receive() -> Message:
        raise AssertionError("the body is read")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer wrong"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    await shared.app(scope, receive, send)
    assert sent[0]["status"] == 401


class Nobody:
    """A claim that fits no node."""

    async def fits(self, node: Node) -> bool:
        return False

    async def may_ask(self) -> bool:
        return False


@shares_a_frontend
async def test_a_heartbeat_is_not_read_before_its_sender_is_known(shared: Frontend) -> None:
    def read() -> Heartbeat:
        raise AssertionError("the heartbeat is read")

    with pytest.raises(AccessDenied):
        await shared.control.context.nodes.heartbeats.beat(NodeId("x"), Nobody(), read)


@pytest.mark.parametrize("scope", ["inference", "node", "gateway"])
async def test_other_scopes_do_not_administer(frontend: Frontend, scope: str) -> None:
    key = (await new_key(frontend, scope))["key"]
    answer = await frontend.call("GET", "/api/nodes", key=key)
    document: Any = answer.json()
    assert (answer.status, document["error"]["type"]) == (403, "authorization_error")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/operations", {"verb": "install", "uri": "oci://127.0.0.1:9/evil", "name": "evil"}),
        ("POST", "/api/v1/operations", {"verb": "install", "backend": "x", "galleries": "[]"}),
        ("POST", "/api/v1/operations/plan", {"verb": "install", "uri": "oci://127.0.0.1:9/evil", "name": "evil"}),
        (
            "PUT",
            "/api/v1/fleet-rules",
            {"rules": [{"name": "evil", "backend": "evil", "uri": "oci://127.0.0.1:9/evil"}]},
        ),
        (
            "POST",
            "/api/v1/fleet-rules/plan",
            {"rules": [{"name": "evil", "backend": "evil", "uri": "oci://127.0.0.1:9/evil"}]},
        ),
        ("POST", "/api/nodes/x/backends/install", {"uri": "oci://127.0.0.1:9/evil", "name": "evil"}),
        ("POST", "/api/nodes/x/backends/install", {"backend": "x", "backend_galleries": "[]"}),
        ("POST", "/api/backends/install-external", {"uri": "oci://127.0.0.1:9/evil", "name": "evil"}),
    ],
)
async def test_operators_install_no_code_from_elsewhere(
    frontend: Frontend, method: str, path: str, body: dict[str, object]
) -> None:
    key = (await new_key(frontend, "operator"))["key"]
    refused = await frontend.call(method, path, body, key=key, if_match="*")
    assert (refused.status, b"backends.trust" in refused.body) == (403, True)
    assert (await frontend.call(method, path, body, if_match="*")).status != 403


async def test_a_key_that_is_set_administers_and_asks_models_but_admits_no_worker(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = replace(frontend_config(tmp_path), admin_keys=("hidden-1", "hidden-2"))
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        for key, status in (("hidden-1", 200), ("hidden-2", 200), ("hidden-1,hidden-2", 401), ("hidden", 401)):
            assert (await opened.call("GET", "/api/nodes", key=key)).status == status
        assert (await opened.register({"name": "w", "address": "a:1"}, token="hidden-1")).status == 401
        shown = {entry.hash: entry.scopes for entry in (await view_of(opened.control)).keys.values()}
        assert (shown[hash_secret("hidden-1")], shown[hash_secret("hidden-2")]) == (("admin",), ("admin",))
        assert "hidden" not in repr(opened.control.context.config)


async def test_a_node_key_admits_a_worker_as_pending(frontend: Frontend) -> None:
    key = (await new_key(frontend, "node"))["key"]
    document: Any = (await frontend.register({"name": "w", "address": "a:1"}, token=key)).json()
    assert document["status"] == "pending"


@shares_a_frontend
async def test_an_administrator_s_key_is_not_a_registration_token(shared: Frontend) -> None:
    answer = await shared.register({"name": "w", "address": "a:1"}, token=shared.admin_key)
    assert answer.status == 401


@shares_a_frontend
@pytest.mark.parametrize("header", ["x_api_key", "xi_api_key"])
async def test_keys_are_also_taken_from_the_headers_of_other_clients(shared: Frontend, header: str) -> None:
    answer = await shared.call("GET", "/api/v1/version", key="", **{header: shared.admin_key})
    assert answer.status == 200


async def test_a_key_ends_at_its_expiry(frontend: Frontend, clock: ManualClock) -> None:
    key = (await new_key(frontend, "admin", expires_in="1h"))["key"]
    assert (await frontend.call("GET", "/api/nodes", key=key)).status == 200
    await clock.advance(timedelta(hours=1))
    assert (await frontend.call("GET", "/api/nodes", key=key)).status == 401


async def test_the_last_administrator_key_is_revoked_only_after_another_was_made(frontend: Frontend) -> None:
    listed: Any = (await frontend.call("GET", "/api/v1/keys")).json()
    (last,) = [key["id"] for key in listed]

    refused = await frontend.call("DELETE", f"/api/v1/keys/{last}")
    assert refused.status == 409
    assert "the last administrator key; make another one first" in refused.body.decode()
    assert (await frontend.call("GET", "/api/nodes")).status == 200

    brief = await new_key(frontend, "admin", expires_in="1h")
    refused = await frontend.call("DELETE", f"/api/v1/keys/{last}", key=brief["key"])
    assert (refused.status, "make another one first that does not expire" in refused.body.decode()) == (409, True)

    other = await new_key(frontend, "admin")
    assert (await frontend.call("DELETE", f"/api/v1/keys/{last}", key=other["key"])).status == 204
    assert (await frontend.call("DELETE", f"/api/v1/keys/{brief['id']}", key=other["key"])).status == 204
    assert (await frontend.call("DELETE", f"/api/v1/keys/{other['id']}", key=other["key"])).status == 409


async def test_a_key_that_is_set_lets_the_last_stored_one_go(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = replace(frontend_config(tmp_path), admin_keys=("static",))
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        listed: Any = (await opened.call("GET", "/api/v1/keys")).json()
        assert (await opened.call("DELETE", f"/api/v1/keys/{listed[0]['id']}", key="static")).status == 204


async def test_a_revoked_key_stops_working_at_once_and_stays_listed(frontend: Frontend) -> None:
    made = await new_key(frontend, "admin")
    assert (await frontend.call("DELETE", f"/api/v1/keys/{made['id']}")).status == 204
    assert (await frontend.call("GET", "/api/nodes", key=made["key"])).status == 401
    assert (await frontend.call("DELETE", f"/api/v1/keys/{made['id']}")).status == 409
    assert (await frontend.call("DELETE", "/api/v1/keys/none")).status == 404
    listed: Any = (await frontend.call("GET", "/api/v1/keys")).json()
    assert {key["id"]: key["state"] for key in listed}[made["id"]] == "revoked"
    assert made["key"].encode() not in (await frontend.call("GET", "/api/v1/keys")).body


@shares_a_frontend
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "", "scopes": ["admin"]}, "name"),
        ({"name": "k" * 129, "scopes": ["admin"]}, "name"),
        ({"name": "a\nb", "scopes": ["admin"]}, "name"),
        ({"name": "k", "scopes": []}, "scopes"),
        ({"name": "k", "scopes": ["root"]}, "scopes"),
        ({"name": "k", "scopes": "admin"}, "scopes"),
        ({"scopes": ["admin"]}, ""),
        ({"name": "k", "scopes": ["admin"], "expires_in": "soon"}, "expires_in"),
        ({"name": "k", "scopes": ["admin"], "expires_in": "0s"}, "expires_in"),
        ({"name": "k", "scopes": ["admin"], "expires_in": "99999d"}, "expires_in"),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused_and_the_field_named(
    shared: Frontend, body: object, field: str
) -> None:
    answer = await shared.call("POST", "/api/v1/keys", body)
    document: Any = answer.json()
    assert (answer.status, document["error"].get("field", "")) == (400, field)


async def test_an_agent_node_gets_an_inference_key_that_goes_with_it(frontend: Frontend) -> None:
    joined: Any = (await frontend.register({"name": "a", "node_type": "agent"})).json()
    assert "api_token" not in joined
    approved: Any = (await frontend.call("POST", f"/api/nodes/{joined['id']}/approve")).json()
    first = approved["api_token"]
    again: Any = (await frontend.register({"name": "a", "node_type": "agent"})).json()
    second = again["api_token"]
    assert (await frontend.call("GET", "/api/nodes", key=first)).status == 401
    assert (await frontend.call("GET", "/api/nodes", key=second)).status == 403

    await frontend.call("DELETE", f"/api/nodes/{joined['id']}")
    assert (await frontend.call("GET", "/api/nodes", key=second)).status == 401


@shares_a_frontend
async def test_metrics_need_a_key_unless_the_setting_opens_them(shared: Frontend) -> None:
    assert (await shared.call("GET", "/metrics", key="")).status == 401
    answer = await shared.call("GET", "/metrics")
    assert b"corral_nodes{status=" in answer.body


@shares_a_frontend
async def test_an_unknown_route_is_a_404_in_json(shared: Frontend) -> None:
    answer = await shared.call("GET", "/api/nope")
    document: Any = answer.json()
    assert answer.status == 404
    assert "GET /api/nope" in document["error"]["message"]
    assert (await shared.call("PUT", "/api/nodes")).status == 405


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/nodes", "GET, HEAD"),
        ("/api/nodes/x", "DELETE, GET, HEAD"),
        ("/api/nodes/x/labels", "GET, HEAD, PATCH, PUT"),
        ("/api/nodes/x/vram-budget", "DELETE, PUT"),
    ],
)
@shares_a_frontend
async def test_a_wrong_method_is_answered_with_all_that_the_path_has(shared: Frontend, path: str, methods: str) -> None:
    answer = await shared.call("POST", path)
    assert (answer.status, answer.headers["allow"]) == (405, methods)


@shares_a_frontend
async def test_the_registration_token_opens_nothing_else(shared: Frontend) -> None:
    for route in ROUTES:
        if route.permission is not None:
            url = route.path.replace("{id}", "x").replace("{key:path}", "x")
            assert (await shared.call(route.method, url, key=REGISTRATION_TOKEN)).status == 401
