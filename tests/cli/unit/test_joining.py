"""`corral worker --join`: where URL, pin and code come from, and what is refused before anything is sent."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

from corral.base.errors import Conflict, InvalidInput, NotFound, PathNotUsable
from corral.base.processes import secret_descriptor
from corral.bus.config import BusConfig
from corral.cli.processes.joining import joining
from corral.wire.joining import new_code
from corral.worker.config import FrontendConfig, WorkerConfig
from corral.worker.membership.identity import JOINED_FILE, JoinedFleet, NodeIdentity

PIN, OTHER_PIN, URL = "a" * 32, "b" * 32, "http://10.0.0.1:8080"
CODE = new_code()


@pytest.fixture
def settings(tmp_path: Path) -> WorkerConfig:
    return WorkerConfig(
        frontend=FrontendConfig(urls=()),
        bus=BusConfig(url=""),
        data_path=tmp_path,
        models_path=tmp_path / "models",
        backends_path=tmp_path / "backends",
    )


def join(
    settings: WorkerConfig, url: str, *, file: Path | None = None, descriptor: int | None = None
) -> FrontendConfig:
    return joining(settings, url, code_file=file, code_descriptor=descriptor).frontend


def code_file(folder: Path, text: str = CODE, mode: int = 0o600) -> Path:
    file = folder / "code"
    file.write_text(f"{text}\n")
    file.chmod(mode)
    return file


def test_url_pin_and_code_come_together(settings: WorkerConfig, tmp_path: Path) -> None:
    frontend = join(settings, f"{URL}#{PIN}", file=code_file(tmp_path))
    assert (frontend.urls, frontend.fleet_pin, frontend.join_code) == ((URL,), PIN, CODE)
    assert frontend.is_joining
    assert CODE not in repr(frontend)


def test_a_code_comes_from_a_descriptor_or_a_setting(settings: WorkerConfig) -> None:
    assert join(settings, URL, descriptor=secret_descriptor(CODE.lower().encode())).join_code == CODE
    given = replace(settings, frontend=FrontendConfig(urls=(), join_code=CODE))
    assert join(given, URL).join_code == CODE


def test_a_person_is_asked_until_the_code_is_right(settings: WorkerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["", "K7QM", CODE.replace("-", " ")])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda *_, **__: next(answers))
    assert join(settings, URL).join_code == CODE


@pytest.mark.parametrize(("typed", "code"), [([CODE], CODE), (["K7QM", ""], "")], ids=["another", "none"])
def test_a_person_may_bring_a_member_back_with_another_code(
    settings: WorkerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], code: str
) -> None:
    """The fleet may have removed this machine, which then needs a code; Enter comes back as before."""
    NodeIdentity(tmp_path).remember_fleet(JoinedFleet(urls=(URL,), pin=PIN))
    answers = iter(typed)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda *_, **__: next(answers))
    assert join(settings, URL).join_code == code
    assert list(answers) == []


def test_without_a_terminal_nobody_is_asked(settings: WorkerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    with pytest.raises(InvalidInput, match="needs a join code"):
        join(settings, URL)


@pytest.mark.parametrize("url", ["10.0.0.1", "ftp://a", "http://", f"#{PIN}"])
def test_a_bad_url_is_refused(settings: WorkerConfig, tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="--join"):
        join(settings, url, file=code_file(tmp_path))


def test_a_bad_code_file_is_refused(settings: WorkerConfig, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        join(settings, URL, file=tmp_path / "none")
    with pytest.raises(InvalidInput, match="join code"):
        join(settings, URL, file=code_file(tmp_path, "nonsense"))
    with pytest.raises(PathNotUsable, match="may be read by others"):
        join(settings, URL, file=code_file(tmp_path, mode=0o644))
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with pytest.raises(InvalidInput, match="--code-descriptor"):
        join(settings, URL, descriptor=reader)


def test_the_next_start_needs_nothing(settings: WorkerConfig, tmp_path: Path) -> None:
    NodeIdentity(tmp_path).remember_fleet(JoinedFleet(urls=(URL,), pin=PIN))
    frontend = join(settings, "")
    assert (frontend.urls, frontend.fleet_pin, frontend.join_code, frontend.is_joining) == ((URL,), PIN, "", True)
    moved = replace(settings, frontend=FrontendConfig(urls=("https://elsewhere",)))
    assert (join(moved, "").urls, join(moved, "").fleet_pin) == (("https://elsewhere",), PIN)
    again = join(settings, f"https://elsewhere#{PIN}")
    assert (again.urls, again.join_code) == (("https://elsewhere",), "")


def test_a_machine_in_one_fleet_does_not_join_another_by_mistake(settings: WorkerConfig, tmp_path: Path) -> None:
    NodeIdentity(tmp_path).remember_fleet(JoinedFleet(urls=(URL,), pin=PIN))
    with pytest.raises(Conflict, match=r"delete node-secret, node\.json and joined\.json"):
        join(settings, f"{URL}#{OTHER_PIN}", file=code_file(tmp_path))


def test_a_damaged_memory_is_no_reason_to_trust_anybody(settings: WorkerConfig, tmp_path: Path) -> None:
    (tmp_path / JOINED_FILE).write_text("{")
    (tmp_path / JOINED_FILE).chmod(0o600)
    with pytest.raises(PathNotUsable, match="damaged"):
        join(settings, "")


def test_a_worker_of_settings_alone_pins_nothing(settings: WorkerConfig) -> None:
    assert join(settings, "") == settings.frontend
