"""Frontends never get at the worker's private directory, whatever paths and links say."""

from pathlib import Path

import pytest

from corral.base.errors import SettingInvalid
from corral.worker.files.keys import refuse_private


@pytest.mark.parametrize(
    ("data", "models", "staging", "setting"),
    [
        ("data", "models", None, "models"),  # the area `data`, beside the models, is the private directory
        ("d", "d", None, "models"),
        ("d/private", "d", None, "models"),
        ("d", "d/processes", None, "models"),
        ("d", "d/sub/models", None, "models"),
        ("staging", "models", None, "models"),
        ("cache", "models", None, "models"),
        ("x/data/deep", "x/models", None, "models"),
        ("d", "models", "d", "staging"),
        ("d", "models", "d/processes", "staging"),
        ("d/private", "m/models", "d", "staging"),
    ],
)
def test_a_served_directory_that_touches_the_private_one_is_refused(
    tmp_path: Path, data: str, models: str, staging: str | None, setting: str
) -> None:
    staged = None if staging is None else tmp_path / staging
    with pytest.raises(SettingInvalid) as refusal:
        refuse_private(models=tmp_path / models, staging=staged, private=tmp_path / data)

    assert refusal.value.field == setting
    assert f"{tmp_path / data}, the directory of the setting data" in refusal.value.message


@pytest.mark.parametrize(
    ("data", "models", "staging"),
    [("d", "d/models", None), ("d", "models", None), ("w/d", "m/models", None), ("d", "models", "d/staging")],
)
def test_the_default_layout_and_separate_directories_are_fine(
    tmp_path: Path, data: str, models: str, staging: str | None
) -> None:
    staged = None if staging is None else tmp_path / staging
    refuse_private(models=tmp_path / models, staging=staged, private=tmp_path / data)


def test_links_are_followed(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (tmp_path / "innocent").symlink_to(private)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "data").symlink_to(private)
    (private / "models").symlink_to(private)

    for models in (tmp_path / "innocent", tmp_path / "m" / "models", private / "models"):
        with pytest.raises(SettingInvalid):
            refuse_private(models=models, staging=None, private=private)


def test_relative_paths_are_meant_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingInvalid):
        refuse_private(models=Path("models"), staging=None, private=tmp_path / "data")
