"""The beginning of an archive shows what begins in it, and whatever it is, looking at it does no harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.hubs.archives import content_in, member_name, member_url, members_in, split_member, unpacked_prefix
from tests.kit.images import a_directory, a_file, a_symlink, gzipped, tar_of, zstandardised

ARCHIVE = tar_of(a_directory("./d"), a_symlink("l", "x"), a_file("./d/a.gguf", b"a" * 5000), a_file("b", b"b" * 5000))
PACKED = {"plain": ARCHIVE, "gzip": gzipped(ARCHIVE), "zstd": zstandardised(ARCHIVE)}


@pytest.mark.parametrize("form", PACKED)
def test_files_are_seen_as_far_as_the_beginning_goes(form: str) -> None:
    prefix = unpacked_prefix(PACKED[form], 1 << 20)
    assert prefix == ARCHIVE
    assert [(member_name(member), member.size) for member in members_in(prefix)] == [("d/a.gguf", 5000), ("b", 5000)]
    assert content_in(prefix, "b") == b"b" * 5000
    assert content_in(prefix, "none") is None
    short = unpacked_prefix(PACKED[form], 3000)
    assert len(short) == 3000
    assert [member_name(member) for member in members_in(short)] == ["d/a.gguf"]
    assert b"aaaa" in (content_in(short, "d/a.gguf") or b"")


@given(st.binary(max_size=2000), st.sampled_from(sorted(PACKED)), st.integers(0, 3000))
def test_damaged_archives_do_no_harm(garbage: bytes, form: str, cut: int) -> None:
    for data in (garbage, PACKED[form][:cut] + garbage):
        prefix = unpacked_prefix(data, 100_000)
        assert len(prefix) <= 100_000
        for member in members_in(prefix):
            content_in(prefix, member_name(member))


@given(st.text(min_size=1, max_size=30), st.sampled_from(["", "ab" * 32]))
def test_a_url_names_a_file_inside_and_back(name: str, sha256: str) -> None:
    named = split_member(member_url("https://x/v2/y/blobs/sha256:1", name, sha256))
    assert (named.url, named.member, named.sha256) == ("https://x/v2/y/blobs/sha256:1", name, sha256)
