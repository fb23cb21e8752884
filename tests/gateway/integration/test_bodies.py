"""Bodies that are not plain JSON: compressed ones, and such with a byte-order mark."""

import asyncio
import gzip
import zlib

import pytest

from corral.gateway.config import Limits
from tests.kit.engine import EngineConnection, EngineRequest, answering
from tests.kit.gateway import GatewayWorld, chat, request, world

GZIP = b"Content-Encoding: gzip\r\n"


@pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"x-gzip"])
@pytest.mark.parametrize("size", [5, 3_000_000])
async def test_a_gzip_body_reaches_the_engine_inflated(gateway: GatewayWorld, encoding: bytes, size: int) -> None:
    gateway.engine.behave = answering
    body = chat(text="a" * size)
    async with gateway.client() as client:
        for _ in range(2):
            await client.send(request(gzip.compress(body), head=b"Content-Encoding: " + encoding + b"\r\n"))
            assert (await client.read_answer()).status == 200
        await client.send(request(body))  # and the next one as it is
        assert (await client.read_answer()).status == 200
    for got in gateway.engine.requests:
        assert (got.body == body, got.header("content-encoding")) == (True, None)
        assert got.header("content-length") == str(len(body))
    await gateway.until_quiet()


async def test_a_gzip_body_may_come_in_chunks_and_in_several_members(gateway: GatewayWorld) -> None:
    body = chat()
    sent = gzip.compress(body[:9]) + bytes(3) + gzip.compress(body[9:]) + bytes(8)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent), sent)

    answer = await gateway.ask(request(None, head=GZIP + b"Transfer-Encoding: chunked\r\n") + chunks)

    assert answer.status == 200
    assert gateway.engine.requests[0].body == body


@pytest.mark.parametrize("size", [2000, 50_000_000])
async def test_what_a_body_becomes_is_bounded(size: int) -> None:
    async with world(limits=Limits(body=1_000_000 if size > 1_000_000 else 1000)) as gateway:
        answer = await gateway.ask(request(gzip.compress(chat(text="a" * size)), head=GZIP))

        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert "once it is inflated; the setting gateway.max_request" in str(answer.error["message"])
        assert not gateway.engine.requests
        await gateway.until_quiet()


async def test_an_inflated_body_counts_with_all_others() -> None:
    async with world(limits=Limits(bodies=1_000_000)) as gateway:
        answer = await gateway.ask(request(gzip.compress(chat(text="a" * 2_000_000)), head=GZIP))

        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        await gateway.until_quiet()


async def test_a_full_queue_is_told_after_a_large_body_was_inflated() -> None:
    never = asyncio.Event()

    async def hang(_: EngineRequest, __: EngineConnection) -> bool:
        return await never.wait()

    async with world(limits=Limits(queue=0), limit=1) as gateway:
        gateway.engine.behave = hang
        async with gateway.client() as first:
            await first.send(request(chat()))
            await gateway.until(lambda: bool(gateway.engine.requests))
            answer = await gateway.ask(request(gzip.compress(chat(text="a" * 3_000_000)), head=GZIP))
            assert (answer.status, answer.error["code"]) == (429, "queue_full")
        await gateway.until_quiet()


async def test_a_body_of_very_many_members_is_refused(gateway: GatewayWorld) -> None:
    """Beginning a member costs time however little is in it."""
    answer = await gateway.ask(request(gzip.compress(b"") * 100_000, head=GZIP))

    assert (answer.status, answer.error["code"]) == (400, "invalid_gzip")
    assert "members" in str(answer.error["message"])
    await gateway.until_quiet()


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", gzip.compress(b"{}" * 100)[:-5], gzip.compress(b"{}") + b"more", zlib.compress(chat())],
    ids=["empty", "plain", "cut", "tail", "zlib"],
)
async def test_what_is_no_gzip_is_called_so(gateway: GatewayWorld, body: bytes) -> None:
    answer = await gateway.ask(request(body, head=GZIP))

    assert (answer.status, answer.error["code"]) == (400, "invalid_gzip")
    await gateway.until_quiet()


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"deflate", b"gzip, gzip"])
async def test_other_encodings_are_refused_by_name_before_the_body(gateway: GatewayWorld, encoding: bytes) -> None:
    head = b"Content-Length: 100\r\nContent-Encoding: %b\r\n" % encoding
    answer = await gateway.ask(request(None, head=head))

    assert (answer.status, answer.error["code"]) == (415, "unsupported_content_encoding")
    assert encoding.decode() in str(answer.error["message"])
    assert answer.headers["accept-encoding"] == "gzip"


async def test_a_client_that_leaves_while_its_body_is_inflated_leaves_nothing(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        await client.send(request(gzip.compress(chat(text="a" * 20_000_000)), head=GZIP))
    await gateway.until_quiet()
    await gateway.until(lambda: not gateway.gateway.services.tally.open_connections)


async def test_a_byte_order_mark_is_skipped(gateway: GatewayWorld) -> None:
    body = chat()
    assert (await gateway.ask(request(b"\xef\xbb\xbf" + body))).status == 200
    assert (await gateway.ask(request(gzip.compress(b"\xef\xbb\xbf" + body), head=GZIP))).status == 200
    assert [got.body for got in gateway.engine.requests] == [body, body]


async def test_compressed_bodies_for_control_pass_as_they_are(gateway: GatewayWorld) -> None:
    sent = gzip.compress(b"{}")
    assert (await gateway.ask(request(sent, path="/api/v1/something", head=GZIP))).status == 200
    [(_, _, headers, _)] = gateway.control.passed
    assert (headers["Content-Encoding"], headers["Content-Length"]) == ("gzip", str(len(sent)))
