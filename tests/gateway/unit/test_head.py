"""Heads of requests: which fields are passed on, also when they were seen before."""

import pytest

from corral.gateway import head as heads
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


def test_few_and_short_fields_are_remembered_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: set[bytes] = set()
    monkeypatch.setattr(heads, "_passed_on", remembered)

    for number in range(3000):
        read(b"X-Number: %d" % number, b"X-Api-Key: secret", b"Authorization: Bearer secret")
    read(b"X-Long: " + b"x" * 1000)

    assert 0 < len(remembered) <= 1024
    assert all(field.startswith(b"X-Number: ") for field in remembered)
