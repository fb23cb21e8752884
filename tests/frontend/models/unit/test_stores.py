"""A store knows itself by a file that is made once, whoever else makes one at the same moment."""

import threading
from pathlib import Path

import pytest

from corral.frontend.models.stores import StoreUnusable, measure, place_of


def test_a_directory_becomes_a_store_once(tmp_path: Path) -> None:
    models = tmp_path / "models"
    first = measure(models)
    assert (models / ".corral" / "store").read_text() == f"{first.id}\n"
    assert measure(models).id == first.id
    assert 0 < first.free_bytes <= first.total_bytes
    assert place_of(first.id) == f"store:{first.id}"
    assert [path.name for path in (models / ".corral").iterdir()] == ["store"]


def test_a_mere_look_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="No such file"):
        measure(tmp_path, make=False)
    assert list(tmp_path.iterdir()) == []
    made = measure(tmp_path)
    assert measure(tmp_path, make=False).id == made.id


def test_those_who_begin_at_the_same_moment_agree(tmp_path: Path) -> None:
    ids: list[str] = []
    barrier = threading.Barrier(8)

    def begin() -> None:
        barrier.wait()
        ids.append(measure(tmp_path).id)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1


@pytest.mark.parametrize("content", ["", "a b", "../x", "x" * 200, "ü"])
def test_a_file_with_something_else_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / ".corral").mkdir()
    (tmp_path / ".corral" / "store").write_text(content)
    with pytest.raises(StoreUnusable, match="holds no id"):
        measure(tmp_path)


def test_a_place_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="No such file"):
        measure(tmp_path / "not mounted" / "models")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="cannot be used"):
        measure(tmp_path / "file")
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / ".corral").symlink_to(outside)
    with pytest.raises(StoreUnusable, match="leads out"):
        measure(inside)
