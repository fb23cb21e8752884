"""Heads that come again on a connection are known again; whatever differs in more than its length is read anew."""

import sys

import pytest

from corral.gateway.answers import GatewayRefusal
from corral.gateway.head import RequestHead
from corral.gateway.reader import RequestReader

FIELDS = (b"Host: here", b"Authorization: Bearer k", b"X-Own: 1")


def raw(length: bytes, *fields: bytes, line: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([line, *(fields or FIELDS), b"content-length: " + length, b"Accept: */*", b"", b""])


def read(reader: RequestReader, head: bytes, body: bytes = b"") -> tuple[RequestHead, bytes]:
    found = reader.read_head(head)
    for at in range(len(body)):
        assert not reader.is_complete
        reader.feed(body[at : at + 1])
    assert reader.is_complete
    return found, reader.take_body()


def test_a_head_that_differs_only_in_its_length_is_known_again() -> None:
    reader = RequestReader()
    first, _ = read(reader, raw(b"3"), b"abc")

    for body in (b"abcdefghijkl", b"", b"x"):
        again, got = read(reader, raw(b"%d" % len(body)), body)
        assert again is first
        assert (again.length, got, again.key, again.lines) == (len(body), body, "k", [b"X-Own: 1", b"Accept: */*"])


def test_a_head_that_differs_in_anything_else_is_read_anew() -> None:
    reader = RequestReader()
    first, _ = read(reader, raw(b"3"), b"abc")
    other, _ = read(reader, raw(b"3", b"Host: here", b"Authorization: Bearer l", b"X-Own: 1"), b"abc")

    assert other is not first
    assert other.key == "l"
    assert read(reader, raw(b"3"), b"abc")[0].key == "k"


@pytest.mark.parametrize(
    "length",
    [b"", b"+3", b"-3", b"3 3", b"3, 3", b"0x3", b"3_0", b"3\n", b"9" * 21, b"\xb3", b"3\r\nContent-Length: 3"],
)
def test_a_known_head_with_an_unclear_length_is_refused(length: bytes) -> None:
    reader = RequestReader()
    read(reader, raw(b"3"), b"abc")

    with pytest.raises(GatewayRefusal):
        reader.read_head(raw(length))


@pytest.mark.parametrize(
    "fields",
    [
        (*FIELDS, b"Connection: close"),
        (*FIELDS, b"Connection: upgrade", b"Upgrade: websocket"),
        (*FIELDS, b"X-Long: " + b"x" * 3000),
    ],
)
def test_what_ends_a_connection_or_is_long_is_not_kept(fields: tuple[bytes, ...]) -> None:
    reader = RequestReader()
    reader.read_head(raw(b"0", *fields))

    assert reader._last_head is None


def test_chunks_after_a_known_head_are_read_by_the_parser() -> None:
    reader = RequestReader()
    read(reader, raw(b"3"), b"abc")
    read(reader, raw(b"2"), b"de")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"

    found, body = read(reader, head, b"3\r\nabc\r\n0\r\n\r\n")

    assert found.is_chunked
    assert body == b"abc"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_body_in_tiny_pieces_takes_little_more_memory_than_its_bytes(at_once: bool) -> None:
    """Whoever sends it decides how small its chunks are."""
    count = 50_000
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader = RequestReader()
    reader.read_head(head)
    for data in [b"2\r\nab\r\n" * count] if at_once else [b"2\r\nab\r\n"] * count:
        reader.feed(data)

    held = sys.getsizeof(reader.body) + sum(map(sys.getsizeof, reader.body))
    assert held < 3 * reader.body_size
    reader.feed(b"0\r\n\r\n")
    body = reader.take_body()
    assert (body == b"ab" * count, type(body)) == (True, bytes)
