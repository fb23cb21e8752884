"""Deleting a model's files: all of them, those only, and nothing outside of the models directory."""

from pathlib import Path

import pytest

from corral.frontend.models.directory import ModelFileMark
from corral.frontend.models.removal import FilesLeft, delete_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    (models / "small.yaml").write_text("name: small")
    (models / "small.gguf").write_bytes(b"w")
    return models


def deleted(folder: Path, *weights: str) -> list[str]:
    assert delete_files(folder, {"small.yaml": ModelFileMark.of(folder / "small.yaml")}, weights)
    return sorted(path.name for path in folder.iterdir())


def test_file_weights_and_directories_go(folder: Path) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "x.bin").write_bytes(b"x")
    assert deleted(folder, "small.gguf", "deep/er", "never/there") == ["deep"]
    assert list((folder / "deep").iterdir()) == []


def test_a_link_goes_and_what_it_points_to_stays(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.gguf"
    elsewhere.write_bytes(b"mine")
    (folder / "link.gguf").symlink_to(elsewhere)
    assert deleted(folder, "link.gguf") == ["small.gguf"]
    assert elsewhere.read_bytes() == b"mine"


def test_nothing_outside_is_touched(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "w.gguf").write_bytes(b"mine")
    (folder / "way").symlink_to(precious)
    assert deleted(folder, "way/w.gguf", "../precious/w.gguf", "../precious") == ["small.gguf", "way"]
    assert (precious / "w.gguf").read_bytes() == b"mine"


def test_a_file_that_was_replaced_meanwhile_stays_with_its_weights(folder: Path) -> None:
    file = folder / "small.yaml"
    mark = ModelFileMark.of(file)
    file.unlink()
    file.write_text("name: small # anew")
    assert not delete_files(folder, {"small.yaml": mark._replace(inode=mark.inode + 1)}, ["small.gguf"])
    assert sorted(path.name for path in folder.iterdir()) == ["small.gguf", "small.yaml"]


def test_what_was_deleted_before_is_as_good(folder: Path) -> None:
    mark = ModelFileMark.of(folder / "small.yaml")
    (folder / "small.yaml").unlink()
    for _ in range(2):
        assert delete_files(folder, {"small.yaml": mark}, ["small.gguf"])
    assert list(folder.iterdir()) == []


def test_what_cannot_be_deleted_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FilesLeft, match=r"small\.gguf: Permission denied"):
        deleted(folder, "small.gguf")
