"""Headers and URLs, read as LocalAI's worker and Go's router read them."""

from pathlib import Path

import pytest

from corral.wire.files import ContentRange
from corral.worker.files.bodies import parse_range
from corral.worker.files.keys import Area, cleaned, decoded, locate
from corral.worker.files.refusals import FileRefused
from corral.worker.files.uploads import parse_content_range

BASES = {Area.MODELS: Path("/w/models"), Area.DATA: Path("/w/data"), Area.STAGING: Path("/w/staging")}
MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("bytes 0-0/1", ContentRange(0, 0, 1)),
        ("bytes 5-9/10", ContentRange(5, 9, 10)),
        ("  bytes 0-9/10 ", ContentRange(0, 9, 10)),
        (f"bytes 0-{MOST - 1}/{MOST}", ContentRange(0, MOST - 1, MOST)),
    ],
)
def test_a_content_range_has_three_numbers(text: str, wanted: ContentRange) -> None:
    assert parse_content_range(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "0-9/10",
        "bytes",
        "bytes=0-9/10",
        "bytes 0-9",
        "bytes */10",
        "bytes 0-9/*",
        "bytes 9-0/10",
        "bytes 0-10/10",
        "bytes 0-0/0",
        "bytes -1-9/10",
        "bytes 0--9/10",
        "bytes 0-+9/10",
        "bytes 0-9/1_0",
        "bytes 0x0-9/10",
        "bytes ٠-9/10",
        "bytes 0-9/10/10",
        "bytes 0-9/10,",
        f"bytes 0-9/{MOST + 1}",
        "bytes 0-9/" + "9" * 5000,
    ],
)
def test_any_other_content_range_is_refused(text: str) -> None:
    with pytest.raises(FileRefused) as refusal:
        parse_content_range(text)

    assert refusal.value.status == 400
    assert refusal.value.text.startswith("invalid Content-Range")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("bytes=0-0", range(1)),
        ("bytes=2-5", range(2, 6)),
        ("bytes=2-", range(2, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-30", range(10)),
        ("bytes=9-99", range(9, 10)),
    ],
)
def test_a_range_to_fetch_is_cut_to_the_file(text: str, span: range) -> None:
    assert parse_range(text, 10) == span


@pytest.mark.parametrize("text", ["bytes=10-", "bytes=5-4", "bytes=-0", "bytes=-", "bytes=0-1,3-4", "items=0-1", "0-1"])
def test_a_range_that_is_not_in_the_file_is_refused(text: str) -> None:
    with pytest.raises(FileRefused) as refusal:
        parse_range(text, 10)

    assert (refusal.value.status, refusal.value.headers) == (416, {"Content-Range": "bytes */10"})


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("models/m/x.bin", "/w/models/m/x.bin"),
        ("data/q.gguf", "/w/data/q.gguf"),
        ("models", "/w/staging/models"),
        ("models/", "/w/models"),
        ("ephemeral/inputs/1/a", "/w/staging/ephemeral/inputs/1/a"),
        ("modelsx/a", "/w/staging/modelsx/a"),
        ("Models/a", "/w/staging/Models/a"),
        ("models//etc/passwd", "/w/models/etc/passwd"),
        ("/etc/passwd", "/w/staging/etc/passwd"),
        ("models/a/../b", "/w/models/b"),
        ("models/a/..", "/w/models"),
        ("models/..a/...", "/w/models/..a/..."),
        ("models/a\\..\\b", "/w/models/a\\..\\b"),
    ],
)
def test_a_key_leads_to_a_path(key: str, path: str) -> None:
    assert str(locate(key, BASES).path) == path


@pytest.mark.parametrize(
    "key",
    [
        "",
        "..",
        "../x",
        "models/..",
        "models/../data/x",
        "models/a/../../x",
        "data/../models/x",
        "models/a\0b",
        "\0",
        "/".join("a" * 101),
        "models/" + "a" * 4096,
    ],
)
def test_a_key_that_leads_nowhere_is_refused(key: str) -> None:
    with pytest.raises(FileRefused) as refusal:
        locate(key, BASES)

    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("/", "/"),
        ("", "/"),
        ("/a", "/a"),
        ("/a/", "/a/"),
        ("//a", "/a"),
        ("///a//b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/../b/", "/b/"),
        ("/../../a", "/a"),
        ("/a/..", "/"),
        ("/a/%2e%2e/b", "/a/%2e%2e/b"),
    ],
)
def test_a_path_is_cleaned_as_gos_router_does(path: str, clean: str) -> None:
    assert cleaned(path) == clean


@pytest.mark.parametrize(("text", "name"), [("a%2Fb", "a/b"), ("%25", "%"), ("%C3%A9", "é"), ("%ff", "\udcff")])
def test_any_byte_can_be_in_a_name(text: str, name: str) -> None:
    assert decoded(text) == name


@pytest.mark.parametrize("text", ["%", "a%", "%2", "%zz", "%u0041"])
def test_a_broken_escape_is_refused(text: str) -> None:
    with pytest.raises(FileRefused):
        decoded(text)
