"""Heads of requests: which fields are passed on, also when they were seen before."""

import pytest

from corral.gateway import head as heads
from corral.gateway.answers import GatewayRefusal
from corral.gateway.head import RequestHead
from corral.gateway.reader import RequestReader


def read(*fields: bytes) -> RequestHead:
    lines = [b"GET /v1/models HTTP/1.1", b"Host: here", *fields, b"", b""]
    return RequestReader().read_head(b"\r\n".join(lines))


def test_a_field_that_was_seen_before_is_passed_on_again() -> None:
    first, second = (read(b"Accept: */*", b"X-Own: 1") for _ in range(2))

    assert first.lines == second.lines == [b"Accept: */*", b"X-Own: 1"]


def test_what_is_meant_for_the_gateway_alone_is_never_passed_on() -> None:
    fields = (
        b"X-Forwarded-For: them",
        b"X_Real: me",
        b"Forwarded: for=them",
        b"TE: trailers",
        b"Authorization: Bearer k",
    )

    assert [read(*fields).lines for _ in range(3)] == [[], [], []]


def test_a_field_that_this_request_calls_its_own_is_dropped_though_others_passed_it_on() -> None:
    assert read(b"X-Hop: 1").lines == [b"X-Hop: 1"]
    assert read(b"X-Hop: 1", b"Connection: x-hop").lines == []
    assert read(b"X-Hop: 1").lines == [b"X-Hop: 1"]


@pytest.mark.parametrize("name", [b"x-API-key", b"xi-Api-Key", b"Api-Key"])
def test_a_key_is_told_from_other_fields_and_stays_for_who_checks_it(name: bytes) -> None:
    head = read(b"Accept: */*", name + b": secret")

    assert head.key == "secret"
    assert head.api_key == b"x-api-key: secret\r\n"
    assert head.lines == [b"Accept: */*"]
    assert not read(b"Accept: */*").api_key
    assert not read(name + b": secret", b"Connection: " + name).api_key


@pytest.mark.parametrize(
    ("sent", "path"), [(b"/v1/models/", b"/v1/models"), (b"/a///?q=/", b"/a"), (b"/", b"/"), (b"///", b"/")]
)
def test_slashes_at_the_end_of_a_path_mean_nothing(sent: bytes, path: bytes) -> None:
    head = RequestReader().read_head(b"GET %b HTTP/1.1\r\nHost: here\r\n\r\n" % sent)

    assert head.path == path


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (b"//v1/models", b"/v1/models"),
        (b"///v1/models//?q=//", b"/v1/models"),
        (b"//docs", b"//docs"),
        (b"//ui/", b"//ui"),
        (b"http://there//v1/models", b"/v1/models"),
        (b"/a//b", b"/a//b"),
    ],
)
def test_slashes_at_the_start_of_a_path_of_openais_are_one(sent: bytes, path: bytes) -> None:
    """Clients join a base URL that ends with a slash and a path."""
    head = RequestReader().read_head(b"GET %b HTTP/1.1\r\nHost: here\r\n\r\n" % sent)

    assert head.path == path


@pytest.mark.parametrize(
    ("target", "host", "path", "query"),
    [
        (b"http://there:8080/v1/models?a=/&b=?", b"there:8080", b"/v1/models", b"a=/&b=?"),
        (b"HTTPS://There/v1/models/", b"There", b"/v1/models", b""),
        (b"http://there", b"there", b"/", b""),
        (b"http://there/", b"there", b"/", b""),
        (b"http://there?q=1", b"there", b"/", b"q=1"),
        (b"http://there//a/../b", b"there", b"//a/../b", b""),
        (b"http://there/http://elsewhere/@x", b"there", b"/http://elsewhere/@x", b""),
        (b"http://there:/ui/", b"there:", b"/ui/", b""),
        (b"http://http://b/ui", b"http:", b"//b/ui", b""),
        (b"http://192.0.2.1:65535/x", b"192.0.2.1:65535", b"/x", b""),
        (b"http://[2001:db8::1]:80/x", b"[2001:db8::1]:80", b"/x", b""),
        (b"http://[::1]/x", b"[::1]", b"/x", b""),
        (b"http://a_b-c.~%41/x", b"a_b-c.~%41", b"/x", b""),
    ],
)
def test_a_target_with_a_host_is_read_as_its_path_and_the_host_counts(
    target: bytes, host: bytes, path: bytes, query: bytes
) -> None:
    head = RequestReader().read_head(b"GET %b HTTP/1.1\r\nHost: here\r\n\r\n" % target)

    assert (head.host, head.path, head.query) == (host, path, query)


@pytest.mark.parametrize("fields", [b"", b"Host: a\r\nHost: a\r\n", b"Host: a b\r\n"], ids=["none", "two", "malformed"])
def test_a_target_with_a_host_does_not_replace_a_valid_host_header(fields: bytes) -> None:
    with pytest.raises(GatewayRefusal, match="the Host header is"):
        RequestReader().read_head(b"GET http://there/ HTTP/1.1\r\n%b\r\n" % fields)


def test_a_target_with_a_host_needs_no_host_header_in_http_1_0() -> None:
    assert RequestReader().read_head(b"GET http://there/ HTTP/1.0\r\n\r\n").host == b"there"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (b"*", "the request line needs a method, a path or an http URL, and HTTP/1.1"),
        (b"ftp://there/", "the request line needs a method, a path or an http URL, and HTTP/1.1"),
        (b"http://me:secret@there/", "the URL of the request line must not name a user"),
        (b"http:///x", "the host in the URL of the request line is malformed"),
        (b"http://there:65536/", "the host in the URL of the request line is malformed"),
    ],
)
def test_a_target_that_cannot_be_used_is_explained(target: bytes, why: str) -> None:
    with pytest.raises(GatewayRefusal) as refused:
        RequestReader().read_head(b"OPTIONS %b HTTP/1.1\r\nHost: here\r\n\r\n" % target)

    assert str(refused.value) == f"this is not a well-formed HTTP request: {why}"


def test_few_and_short_fields_are_remembered_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: set[bytes] = set()
    monkeypatch.setattr(heads, "_passed_on", remembered)

    for number in range(3000):
        read(b"X-Number: %d" % number, b"X-Api-Key: secret", b"Authorization: Bearer secret")
    read(b"X-Long: " + b"x" * 1000)

    assert 0 < len(remembered) <= 1024
    assert all(field.startswith(b"X-Number: ") for field in remembered)
