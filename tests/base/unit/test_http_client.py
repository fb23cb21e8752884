"""Asking over HTTP: what is sent, how much is taken, and what is told when it fails."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from corral.base.errors import NotFound
from corral.base.http_client import (
    HttpFailed,
    HttpFault,
    asked,
    failures_of,
    host_of,
    is_passing,
    open_session,
    read_body,
    stranger_connector,
)

SECRET_URL = "http://user:hidden@host.example:81/path?token=hidden"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session(connect_timeout=timedelta(seconds=5), timeout=timedelta(seconds=30)) as opened:
        yield opened


async def fault_of(session: aiohttp.ClientSession, url: str, *, most: int = 1000, redirects: int = 0) -> HttpFailed:
    with pytest.raises(HttpFailed) as caught:
        async with asked(session, "GET", url, headers={}, redirects=redirects) as response:
            await read_body(response, most)
    return caught.value


async def test_a_request_says_who_asks_and_brings_the_whole_answer(session: aiohttp.ClientSession) -> None:
    async def echo(request: web.BaseRequest) -> web.Response:
        said = [request.headers.get(name) for name in ("User-Agent", "Accept-Encoding", "X-Mine", "Cookie")]
        return web.Response(status=418, text=f"{said} {await request.text()}", headers={"Set-Cookie": "a=b"})

    async with RawTestServer(echo) as server:
        for _ in range(2):
            async with asked(
                session, "POST", str(server.make_url("/")), headers={"X-Mine": "1"}, data=b"body"
            ) as response:
                body = (await read_body(response, 1000)).decode()

    assert response.status == 418
    assert body.startswith("['Corral/")
    assert body.endswith("'identity', '1', None] body")


@pytest.mark.parametrize("is_announced", [True, False])
async def test_an_endless_answer_is_cut_off(session: aiohttp.ClientSession, is_announced: bool) -> None:
    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(10**9)} if is_announced else {})
        await response.prepare(request)
        while True:
            await response.write(b"#" * 65536)

    async with RawTestServer(endless) as server:
        error = await fault_of(session, str(server.make_url("/")))

    assert (error.fault, error.reason) == (HttpFault.TOO_LARGE, "the answer has more than 1000 bytes")


async def test_the_largest_answer_that_is_allowed_is_taken(session: aiohttp.ClientSession) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x" * 1000)

    async with (
        RawTestServer(answer) as server,
        asked(session, "GET", str(server.make_url("/")), headers={}) as response,
    ):
        assert len(await read_body(response, 1000)) == 1000


async def test_a_redirect_is_checked_before_it_is_followed() -> None:
    seen: list[str] = []
    asked_paths: list[str] = []

    async def circle(request: web.BaseRequest) -> web.Response:
        asked_paths.append(request.path)
        return web.Response(status=302, headers={"Location": f"{request.path}x"})

    async def check(url: str) -> None:
        seen.append(url.rpartition("/")[2])
        if url.endswith("axx"):
            raise NotFound("not there")

    async with (
        open_session(connect_timeout=timedelta(seconds=5), check_redirect=check) as session,
        RawTestServer(circle) as server,
    ):
        with pytest.raises(NotFound):
            async with asked(session, "GET", str(server.make_url("/a")), headers={}, redirects=5):
                pass
    assert seen == ["ax", "axx"]
    assert asked_paths == ["/a", "/ax"]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::ffff:0.0.0.0]"])
@pytest.mark.parametrize("is_redirected", [False, True])
async def test_nobody_is_sent_to_an_address_that_no_host_of_others_may_have(host: str, is_redirected: bool) -> None:
    """The check is made where the connection is: this machine answers at both addresses, and link-local ones have no
    machine to test with."""
    asked_paths = []

    async def onward(request: web.BaseRequest) -> web.Response:
        asked_paths.append(request.path)
        return web.Response(status=302, headers={"Location": f"http://{host}:{server.port}/inside"})

    waiting = timedelta(seconds=5)
    async with (
        RawTestServer(onward) as server,
        open_session(connect_timeout=waiting, connector=stranger_connector()) as session,
    ):
        url = str(server.make_url("/")) if is_redirected else f"http://{host}:{server.port}/inside"
        failed = await fault_of(session, url, redirects=3)

    assert (failed.fault, "which no single machine has" in failed.reason) == (HttpFault.UNREACHABLE, True)
    assert asked_paths == ["/"] * is_redirected


async def test_redirects_are_answers_unless_some_are_allowed(session: aiohttp.ClientSession) -> None:
    async def moved(request: web.BaseRequest) -> web.StreamResponse:
        raise web.HTTPFound(str(request.url))

    async with RawTestServer(moved) as server:
        url = str(server.make_url("/"))
        async with asked(session, "GET", url, headers={}) as response:
            assert response.status == 302
        assert (await fault_of(session, url, redirects=3)).fault is HttpFault.REDIRECTS


async def test_an_answer_that_breaks_off_and_none_at_all_are_told_apart(session: aiohttp.ClientSession) -> None:
    async def cut(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        if request.path == "/within":
            await response.prepare(request)
            await response.write(b"x")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with RawTestServer(cut) as server:
        within = await fault_of(session, str(server.make_url("/within")))
        before = await fault_of(session, str(server.make_url("/before")))

    assert (within.fault, before.fault) == (HttpFault.BROKE_OFF, HttpFault.DISCONNECTED)
    assert within.reason == before.reason == "the connection broke off"


async def test_a_port_where_nobody_listens_and_a_name_that_is_none(session: aiohttp.ClientSession) -> None:
    refused = await fault_of(session, "http://127.0.0.1:1/x")
    unknown = await fault_of(session, "http://no-such-host.invalid/x")

    assert (refused.fault, refused.message) == (HttpFault.UNREACHABLE, "127.0.0.1:1: connection refused")
    assert unknown.fault is HttpFault.UNREACHABLE


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999/", "no url"])
async def test_what_is_no_url_is_told(session: aiohttp.ClientSession, url: str) -> None:
    assert (await fault_of(session, url)).fault in (HttpFault.INVALID_URL, HttpFault.NOT_HTTP)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (TimeoutError(), HttpFault.TIMEOUT),
        (aiohttp.ServerTimeoutError(SECRET_URL), HttpFault.TIMEOUT),
        (ssl.SSLCertVerificationError("hidden"), HttpFault.CERTIFICATE),
        (ssl.SSLError("hidden"), HttpFault.UNREACHABLE),
        (aiohttp.ClientPayloadError("hidden"), HttpFault.BROKE_OFF),
        (ConnectionResetError("hidden"), HttpFault.DISCONNECTED),
        (aiohttp.InvalidURL(SECRET_URL), HttpFault.INVALID_URL),
        (ValueError(SECRET_URL), HttpFault.NOT_HTTP),
        (aiohttp.ClientError(SECRET_URL), HttpFault.NOT_HTTP),
    ],
)
def test_no_failure_tells_what_may_be_secret(error: Exception, fault: HttpFault) -> None:
    with pytest.raises(HttpFailed) as caught, failures_of(SECRET_URL):
        raise error

    assert caught.value.fault is fault
    assert caught.value.message.startswith("host.example:81: ")
    assert "hidden" not in caught.value.message


async def test_an_own_error_and_a_cancellation_pass() -> None:
    with pytest.raises(asyncio.CancelledError), failures_of(SECRET_URL):
        raise asyncio.CancelledError
    with pytest.raises(LookupError), failures_of(SECRET_URL):
        raise LookupError


def test_a_host_is_shown_without_anything_that_may_be_secret() -> None:
    assert host_of(SECRET_URL) == "host.example:81"
    assert host_of("http://[::1") == "a URL that cannot be read"


@pytest.mark.parametrize(("status", "is_worth_it"), [(429, True), (408, True), (500, True), (404, False), (200, False)])
def test_a_status_tells_whether_it_may_pass(status: int, is_worth_it: bool) -> None:
    assert is_passing(status) is is_worth_it
