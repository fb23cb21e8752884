"""Which requests with the cookie of a session count as sent by our own page."""

import pytest

from corral.frontend.access.cross_site import cross_site_problem, foreign_origin

CSRF = "the-secret-of-this-session"


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://corral.test", "corral.test"),
        ("http://corral.test:8080", "corral.test:8080"),
        ("http://CORRAL.test", "corral.TEST"),
        ("http://corral.test:80", "corral.test"),
        ("http://corral.test", "corral.test:80"),
        ("https://corral.test", "corral.test"),  # a proxy with TLS in front
        ("https://corral.test", "corral.test:443"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
    ],
)
def test_a_page_of_the_host_that_is_asked_is_our_own(origin: str, host: str) -> None:
    assert foreign_origin({"origin": origin, "host": host}, is_secure=False) is None


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://other.test", "corral.test"),
        ("http://corral.test.evil.test", "corral.test"),
        ("http://corral.test@evil.test", "corral.test"),
        ("http://corral.test:3000", "corral.test:8080"),
        ("http://corral.test:3000", "corral.test"),
        ("null", "corral.test"),
        ("", "corral.test"),
        ("file://", "corral.test"),
        ("ftp://corral.test", "corral.test"),
        ("chrome-extension://corral.test", "corral.test"),
        ("http://corral.test:99999", "corral.test"),
        ("http://corral.test:x", "corral.test"),
        ("http://[::1", "[::1"),
        ("http://", ""),
        ("http://corral.test", ""),  # HTTP/1.0 without a host
    ],
)
def test_every_other_page_is_foreign(origin: str, host: str) -> None:
    problem = foreign_origin({"origin": origin, "host": host}, is_secure=False)
    assert problem is not None
    assert repr(origin) in problem


def test_over_tls_a_page_without_tls_is_foreign() -> None:
    headers = {"origin": "http://corral.test", "host": "corral.test"}
    assert foreign_origin(headers, is_secure=True) is not None
    assert foreign_origin(headers | {"origin": "https://corral.test"}, is_secure=True) is None


def test_a_browser_that_says_so_itself_is_believed_whatever_a_proxy_makes_of_the_host() -> None:
    headers = {"origin": "https://corral.test", "host": "10.0.0.1:8080", "sec-fetch-site": "same-origin"}
    assert foreign_origin(headers, is_secure=False) is None
    assert cross_site_problem("POST", headers, csrf=CSRF, is_secure=False) is not None, (
        "the secret is needed all the same"
    )
    for site in ("same-site", "cross-site", "none", ""):
        assert foreign_origin(headers | {"sec-fetch-site": site}, is_secure=False) is not None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("sent", [None, "", "wrong", CSRF + "x", CSRF[:-1], "é"])
def test_a_change_needs_the_secret_of_the_session(method: str, sent: str | None) -> None:
    headers = {"host": "corral.test", **({} if sent is None else {"x-corral-csrf": sent})}
    problem = cross_site_problem(method, headers, csrf=CSRF, is_secure=False)
    assert problem is not None
    assert "X-Corral-CSRF" in problem
    assert cross_site_problem(method, headers | {"x-corral-csrf": CSRF}, csrf=CSRF, is_secure=False) is None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reading_needs_no_secret_but_the_right_origin(method: str) -> None:
    assert cross_site_problem(method, {"host": "corral.test"}, csrf=CSRF, is_secure=False) is None
    foreign = {"host": "corral.test", "origin": "http://other.test"}
    assert cross_site_problem(method, foreign, csrf=CSRF, is_secure=False) is not None


def test_the_secret_does_not_help_a_page_of_another_origin() -> None:
    headers = {"host": "corral.test", "origin": "http://other.test", "x-corral-csrf": CSRF}
    assert cross_site_problem("POST", headers, csrf=CSRF, is_secure=False) is not None
