"""`corral backend`: what it makes and prints, and what it says when something is wrong."""

import json
from pathlib import Path

import pytest

from .conftest import Corral


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A backend without packages."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\necho cannot start >&2\nexit 3\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "corral.json").write_text('{"name": "plain", "version": "1.0", "description": "Plain: really."}')
    return folder


def test_a_build_tells_what_it_made(corral: Corral, plain: Path, tmp_path: Path) -> None:
    built = corral("backend", "build", str(plain), "-o", str(tmp_path / "image"), "--platform", "linux/amd64")

    lines = built.out.splitlines()
    assert built.code == 0
    assert lines[0].startswith("Built plain 1.0, ")
    assert lines[1].split()[0] == "linux/amd64"
    assert lines[2].endswith("the backend, 2 entries")
    assert lines[1].split()[1] == lines[3]


def test_a_build_for_machines_is_json(corral: Corral, plain: Path, tmp_path: Path) -> None:
    words = ["--archive", str(tmp_path / "image.tar"), "--compression", "none", "--json"]
    platforms = ["--platform", "linux/amd64", "--platform", "linux/arm64"]

    built = corral("backend", "build", str(plain), *words, *platforms).json()

    assert isinstance(built, dict)
    assert [image["platform"] for image in built["images"]] == ["linux/amd64", "linux/arm64"]
    assert (tmp_path / "image.tar").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say where the image shall go: --output, --archive or --push"),
        (["-o", "x", "--platform", "linux/riscv64"], "--platform: 'linux/riscv64' is no platform"),
        (["-o", "x", "--python", "nowhere"], "--python: there is no directory nowhere"),
        (["-o", "x", "--python", "."], "has no bin/python3"),
        (["-o", "x", "--python-version", "3.9"], "--python-version: '3.9' is no version like 3.12"),
        (["-o", "x", "--glibc", "1"], "--glibc: '1' is none of 2.17"),
        (["-o", "x", "--level", "40"], "--level: 40 is none of gzip's, which go from 1 to 9"),
        (["-o", "x", "--annotation", "x"], "--annotation: 'x' is not KEY=VALUE"),
        (["-o", "x", "--created", "today"], "--created: 'today' is no time with a zone"),
        (["-o", "x", "--installer", "nowhere"], "--installer: there is no program nowhere"),
        (["-o", "x", "--library", "nowhere"], "--library: there is no file nowhere"),
        (["-o", "x", "--wheels", "nowhere"], "--wheels: there is no directory nowhere"),
        (
            ["-o", "x", "--platform", "linux/amd64", "--platform", "linux/arm64", "--python", "p"],
            "with several platforms say for which it is, as in linux/amd64=p",
        ),
        (["-o", "x", "--platform", "linux/amd64", "--python", "linux/arm64=p"], "which --platform does not name"),
        (["--push", "not a reference"], "is not an image reference"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    corral: Corral, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)

    outcome = corral("backend", "build", str(plain), *words)

    assert outcome.code == 64
    assert sentence in outcome.err
    assert not (tmp_path / "x").exists()


def test_a_directory_that_is_no_backend_is_named(corral: Corral, tmp_path: Path) -> None:
    outcome = corral("backend", "build", str(tmp_path), "-o", str(tmp_path / "image"))

    assert outcome.code == 1
    assert f"{tmp_path}/run.sh is missing" in outcome.err


def test_a_lock_without_hashes_is_named(corral: Corral, plain: Path, tmp_path: Path) -> None:
    (plain / "requirements.txt").write_text("grpcio==1.0\n")

    outcome = corral("backend", "build", str(plain), "-o", str(tmp_path / "image"))

    assert outcome.code == 1
    assert f"{plain}/requirements.txt: line 1: 'grpcio==1.0' has no hash" in outcome.err


def test_a_push_of_nothing_is_told(corral: Corral, tmp_path: Path) -> None:
    outcome = corral("backend", "push", str(tmp_path / "image"), "localhost:1/team/plain:1")

    assert outcome.code == 1
    assert f"there is no {tmp_path}/image" in outcome.err


def test_images_become_a_gallery(corral: Corral, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corral("backend", "build", str(plain), "-o", str(tmp_path / "image"), "--archive", str(tmp_path / "image.tar"))
    listed = [f"default={tmp_path / 'image'}", f"vulkan={tmp_path / 'image.tar'}"]

    made = corral("backend", "index", *listed, "-o", str(tmp_path / "index.yaml"))

    galleries = [{"name": "mine", "url": (tmp_path / "index.yaml").as_uri()}]
    monkeypatch.setenv("CORRAL_BACKEND_GALLERIES", json.dumps(galleries))
    monkeypatch.setenv("CORRAL_CAPABILITY", "vulkan")
    shown = corral("gallery", "show", "plain", "--json").json()
    assert made.code == 0
    assert isinstance(shown, dict)
    assert shown["description"] == "Plain: really."
    assert shown["fit"]["build"] == "vulkan-plain"


def test_what_is_no_image_cannot_be_listed(corral: Corral, tmp_path: Path) -> None:
    outcome = corral("backend", "index", str(tmp_path), "-o", str(tmp_path / "index.yaml"))

    assert outcome.code == 1
    assert "is no OCI layout" in outcome.err


def test_a_backend_that_does_not_start_is_told(corral: Corral, plain: Path) -> None:
    outcome = corral("backend", "run", str(plain))

    assert outcome.code == 69
    assert "plain ended before it was ready (exit code 3)" in outcome.err
    assert "cannot start" in outcome.err


def test_a_backend_that_is_not_there_is_told(corral: Corral, tmp_path: Path) -> None:
    assert f"looked at {tmp_path}/run.sh" in corral("backend", "run", str(tmp_path)).err
    assert "there is no backend nothing; looked at" in corral("backend", "run", "nothing").err
