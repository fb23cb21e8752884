"""Copies of galleries on the disk: whole, or not there."""

from pathlib import Path

import pytest

from corral.galleries.cache import Copy, IndexCache

URL = "https://example.org/index.yaml"
COPY = Copy(
    url=URL,
    content=b"- name: x\n",
    etag='"1"',
    last_modified="yesterday",
    digest="sha256:1",
    fetched_at=1.5,
    checked_at=2.5,
)


@pytest.fixture
def cache(tmp_path: Path) -> IndexCache:
    return IndexCache(tmp_path / "not" / "yet")


def the_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "not" / "yet").iterdir()
    return file


def test_a_copy_comes_back_as_it_was(cache: IndexCache) -> None:
    assert cache.mark(URL) is None
    assert cache.load(URL) is None
    cache.store(URL, COPY)
    assert cache.load(URL) == COPY
    assert cache.load("https://example.org/other.yaml") is None


def test_another_process_s_copy_has_another_mark(cache: IndexCache, tmp_path: Path) -> None:
    cache.store(URL, COPY)
    before = cache.mark(URL)
    IndexCache(tmp_path / "not" / "yet").store(URL, COPY)
    assert cache.mark(URL) != before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{}\nbody",
        b"not json\nbody",
        b'{"format": 2}\nbody',
        b'{"format": 1, "sha256": "0"}\nbody',
        b"\xff",
    ],
)
def test_a_damaged_file_counts_as_none(cache: IndexCache, tmp_path: Path, content: bytes) -> None:
    cache.store(URL, COPY)
    the_file(tmp_path).write_bytes(content)
    assert cache.load(URL) is None


def test_a_cut_off_file_counts_as_none(cache: IndexCache, tmp_path: Path) -> None:
    cache.store(URL, COPY)
    file = the_file(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    assert cache.load(URL) is None


def test_a_directory_that_cannot_be_made_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    cache = IndexCache(tmp_path / "file" / "cache")
    cache.store(URL, COPY)
    cache.store(URL, COPY)
    assert cache.load(URL) is None
    assert [record.message.partition(":")[0] for record in caplog.records] == ["galleries are not kept"]
