"""The browser for tests of the page: which one is taken, and what is said when there is none."""

import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class Machine:
    """Runs nothing: npm, Node, tar and browsers do what the test says."""

    def __init__(self) -> None:
        self.starts: tuple[str, ...] = ("/chromium",)
        """Ends of the paths of browsers that find their libraries."""
        self.has_npm = True
        self.commands: list[list[str]] = []

    def attempt(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        self.commands.append(words)
        if "ci" in words:
            self._fetch(options["cwd"])
            return self._done(0 if self.has_npm else 1)
        if "--version" in words:
            return self._done(0 if words[0].endswith(self.starts) else 127)
        if "-e" in words:
            Path(words[-1]).write_text("unpacked")
        return self._done(0)

    def succeed(self, command: Sequence[str | Path], *, advice: str, **options: Any) -> None:
        assert self.attempt(command, **options).returncode == 0

    def _fetch(self, home: Path) -> None:
        fonts = home / "node_modules" / "dejavu-fonts-ttf" / "ttf"
        fonts.mkdir(parents=True)
        for name in ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold"):
            (fonts / f"{name}.ttf").touch()

    @staticmethod
    def _done(code: int) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, "", "no route" if code else "")


@pytest.fixture
def machine(environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One with Node, of the kind that the npm package has a browser for, and without a browser of its own."""
    environment.node.node_program(checkout).parent.mkdir(parents=True)
    environment.node.node_program(checkout).touch()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    return Machine()


@pytest.fixture
def provide(environment: ModuleType, checkout: Any, machine: Machine) -> Callable[[], dict[str, Any] | None]:
    """Has a browser provided, and returns what is written about it."""

    def run() -> dict[str, Any] | None:
        assert environment.browser.missing_browser(checkout, "dev")
        environment.browser.provide_browser(checkout, None, machine)
        description = checkout.browser / "browser.json"
        assert environment.browser.missing_browser(checkout, "dev") != description.exists()
        return json.loads(description.read_text()) if description.exists() else None

    return run


def test_only_developers_get_a_browser(environment: ModuleType, checkout: Any) -> None:
    assert not environment.browser.missing_browser(checkout, "runtime")


def test_it_is_the_one_of_the_npm_package_with_its_libraries_and_fonts(checkout: Any, provide: Any) -> None:
    written = provide()

    home = checkout.browser
    assert written["program"] == str(home / "chromium")
    assert written["environment"]["LD_LIBRARY_PATH"] == str(home / "lib")
    assert f"<dir>{home}/fonts</dir>" in Path(written["environment"]["FONTCONFIG_FILE"]).read_text()
    assert (home / "chromium").stat().st_mode & 0o100


def test_the_machines_own_is_taken_where_the_package_has_none(
    provide: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(shutil, "which", lambda name, **_: "/usr/bin/chromium" if name == "chromium" else None)

    assert provide()["program"] == "/usr/bin/chromium"
    assert "--omit=optional" in next(words for words in machine.commands if "ci" in words)


def test_debians_is_unpacked_where_nothing_else_starts(
    environment: ModuleType, provide: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, folder: Path, *_: object, advice: str) -> None:
        (folder / "usr/lib/some-linux-gnu/of-one").mkdir(parents=True)
        (folder / "usr/lib/some-linux-gnu/of-one/libone.so.1").touch()

    machine.starts = ("/debian/usr/lib/chromium/chromium",)
    monkeypatch.setattr(environment.browser, "fetch_debian_packages", fetch)

    written = provide()

    assert written["program"].endswith("/debian/usr/lib/chromium/chromium")
    assert written["environment"]["LD_LIBRARY_PATH"].endswith("/usr/lib/some-linux-gnu/of-one")


@pytest.mark.parametrize("trouble", ["npm is away", "none starts"])
def test_that_there_is_none_is_said_with_what_to_do(
    environment: ModuleType,
    provide: Any,
    machine: Machine,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fetch(*_: object, advice: str) -> None:
        raise environment.running.Trouble(advice)

    monkeypatch.setattr(environment.browser, "fetch_debian_packages", fetch)
    machine.has_npm = trouble != "npm is away"
    machine.starts = ()

    assert provide() is None

    said = capsys.readouterr().out
    assert "Tests of the page will fail until there is a browser" in said
    assert ("Does it reach its registry?" if trouble == "npm is away" else "Install chromium") in said


def test_another_lock_is_another_browser_and_replaces_it(checkout: Any, provide: Any) -> None:
    provide()
    before = checkout.browser
    (checkout.browser_packages / "package-lock.json").write_text("other")

    provide()

    assert checkout.browser != before
    assert list(checkout.build.glob("browser-*")) == [checkout.browser]
