"""What a backend's directory must have, and what of it goes into the image."""

import json
from pathlib import Path

import pytest

from corral.imaging.description import described_by, read_description
from corral.imaging.errors import BuildFailed
from corral.imaging.source import read_source

BACKENDS = Path(__file__).parents[3] / "backends"


@pytest.fixture
def backend(tmp_path: Path) -> Path:
    """A backend that is no Python at all."""
    folder = tmp_path / "backends" / "my_engine"
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    return folder


def names(folder: Path, **more: Path) -> list[str]:
    return [entry.name for entry in read_source(folder, **more).own]


def test_a_script_is_enough(backend: Path) -> None:
    source = read_source(backend)

    assert [(entry.name, entry.mode) for entry in source.own] == [("run.sh", 0o755)]
    assert source.description.name == "my-engine"
    assert source.packages == ()


def test_our_own_files_go_in_and_nothing_else(backend: Path) -> None:
    for name in (".hidden", "requirements.in", "metadata.json", "x.pyc", "venv/bin/python", "__pycache__/y", "kept/z"):
        (backend / name).parent.mkdir(parents=True, exist_ok=True)
        (backend / name).touch()

    assert names(backend) == ["kept", "kept/z", "run.sh"]


def test_the_sdk_beside_it_comes_along() -> None:
    found = names(BACKENDS / "echo")

    assert {"backend.py", "corral.json", "requirements.txt", "sdk", "sdk/start.sh"} <= set(found)
    assert "sdk/corral_backend_sdk/server.py" in found
    assert not [name for name in found if "__pycache__" in name or name.endswith(".in")]


def test_the_sdk_that_was_named_comes_along(backend: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "corral_backend_sdk").mkdir(parents=True)

    assert "sdk/corral_backend_sdk" in names(backend, sdk=tmp_path / "mine")
    with pytest.raises(BuildFailed, match="--sdk: there is no corral_backend_sdk"):
        read_source(backend, sdk=tmp_path)


def test_the_backends_own_sdk_is_kept(backend: Path) -> None:
    (backend / "sdk").mkdir()
    (backend / "sdk" / "start.sh").touch()

    assert names(backend) == ["run.sh", "sdk", "sdk/start.sh"]


@pytest.mark.parametrize(
    ("file", "text"), [("run.sh", '. "$sdk/start.sh"'), ("backend.py", "import corral_backend_sdk")]
)
def test_a_missing_sdk_is_noticed(backend: Path, file: str, text: str) -> None:
    (backend / file).write_text(text)

    with pytest.raises(BuildFailed, match="say with --sdk where the SDK is"):
        read_source(backend)


@pytest.mark.parametrize("name", ["packages", "python"])
def test_names_that_are_taken_are_refused(backend: Path, name: str) -> None:
    (backend / name).mkdir()

    with pytest.raises(BuildFailed, match=f"{name} is in the way"):
        read_source(backend)


def test_what_is_no_backend_is_told(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="there is no directory"):
        read_source(tmp_path / "none")
    with pytest.raises(BuildFailed, match=r"run\.sh is missing"):
        read_source(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "corral.json"),
        ('{"name": 1}', r"corral.json: .*\$\.name"),
        ('{"name": "a/b"}', "the name 'a/b' cannot be the name of a directory"),
        ('{"tags": "x"}', r"\$\.tags"),
    ],
)
def test_a_description_that_cannot_be_used_is_named(backend: Path, text: str, words: str) -> None:
    (backend / "corral.json").write_text(text)

    with pytest.raises(BuildFailed, match=words):
        read_source(backend)


def test_a_description_survives_the_way_into_an_image_and_back(backend: Path) -> None:
    said = {
        "name": "mine",
        "version": "1.2",
        "description": "Does\n  things.",
        "license": "MIT",
        "urls": ["https://example.org/a", "https://example.org/b"],
        "tags": ["one", "two words"],
        "http": {"protocol": "openai"},
    }
    (backend / "corral.json").write_text(json.dumps(said))

    description = read_description(backend)

    assert description.description == "Does things."
    assert described_by(description.annotations()) == description
