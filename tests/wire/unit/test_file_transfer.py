"""Headers of file transfers."""

import pytest

from corral.base.errors import InvalidInput
from corral.wire.files import ContentRange
from tests.kit.file_heads import FileHead, UploadHead, more_wanted_headers, size_told

HASH = "AB" * 32


def test_a_range_keeps_its_form() -> None:
    text = "bytes 1000-2999999/3000000"
    assert str(ContentRange.parse(text)) == text
    assert ContentRange.parse(text).length == 2999000
    assert ContentRange.parse(f"bytes 0-{2**63}/{2**63 + 1}").end == 2**63


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0-9/10", 'missing "bytes" prefix'),
        ("items 0-9/10", 'missing "bytes" prefix'),
        ("bytes 0-9", "missing /total"),
        ("bytes */10", "missing - separator"),
        ("bytes 0-9/*", "not a number"),
        ("bytes -1-9/10", "not a number"),
        ("bytes 0-9/1e3", "not a number"),
        ("bytes ٠-9/10", "not a number"),
        ("bytes 9-0/10", "makes no sense"),
        ("bytes 0-10/10", "makes no sense"),
        ("", 'missing "bytes" prefix'),
    ],
)
def test_a_range_that_makes_no_sense_says_why(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        ContentRange.parse(text)
    assert caught.value.field == "Content-Range"


def test_names_of_headers_match_without_regard_to_case_and_hashes_are_lower_case() -> None:
    head = UploadHead.parse({"content-range": "bytes 0-0/1", "x-content-sha256": HASH})

    assert head == UploadHead(range=ContentRange(0, 0, 1), sha256=HASH.lower())
    assert UploadHead.parse({}) == UploadHead()


def test_a_file_is_finished_or_not() -> None:
    partial = FileHead(size=5, local_path="/m/x", sha256=HASH, target_sha256=HASH)

    assert "X-Target-SHA256" in partial.headers()
    assert "X-Content-SHA256" not in partial.headers()
    assert FileHead.parse(FileHead(size=0, local_path="/m").headers()) == FileHead(size=0, local_path="/m")


def test_a_head_without_a_size_is_not_understood() -> None:
    with pytest.raises(InvalidInput):
        FileHead.parse({"X-Local-Path": "/m/x"})
    with pytest.raises(InvalidInput):
        size_told({})


def test_how_much_is_there_is_told_and_read() -> None:
    assert size_told(more_wanted_headers(1000)) == 1000
