"""What a uri or a reference means."""

from pathlib import Path

import pytest

from corral.oci.errors import SourceInvalid
from corral.oci.references import ArchiveUrl, ImageFile, LocalSource, RegistryImage, parse_reference, parse_source

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "whole", "host"),
    [
        ("alpine", "docker.io/library/alpine:latest", "registry-1.docker.io"),
        ("localai/localai-backends:x", "docker.io/localai/localai-backends:x", "registry-1.docker.io"),
        ("docker.io/alpine", "docker.io/library/alpine:latest", "registry-1.docker.io"),
        ("index.docker.io/a/b:1", "docker.io/a/b:1", "registry-1.docker.io"),
        ("quay.io/go-skynet/backends:latest-cpu-x", "quay.io/go-skynet/backends:latest-cpu-x", "quay.io"),
        ("localhost/x", "localhost/x:latest", "localhost"),
        ("localhost:5000/x:tag", "localhost:5000/x:tag", "localhost:5000"),
        ("registry:5000/a/b/c", "registry:5000/a/b/c:latest", "registry:5000"),
        ("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000"),
        (f"ghcr.io/a/b@{DIGEST}", f"ghcr.io/a/b@{DIGEST}", "ghcr.io"),
        (f"ghcr.io/a/b:tag@{DIGEST}", f"ghcr.io/a/b:tag@{DIGEST}", "ghcr.io"),
        ("a__b/c-d.e_f", "docker.io/a__b/c-d.e_f:latest", "registry-1.docker.io"),
    ],
)
def test_references(text: str, whole: str, host: str) -> None:
    reference = parse_reference(text)

    assert str(reference) == whole
    assert reference.host == host
    assert parse_reference(str(reference)) == reference


def test_the_digest_counts() -> None:
    assert parse_reference(f"quay.io/a:tag@{DIGEST}").selector == DIGEST


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":tag",
        "quay.io/",
        "quay.io/Upper",
        "quay.io/a//b",
        "quay.io/a:",
        "quay.io/a:-tag",
        "quay.io/a:" + "t" * 129,
        "quay.io/../x",
        "quay.io/a/../b",
        "quay.io/a@sha256:short",
        "quay.io/a@md5:" + "0" * 32,
        f"quay.io/a@{DIGEST}@{DIGEST}",
        "quay.io:port/a",
        "quay.io/a b",
        "quay.io/a\nb",
        "user:password@quay.io/a",
        "quay.io/" + "a" * 300,
        "-quay.io/a",
        "quay.io:0/a",
        "quay.io:65536/a",
        "[::1]:99999/a",
    ],
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(SourceInvalid):
        parse_reference(text)


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("oci://quay.io/a/b:c", RegistryImage(reference=parse_reference("quay.io/a/b:c"))),
        ("quay.io/a/b:c", RegistryImage(reference=parse_reference("quay.io/a/b:c"))),
        ("ocifile:///images/echo.tar", ImageFile(path=Path("/images/echo.tar"))),
        ("https://files.example/echo.tar.gz?x=y", ArchiveUrl(url="https://files.example/echo.tar.gz?x=y")),
        ("file:///images/a%20b.tar", LocalSource(path=Path("/images/a b.tar"))),
        ("/images/echo", LocalSource(path=Path("/images/echo"))),
    ],
)
def test_uris(uri: str, source: object) -> None:
    assert parse_source(uri) == source


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "ollama://x",
        "ocifile://x.tar",
        "file://relative",
        "http://",
        "https://:80/x",
        "https://[bad/x",
        "x" * 5000,
        "oci://a b",
        "quay.io/\x00",
    ],
)
def test_what_is_no_uri(uri: str) -> None:
    with pytest.raises(SourceInvalid):
        parse_source(uri)
