"""Sessions of the web page at the gateway: a valid one is a proof beside keys, any other is as good as a wrong key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from corral.gateway.config import Limits
from corral.wire.sessions import SESSION_SCOPE, csrf_of, hash_token, new_token
from corral.wire.view import KeyEntry
from tests.kit.engine import EngineConnection, EngineRequest, json_answer
from tests.kit.gateway import ADMIN_KEY, KEY, GatewayWorld, RawClient, chat, keys, request, world

TOKEN, OTHER, OVER = new_token(), new_token(), new_token()
BODY = b'{"name": "x"}'


def session_entry(token: str, *, expires_at: float | None = None) -> KeyEntry:
    return KeyEntry(hash=hash_token(token), id=token[:6], scopes=(SESSION_SCOPE,), expires_at=expires_at)


def known(*entries: KeyEntry) -> dict[str, KeyEntry]:
    return keys() | {entry.hash: entry for entry in entries}


@asynccontextmanager
async def signed_in(**more: Any) -> AsyncIterator[GatewayWorld]:
    """A gateway that knows two sessions, and one that has expired."""
    async with world(**more) as opened:
        entries = known(session_entry(TOKEN), session_entry(OTHER), session_entry(OVER, expires_at=1.0))
        opened.control.change(keys=entries)
        await opened.until(lambda: opened.gateway.services.directory.find_key(hash_token(TOKEN)) is not None)
        yield opened


def cookie(*tokens: str) -> bytes:
    return b"Cookie: %b\r\n" % "; ".join(f"corral_session={token}" for token in tokens).encode()


def act(head: bytes, *, path: str = "/api/v1/keys", method: str = "POST", body: bytes = BODY) -> bytes:
    return request(body, method=method, path=path, key=None, head=head)


async def test_a_valid_session_reaches_control_with_its_body_its_cookie_and_its_secret() -> None:
    async with signed_in() as gateway:
        sent = cookie(TOKEN) + f"X-Corral-CSRF: {csrf_of(TOKEN)}\r\nOrigin: http://corral.test\r\n".encode()
        assert (await gateway.ask(act(sent))).status == 200
        method, path, headers, body = gateway.control.passed[0]
        assert (method, path, body) == ("POST", "/api/v1/keys", BODY)
        assert headers["Cookie"] == f"corral_session={TOKEN}"
        assert headers["X-Corral-CSRF"] == csrf_of(TOKEN)
        assert (headers["Host"], headers["Origin"]) == ("corral.test", "http://corral.test")
        assert "Authorization" not in headers


async def test_a_session_may_send_what_strangers_may_not() -> None:
    async with signed_in(limits=Limits(source_connections=2)) as gateway, AsyncExitStack() as stack:
        large = act(cookie(TOKEN), body=b"x" * 3_000_000)
        assert (await gateway.ask(large)).status == 200
        stranger = await gateway.ask(act(b"", path="/api/v1/session", body=b"x" * 100_000))
        assert (stranger.status, stranger.error["code"]) == (413, "body_too_large")
        page = await stack.enter_async_context(gateway.client())
        await page.send(act(cookie(TOKEN)))
        assert (await page.read_answer()).status == 200
        for _ in range(4):
            await stack.enter_async_context(gateway.client())
        await gateway.until(lambda: gateway.gateway.services.tally.refusals["connection_evicted"] == 2)
        await page.send(act(cookie(TOKEN)))
        assert (await page.read_answer()).status == 200, "it is no stranger, so it was not closed"


@pytest.mark.parametrize(
    "head",
    [
        cookie(new_token()),
        cookie(OVER),
        cookie("x"),
        cookie(""),
        cookie("A" * 20_000),
        cookie(TOKEN, OTHER),
        cookie(TOKEN) + cookie(OTHER),
        cookie(*(new_token() for _ in range(200))),
        b"Cookie: corral_session=\xff\xfe\r\n",
        cookie(TOKEN) + b"Connection: cookie\r\n",
    ],
    ids=["unknown", "expired", "short", "empty", "huge", "two", "two lines", "many", "bytes", "hop by hop"],
)
async def test_any_other_cookie_is_refused_at_the_head_as_a_session_that_is_over(head: bytes) -> None:
    async with signed_in() as gateway, gateway.client() as client:
        await client.send(act(head)[: -len(BODY)])  # the body is not waited for
        answer = await client.read_answer()
        assert answer.status == 401
        expected = {401, "session_expired"} if b"Connection" in head else {"session_expired"}
        assert answer.error["code"] in expected
        assert gateway.control.passed == []


async def test_the_same_cookie_twice_is_one_and_beside_an_unknown_one_the_valid_counts() -> None:
    async with signed_in() as gateway:
        for head in (cookie(TOKEN, TOKEN), cookie(TOKEN) + cookie(TOKEN), cookie(new_token(), TOKEN)):
            assert (await gateway.ask(act(head))).status == 200


async def test_a_head_full_of_cookies_is_too_large() -> None:
    async with signed_in() as gateway:
        answer = await gateway.ask(act(b"Cookie: a=" + b"x" * 100_000 + b"\r\n"))
        assert (answer.status, answer.error["code"]) == (431, "head_too_large")


async def test_with_a_key_the_cookie_does_not_count() -> None:
    async with signed_in() as gateway:
        path = "/api/v1/nodes"
        good = await gateway.ask(request(method="GET", path=path, key=ADMIN_KEY, head=cookie("x")))
        assert good.status == 200
        wrong = await gateway.ask(request(method="GET", path=path, key="corral_wrong", head=cookie(TOKEN)))
        assert (wrong.status, wrong.error["code"]) == (401, 401)
        named = await gateway.ask(request(method="GET", path=path, key=None, head=cookie(TOKEN) + b"X-Api-Key: no\r\n"))
        assert named.status == 401
        basic = b"Authorization: Basic dTpw\r\n"  # of a proxy in front
        assert (await gateway.ask(request(method="GET", path=path, key=None, head=cookie(TOKEN) + basic))).status == 200


async def test_a_session_asks_no_model_and_its_token_is_no_key() -> None:
    async with signed_in() as gateway:
        by_cookie = await gateway.ask(request(chat(), key=None, head=cookie(TOKEN)))
        assert (by_cookie.status, by_cookie.error["code"]) == (401, "missing_api_key")
        for text in (TOKEN, hash_token(TOKEN)):
            assert (await gateway.ask(request(chat(), key=text))).status == 401
            assert (await gateway.ask(request(method="GET", path="/api/v1/nodes", key=text))).status == 401
        assert (await gateway.ask(request(chat(), key=f"session {TOKEN}"))).status == 403
        assert gateway.engine.requests == []


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_no_replica_sees_cookies_or_the_secret_or_sets_a_cookie(status: int) -> None:
    planted = b"Set-Cookie: corral_session=planted; Path=/\r\nClear-Site-Data: *\r\nX-Model: kept\r\n"

    async def planting(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(json_answer(b'{"error": {"message": "no"}}', status=status, head=planted))
        return True

    async with signed_in() as gateway:
        gateway.engine.behave = planting
        head = cookie(TOKEN) + b"X-Corral-CSRF: secret\r\nX-Mine: kept\r\n"
        answer = await gateway.ask(request(chat(stream=False), head=head))
        assert answer.status == status
        assert answer.headers.get("x-model") == ("kept" if status == 200 else None)  # errors are put in our words
        assert answer.headers.keys().isdisjoint({"set-cookie", "clear-site-data"})
        sent = {name.lower(): value for name, value in gateway.engine.requests[0].headers}
        assert sent.keys().isdisjoint({"cookie", "x-corral-csrf"})
        assert sent["x-mine"] == "kept"


async def test_a_session_that_ends_is_refused_with_the_next_view() -> None:
    async with signed_in() as gateway, gateway.client() as client:
        ask = request(method="GET", path="/api/v1/nodes", key=None, head=cookie(TOKEN))
        await client.send(ask)
        assert (await client.read_answer()).status == 200
        gateway.control.change(keys=known(session_entry(OTHER)))
        await gateway.until(lambda: gateway.gateway.services.directory.find_key(hash_token(TOKEN)) is None)
        await client.send(ask)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (401, "session_expired")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_the_page_is_there_for_everybody_whatever_the_cookie(method: str, version: str) -> None:
    async with signed_in() as gateway:
        for path in ("/ui", "/ui/", "/ui/assets/index-1.js", "/ui/models/org%2Fname", "/"):
            for head in (b"", cookie("x"), cookie(TOKEN)):
                data = request(method=method, path=path, key=None, head=head, version=version)
                assert (await gateway.ask(data, is_head=method == "HEAD")).status == 200
                assert gateway.control.passed.pop()[:2] == (method, path)


async def test_who_signs_in_again_may_have_a_cookie_that_is_over() -> None:
    async with signed_in() as gateway:
        body = msgspec.json.encode({"key": KEY})
        for head in (b"", cookie(OVER), cookie(TOKEN), cookie(TOKEN, OTHER)):
            assert (await gateway.ask(act(head, path="/api/v1/session", body=body))).status == 200
            assert gateway.control.passed.pop()[3] == body


async def test_without_a_view_control_decides_about_small_bodies() -> None:
    async with world() as gateway:
        services = gateway.gateway.services
        services.directory._view = None
        assert (await gateway.ask(act(cookie(TOKEN)))).status == 200
        refused = await gateway.ask(act(cookie(TOKEN), body=b"x" * 2_000_000))
        assert refused.status == 413


async def test_http_1_0_has_sessions_too() -> None:
    async with signed_in() as gateway:
        data = b"POST /api/v1/keys HTTP/1.0\r\nContent-Length: 2\r\n" + cookie(TOKEN) + b"\r\n{}"
        assert (await gateway.ask(data)).status == 200


async def test_many_pages_of_one_address_are_not_limited_once_they_are_signed_in() -> None:
    async with signed_in() as gateway:
        async with gateway.client() as client:
            for _ in range(150):
                await ask_page(client, cookie(TOKEN))
        statuses = [(await gateway.ask(request(method="GET", path="/ui/", key=None))).status for _ in range(400)]
        assert 429 in statuses, "strangers are"
        assert (await gateway.ask(request(method="GET", path="/ui/", key=None, head=cookie(TOKEN)))).status == 200


async def ask_page(client: RawClient, head: bytes) -> None:
    await client.send(request(method="GET", path="/ui/", key=None, head=head))
    async with asyncio.timeout(10):
        assert (await client.read_answer()).status == 200
