"""Signatures and answers of S3, by Amazon's own example."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.files.s3_requests import all_of, one_of, signed_headers
from corral.files.s3_uploads import PART, part_size, spans
from corral.files.storage import StorageConfig

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_amazons_example_has_amazons_signature() -> None:
    config = StorageConfig(
        url="https://examplebucket.s3.amazonaws.com",
        access_key="AKIAIOSFODNN7EXAMPLE",
        secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )
    headers = signed_headers(
        config,
        "GET",
        "https://examplebucket.s3.amazonaws.com/test.txt",
        {"Range": "bytes=0-9"},
        at=datetime(2013, 5, 24, tzinfo=UTC),
        payload=EMPTY,
    )

    signature = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert headers["Authorization"].endswith(
        f"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature={signature}"
    )
    assert config.secret_key not in str(headers)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("<A><Key>a&amp;b &lt;c&gt;</Key></A>", "Key", "a&b <c>"),
        ("<A><ETag>&quot;x&quot;</ETag></A>", "ETag", '"x"'),
        ("<A></A>", "Key", ""),
        ("", "Key", ""),
    ],
)
def test_names_are_found_in_answers(text: str, name: str, value: str) -> None:
    assert one_of(text, name) == value


def test_all_of_a_kind_are_found() -> None:
    assert all_of("<P><N>1</N></P>\n<P><N>2</N></P>", "P") == ["<N>1</N>", "<N>2</N>"]


@given(st.integers(min_value=1, max_value=2**43))
def test_parts_cover_a_file_and_are_not_too_many(size: int) -> None:
    step = part_size(size)
    assert step >= PART
    assert -(-size // step) <= 10_000


@given(st.integers(min_value=1, max_value=40 * PART))
def test_parts_follow_each_other(size: int) -> None:
    parts = spans(size)
    assert list(parts) == list(range(1, len(parts) + 1))
    end = 0
    for begin, length in parts.values():
        assert begin == end
        end += length
    assert end == size
