"""Who may call what: every route, with a key of every scope, over a real HTTP server of control.

What is expected is the table of permissions, so the page that is generated of it says the truth.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import msgspec
import pytest

from corral.base.tasks import running
from corral.frontend.access.decide import permits
from corral.frontend.api.description import all_codes
from corral.frontend.api.route import Access, RouteSpec
from corral.frontend.app import AdminServer, bind
from corral.frontend.routes import ROUTES
from corral.wire.keys import ROLES, Scope
from tests.kit.frontend import Frontend

PASSWORD = "correct horse battery"
LOG_OUT = next(route for route in ROUTES if (route.method, route.path) == ("DELETE", "/api/v1/login"))


@dataclass(frozen=True, slots=True)
class ServedControl:
    session: aiohttp.ClientSession
    url: str
    keys: dict[Scope, str]
    """One of each scope; those of people come from logins of users of that role."""

    async def call(self, route: RouteSpec, key: str) -> tuple[int, str]:
        """Status and text of the answer; of a stream, which would not end, only its status."""
        path = re.sub(r"\{\w+(?::\w+)?\}", "x", route.path)
        body = None if route.method == "GET" else b"{}"
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        async with (
            asyncio.timeout(30),
            self.session.request(route.method, self.url + path, data=body, headers=headers) as answer,
        ):
            is_stream = answer.content_type in ("text/event-stream", "application/x-ndjson")
            return answer.status, "" if is_stream else (await answer.read()).decode()


@pytest.fixture
async def control(frontend: Frontend) -> AsyncIterator[ServedControl]:
    context = frontend.control.context
    for role in ROLES:
        await context.access.users.create(f"a-{role}", role, PASSWORD, by="test")
    server = AdminServer(frontend.app, bind("127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.port}"
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        running(server.run(ending=context.stopping.set), name="control"),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        keys = {}
        for role in ROLES:
            login = msgspec.json.encode({"name": f"a-{role}", "password": PASSWORD})
            async with session.post(f"{url}/api/v1/login", data=login) as answer:
                keys[role] = (await answer.json())["key"]
        for scope in (Scope.NODE, Scope.GATEWAY):
            keys[scope] = (await context.access.key_ring.create(scope, [scope], by="test", lifetime=None)).key
        yield ServedControl(session, url, keys)


async def test_every_route_admits_exactly_the_scopes_that_have_its_permission(control: ServedControl) -> None:
    wrong = []
    for route in ROUTES:
        if route.permission is None or route is LOG_OUT:
            continue
        for scope, key in control.keys.items():
            status, text = await control.call(route, key)
            if permits([scope], route.permission):
                is_right = status in all_codes(route) and status not in (401, 403)
            else:
                is_right = status == 403 and f"the permission {route.permission}," in text
            if not is_right:
                wrong.append((scope.value, route.method, route.path, status, text[:200]))
    assert wrong == []


async def test_keys_of_people_open_no_route_of_workers(control: ServedControl) -> None:
    for route in ROUTES:
        if route.access is Access.WORKER:
            statuses = {(await control.call(route, control.keys[role]))[0] for role in ROLES}
            assert statuses <= {400, 401, 404}, route.path


async def test_public_routes_take_no_notice_of_keys(control: ServedControl) -> None:
    for route in ROUTES:
        if route.access is Access.PUBLIC:
            statuses = {(await control.call(route, key))[0] for key in (*control.keys.values(), "wrong")}
            assert len(statuses) == 1, route.path
            assert statuses <= set(all_codes(route)), route.path


async def test_everybody_who_logged_in_may_log_out(control: ServedControl) -> None:
    for role in ROLES:
        assert (await control.call(LOG_OUT, control.keys[role]))[0] == 204
        assert (await control.call(LOG_OUT, control.keys[role]))[0] == 401
    for scope in (Scope.NODE, Scope.GATEWAY):
        assert (await control.call(LOG_OUT, control.keys[scope]))[0] == 403
