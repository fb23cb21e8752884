"""NATS URLs: taken apart, and made fit for logs."""

import pytest

from corral.base.errors import InvalidInput
from corral.bus.config import Endpoint, parse_endpoints, redact_url


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("nats://127.0.0.1:4222", Endpoint(host="127.0.0.1")),
        ("example.org", Endpoint(host="example.org")),
        ("example.org:5222/", Endpoint(host="example.org", port=5222)),
        ("tls://example.org", Endpoint(host="example.org", tls=True)),
        ("nats://[::1]:7", Endpoint(host="::1", port=7)),
        ("nats://user:p%40ss%2Cword@h", Endpoint(host="h", user="user", password="p@ss,word")),
        ("nats://user:@h", Endpoint(host="h", user="user", password="")),
        ("nats://t%2Fken@h", Endpoint(host="h", token="t/ken")),
    ],
)
def test_a_url_is_taken_apart(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoints(text) == (endpoint,)


def test_several_urls_stand_between_commas() -> None:
    hosts = [endpoint.host for endpoint in parse_endpoints(" nats://a , tls://b,c, ")]
    assert hosts == ["a", "b", "c"]


@pytest.mark.parametrize(
    "text",
    ["", " , ", "http://u:secret@h", "nats://u:secret@", "nats://u:secret@h:port", "nats://u:secret@h:99999",
     "nats://u:secret@h/path", "nats://u:secret@h?x=1", "nats://u:secret@[::1"],
)  # fmt: skip
def test_what_is_no_nats_url_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(InvalidInput, match="NATS URL") as invalid:
        parse_endpoints(text)
    assert "secret" not in str(invalid.value)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://user:secret@h:4222", "nats://user:***@h:4222"),
        ("nats://secret@h", "nats://***@h"),
        ("user:secret@h", "user:***@h"),
        ("nats://a:secret@h,tls://b:secret@i", "nats://a:***@h,tls://b:***@i"),
        ("nats://a:sec@ret@h", "nats://a:***@h"),
        ("nats://a:secret,secret@h", "***,***@h"),
        ("nats://a:secret/secret@h", "nats://a:***@h"),
        ("nats://[::1]:4222", "nats://[::1]:4222"),
        ("the secret itself", "***"),
    ],
)
def test_secrets_are_blotted_out(text: str, redacted: str) -> None:
    assert redact_url(text) == redacted


def test_an_endpoint_shows_no_secret() -> None:
    for endpoint in parse_endpoints("nats://user:secret@h,nats://secret@h"):
        assert "secret" not in repr(endpoint)
        assert endpoint.url == "nats://h:4222"


def test_a_sibling_shares_the_login_and_an_address_shares_the_certificate_name() -> None:
    (endpoint,) = parse_endpoints("tls://user:secret@nats.example.org")

    by_address, by_name = endpoint.sibling("10.0.0.2", 4223), endpoint.sibling("other.example.org", 4222)

    assert (by_address.user, by_address.password, by_address.tls) == ("user", "secret", True)
    assert (by_address.url, by_address.tls_name) == ("tls://10.0.0.2:4223", "nats.example.org")
    assert by_name.tls_name is None
    assert by_address.sibling("10.0.0.3", 1).tls_name == "nats.example.org"
