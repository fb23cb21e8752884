"""What the forms of a gallery's URL mean."""

from pathlib import Path

import pytest

from corral.base.errors import InvalidInput
from corral.galleries.places import Scheme, read_place, without_secrets


@pytest.mark.parametrize(
    ("url", "scheme", "asked"),
    [
        ("https://index.localai.io/backends", Scheme.HTTP, "https://index.localai.io/backends"),
        ("http://127.0.0.1:8080/i.yaml?x=1", Scheme.HTTP, "http://127.0.0.1:8080/i.yaml?x=1"),
        (
            "github:mudler/LocalAI/backend/index.yaml@master",
            Scheme.HTTP,
            "https://raw.githubusercontent.com/mudler/LocalAI/master/backend/index.yaml",
        ),
        ("github://o/r/i.yaml", Scheme.HTTP, "https://raw.githubusercontent.com/o/r/main/i.yaml"),
        ("oci://quay.io/x/index:latest", Scheme.OCI, "oci://quay.io/x/index:latest"),
        ("file:///srv/index.yaml", Scheme.FILE, "file:///srv/index.yaml"),
        ("file://localhost/srv/index.yaml", Scheme.FILE, "file://localhost/srv/index.yaml"),
        ("corral:builtin", Scheme.BUILT_IN, "corral:builtin"),
    ],
)
def test_every_form_has_its_meaning(url: str, scheme: Scheme, asked: str) -> None:
    place = read_place(url)
    assert (place.scheme, place.url) == (scheme, asked)


def test_a_file_url_may_hold_escapes() -> None:
    assert read_place("file:///srv/my%20index.yaml").path == Path("/srv/my index.yaml")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/srv/index.yaml",
        "index.yaml",
        "ftp://example.org/x",
        "http://",
        "https://host:port/x",
        "file://elsewhere/x",
        "file:relative",
        "oci://",
        "github:owner",
        "github:owner/repository",
        "github:/a/b",
        "http://[::1",
        "corral:other",
    ],
)
def test_other_forms_are_refused_with_those_that_are_allowed(url: str) -> None:
    with pytest.raises(InvalidInput, match="allowed is http://, https://, file:///, oci:// or github:"):
        read_place(url)


def test_a_reference_lies_beside_its_index() -> None:
    place = read_place("https://example.org/a/latest.ref")
    assert place.is_reference
    assert place.beside("v2.yaml").url == "https://example.org/a/v2.yaml"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@example.org/x?token=1", "https://example.org/x"),
        ("https://example.org/a@b", "https://example.org/a@b"),
        ("github:o/r/p@ref", "github:o/r/p@ref"),
        ("nonsense?secret", "nonsense"),
    ],
)
def test_what_may_be_secret_is_not_shown(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_a_refusal_hides_the_login() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_place("ftp://user:hidden@example.org/x?token=hidden")
    assert "hidden" not in caught.value.message
