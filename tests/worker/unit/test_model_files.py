"""Deleting a model's files: what goes, what stays, and that nothing outside is ever touched."""

from pathlib import Path

import pytest

from corral.worker.files.object_cache import ObjectPlaces
from corral.worker.models import ModelFiles, ModelNameRefused


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """As the recorded worker had them."""
    folder = tmp_path / "models"
    for name in ("del/a/b", "m/x", "a#b/x", "one.bin", "one.bin.sha256", "one.bin.mmproj", "one.bin2"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("x")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_directory_goes_with_all_that_is_in_it(models: Path) -> None:
    await ModelFiles(models).delete("del")
    assert names(models) == ["a#b", "m", "one.bin", "one.bin.mmproj", "one.bin.sha256", "one.bin2"]


async def test_a_file_goes_with_what_stands_beside_it(models: Path) -> None:
    await ModelFiles(models).delete("one.bin")
    assert names(models) == ["a#b", "del", "m", "one.bin2"]


@pytest.mark.parametrize("name", ["m/x", "/m/x", "m//x", "a/../m/x", "./m/x"])
async def test_a_path_below_is_taken_as_such(models: Path, name: str) -> None:
    await ModelFiles(models).delete(name)
    assert names(models / "m") == []


@pytest.mark.parametrize(
    "name", ["nothing", "/etc", "m/x/y", "x" * 300, "x" * 300 + "/y", "é" * 200, "one", "*", "one.bi?"]
)
async def test_what_is_not_there_is_no_mistake(models: Path, name: str) -> None:
    before = names(models)
    await ModelFiles(models).delete(name)
    if name != "one":  # `one.…` stands beside it
        assert names(models) == before


async def test_without_a_models_directory_there_is_nothing_to_delete(tmp_path: Path) -> None:
    await ModelFiles(tmp_path / "none").delete("m")
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["../data", "a/../..", ".", "..", "/", "//", "m/..", "/..", "../models", "a\0b"])
async def test_a_name_that_leads_elsewhere_is_refused(models: Path, name: str) -> None:
    with pytest.raises(ModelNameRefused) as refused:
        await ModelFiles(models).delete(name)
    assert refused.value.message == f'model name "{name}" escapes models directory'
    assert names(models.parent / "data") == ["precious"]


@pytest.mark.parametrize("name", [".corral", "/.corral/", "a/../.corral/receipts", ".corral/receipts"])
async def test_files_that_the_worker_keeps_for_itself_are_no_model(models: Path, name: str) -> None:
    (models / ".corral" / "receipts").mkdir(parents=True)
    with pytest.raises(ModelNameRefused, match="is no model"):
        await ModelFiles(models).delete(name)
    assert names(models / ".corral") == ["receipts"]


async def test_no_name_is_refused(models: Path) -> None:
    with pytest.raises(ModelNameRefused, match=r"^empty model name$"):
        await ModelFiles(models).delete("")


async def test_a_link_goes_and_what_it_leads_to_stays(models: Path) -> None:
    (models / "link").symlink_to(models.parent / "data")
    await ModelFiles(models).delete("link")
    assert "link" not in names(models)
    assert names(models.parent / "data") == ["precious"]


async def test_a_link_on_the_way_is_not_followed(models: Path) -> None:
    (models / "link").symlink_to(models.parent / "data")
    with pytest.raises(ModelNameRefused, match="escapes models directory"):
        await ModelFiles(models).delete("link/precious")
    assert names(models.parent / "data") == ["precious"]


async def test_links_inside_a_model_are_removed_and_not_followed(models: Path) -> None:
    (models / "del" / "link").symlink_to(models.parent / "data")
    await ModelFiles(models).delete("del")
    assert names(models.parent / "data") == ["precious"]


async def test_the_models_directory_itself_may_be_a_link(models: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(models)
    await ModelFiles(tmp_path / "other").delete("del")
    assert "del" not in names(models)


async def test_what_object_storage_brought_goes_too(models: Path, tmp_path: Path) -> None:
    places = ObjectPlaces.beside(models)
    for folder in places.cached_models:
        for name in ("del/q.gguf", "other/q.gguf"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text("x")

    await ModelFiles(models, *places.cached_models).delete("del")

    assert "del" not in names(models)
    assert [names(folder) for folder in places.cached_models] == [["other"], ["other"]]


async def test_a_model_that_only_object_storage_brought_is_deleted(models: Path) -> None:
    cached, _ = ObjectPlaces.beside(models).cached_models
    (cached / "staged").mkdir(parents=True)

    await ModelFiles(models, cached).delete("staged")

    assert names(cached) == []
