"""`.venv` and its stamp: what is done is not done again, and what was interrupted is made good."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class RecordingUv:
    """Does what uv would leave behind, and remembers what it was asked. Fails at the step it is told to."""

    def __init__(self, checkout: Any, *, fails_at: str = "") -> None:
        self._checkout = checkout
        self._fails_at = fails_at
        self.asked: list[str] = []

    def __call__(self, *words: str | Path, advice: str) -> None:
        name = " ".join(str(word) for word in words[:2] if not str(word).startswith("-"))
        self.asked.append(name)
        if name == self._fails_at:
            raise KeyboardInterrupt
        program = self._checkout.python if name == "venv" else self._checkout.venv / "bin/corral"
        if name != "pip sync":
            program.parent.mkdir(parents=True, exist_ok=True)
            program.touch()


Install = Callable[..., list[str]]


@pytest.fixture
def install(environment: ModuleType, checkout: Any) -> Install:
    """Run the steps that are due; answers what uv was asked for."""

    def run(level: str = "runtime", fails_at: str = "") -> list[str]:
        uv = RecordingUv(checkout, fails_at=fails_at)
        if not checkout.is_ready(level):
            try:
                environment.venv.install(checkout, uv, level)
            except KeyboardInterrupt:
                assert fails_at
        return uv.asked

    return run


def test_a_second_run_has_nothing_to_do(install: Install) -> None:
    assert install() == ["venv", "pip sync", "pip install"]
    assert install() == []


@pytest.mark.parametrize("step", ["venv", "pip sync", "pip install"])
def test_an_interrupted_run_is_made_good(install: Install, checkout: Any, step: str) -> None:
    install(fails_at=step)

    assert not checkout.is_ready("runtime")
    # Half a package may be in a venv whose installation was cut off: it starts anew.
    assert install() == (["pip install"] if step == "pip install" else ["venv", "pip sync", "pip install"])
    assert checkout.is_ready("runtime")


def test_an_interrupted_change_of_packages_starts_anew(install: Install, checkout: Any) -> None:
    install()
    checkout.lock("runtime").write_text("a==2")
    install(fails_at="pip sync")

    assert install() == ["venv", "pip sync", "pip install"]


def test_a_changed_lock_keeps_the_venv(install: Install, checkout: Any) -> None:
    install()
    checkout.lock("runtime").write_text("a==2")

    assert install() == ["pip sync", "pip install"]


def test_a_new_version_installs_the_project_only(install: Install, checkout: Any) -> None:
    install()
    (checkout.root / "src/corral/__init__.py").write_text("__version__ = '2'")

    assert install() == ["pip install"]


def test_a_lost_program_is_installed_again(install: Install, checkout: Any) -> None:
    install()
    (checkout.venv / "bin/corral").unlink()

    assert install() == ["pip install"]


def test_a_vanished_python_means_a_new_venv(install: Install, checkout: Any) -> None:
    install()
    checkout.python.unlink()
    checkout.python.symlink_to("/nonexistent/python")

    assert install() == ["venv", "pip sync", "pip install"]


@pytest.mark.parametrize("stamp", ["", "{", "[]"])
def test_a_broken_stamp_means_a_new_venv(install: Install, checkout: Any, stamp: str) -> None:
    install()
    checkout.stamp.write_text(stamp)

    assert install() == ["venv", "pip sync", "pip install"]


def test_a_moved_checkout_gets_a_new_venv(environment: ModuleType, install: Install, checkout: Any) -> None:
    install()
    moved = environment.checkout.Checkout(checkout.root.parent / "moved")
    shutil.copytree(checkout.root, moved.root)

    assert not moved.is_ready("runtime")


def test_a_developers_venv_stays_one(environment: ModuleType, install: Install, checkout: Any) -> None:
    assert environment.venv.level_for(checkout, dev=False) == "runtime"
    install("dev")

    assert environment.venv.level_for(checkout, dev=False) == "dev"


def test_developers_tools_are_added_to_a_venv_without(install: Install) -> None:
    install("runtime")

    assert install("dev") == ["pip sync", "pip install"]


def test_a_symlinked_venv_is_unlinked_not_emptied(environment: ModuleType, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    link = tmp_path / "link"
    link.symlink_to(elsewhere)

    environment.checkout.remove(link)

    assert not link.is_symlink()
    assert (elsewhere / "precious").exists()
