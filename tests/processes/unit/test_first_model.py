"""The model that a new fleet starts with."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
import yaml

from corral.frontend.models.decide.model import read_model
from corral.processes.first_model import give_first_model


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"GGUF")
    return file


def test_a_new_fleet_gets_a_model_that_can_be_read(models: Path, weights: Path) -> None:
    assert give_first_model(models, weights)

    text = (models / "smollm2.yaml").read_text()
    assert (models / "SmolLM2-135M-Instruct.gguf").read_bytes() == b"GGUF"
    assert "name: smollm2" in text
    spec = read_model(yaml.safe_load(text), source="smollm2.yaml")
    parameters = {"temperature": 0, "repeat_penalty": 1.1, "max_tokens": 512}
    assert {**parameters, "model": spec.model} == spec.config["parameters"], "see bench/questions.py"
    assert list(models.glob("*.part")) == []


def test_what_a_person_deleted_or_changed_stays_so(models: Path, weights: Path) -> None:
    give_first_model(models, weights)
    (models / "smollm2.yaml").write_text("name: mine")
    assert give_first_model(models, weights)
    assert (models / "smollm2.yaml").read_text() == "name: mine"

    (models / "smollm2.yaml").unlink()

    assert not give_first_model(models, weights)
    assert not (models / "smollm2.yaml").exists()


def test_a_fleet_with_models_of_its_own_gets_none(models: Path, weights: Path) -> None:
    (models / "mine.yml").write_text("name: mine")

    assert not give_first_model(models, weights)
    assert not (models / "smollm2.yaml").exists()


def test_where_none_is_named_none_is_missed(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not give_first_model(models, None)
    assert caplog.text == ""


def test_one_that_could_not_be_fetched_is_said_and_tried_again(
    models: Path, weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not give_first_model(models, weights.with_name("missing.gguf"))
    assert "starts without a model" in caplog.text
    assert "missing.gguf" in caplog.text

    assert give_first_model(models, weights)


def test_a_start_that_was_cut_off_is_made_good(models: Path, weights: Path) -> None:
    (models / "SmolLM2-135M-Instruct.part").write_bytes(b"GG")

    assert give_first_model(models, weights)
    assert (models / "SmolLM2-135M-Instruct.gguf").read_bytes() == b"GGUF"


def test_a_full_disk_keeps_no_part_of_it(
    models: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def other_disk(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def full_disk(source: Path, target: Path) -> None:
        target.write_bytes(b"GG")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", other_disk)
    monkeypatch.setattr(shutil, "copyfile", full_disk)
    assert not give_first_model(models, weights)
    assert f"{weights} cannot be copied to {models} (No space left on device)" in caplog.text
    assert list(models.iterdir()) == []
