"""Requests whose target is a whole URL: only its path and host count, and it opens no more than the path alone."""

from ipaddress import ip_network

import msgspec
import pytest

from tests.kit.gateway import ADMIN_KEY, KEY, GatewayWorld, chat, request, world


async def test_a_model_is_asked_by_a_url_and_its_engine_gets_the_path(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        for url in (
            f"http://127.0.0.1:{gateway.port}/v1/chat/completions?a=1",
            "HTTP://elsewhere/chat/completions?a=1",
        ):
            for _ in range(2):  # the second head is recalled
                await client.send(request(chat(), path=url))
                assert (await client.read_answer()).status == 200

    assert [asked.target for asked in gateway.engine.requests] == ["/v1/chat/completions?a=1"] * 4
    hosts = {asked.header("Host") for asked in gateway.engine.requests}
    assert hosts == {f"127.0.0.1:{gateway.engine.port}"}


async def test_what_the_gateway_answers_itself_is_found_by_a_url(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(method="GET", path="http://there:80/v1/models"))
    assert (answer.status, msgspec.json.decode(answer.body)["object"]) == (200, "list")
    assert (await gateway.ask(request(method="GET", path="https://there/healthz", key=None))).status == 200
    assert gateway.control.passed == []


async def test_control_gets_the_path_and_the_host_of_the_url(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(b"{}", method="PUT", path="http://there:81/api/v1/nodes?x=http://y/"))

    assert answer.status == 200
    [(method, target, headers, body)] = gateway.control.passed
    assert (method, target, body) == ("PUT", "/api/v1/nodes?x=http://y/", b"{}")
    assert headers["Host"] == headers["X-Forwarded-Host"] == "there:81"
    assert headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("url", ["http://there", "http://there?"])
async def test_a_url_without_a_path_means_the_first_page(gateway: GatewayWorld, url: str) -> None:
    assert (await gateway.ask(request(method="GET", path=url))).status == 200

    assert [(method, target) for method, target, _, _ in gateway.control.passed] == [("GET", "/")]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/api/v1/keys",
        "/docs/../api/v1/keys",
        "//docs",
        "/healthz/x",
        "/http://there/healthz",
        "/x@/healthz",
    ],
)
@pytest.mark.parametrize("origin", ["", "http://there", "https://127.0.0.1:1"])
async def test_a_url_needs_the_key_that_its_path_needs(gateway: GatewayWorld, path: str, origin: str) -> None:
    assert (await gateway.ask(request(method="GET", path=origin + path, key=None))).status == 401
    assert gateway.control.passed == []


async def test_pages_without_a_key_and_body_limits_are_found_by_the_path_of_the_url(gateway: GatewayWorld) -> None:
    assert (await gateway.ask(request(method="GET", path="http://there/docs", key=None))).status == 200
    answer = await gateway.ask(request(b"x" * 100_000, path="http://there/api/v1/session", key=None))
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


async def test_the_scheme_of_a_url_tells_nobody_that_the_connection_is_secure(gateway: GatewayWorld) -> None:
    await gateway.ask(request(method="GET", path="https://there/api/v1/nodes", key=ADMIN_KEY))

    assert gateway.control.passed[0][2]["X-Forwarded-Proto"] == "http"


async def test_behind_a_trusted_proxy_its_headers_count_and_not_the_url() -> None:
    async with world(trusted_proxies=(ip_network("127.0.0.0/8"),)) as behind:
        head = b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n"
        await behind.ask(request(method="GET", path="http://203.0.113.9/docs", key=None, head=head))

    headers = behind.control.passed[0][2]
    assert (headers["X-Forwarded-For"], headers["X-Forwarded-Proto"]) == ("192.0.2.1", "https")
    assert headers["Host"] == headers["X-Forwarded-Host"] == "203.0.113.9"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "http://me:secret@there/healthz", 400),
        ("GET", "ftp://there/healthz", 400),
        ("GET", "http:///healthz", 400),
        ("OPTIONS", "*", 400),
        ("CONNECT", "there:443", 400),
        ("CONNECT", "http://there/", 405),
    ],
)
async def test_other_targets_are_refused_with_a_reason_and_the_connection_is_closed(
    gateway: GatewayWorld, method: str, target: str, status: int
) -> None:
    answer = await gateway.ask(request(method=method, path=target))

    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert answer.error["code"] == ("malformed_http" if status == 400 else "method_not_allowed")
    assert "secret" not in answer.error["message"]
