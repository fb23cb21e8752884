"""pip and uv: which are taken, and what uv is told of what pip is told."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def test_the_environment_wins_over_the_command_over_the_global_section(environment: ModuleType) -> None:
    listing = "\n".join(
        [
            "global.index-url='one'",
            "global.cert='/ca'",
            "install.index-url='two'",
            "freeze.timeout='9'",
            ":env:.index-url='three=3'",
            ":env:.extra-index-url='a\\nb'",
        ]
    )

    assert environment.pip.pip_settings(listing) == {"index-url": "three=3", "cert": "/ca", "extra-index-url": "a\nb"}


def test_lines_that_are_no_settings_are_skipped(environment: ModuleType) -> None:
    assert environment.pip.pip_settings("WARNING: something = odd\nglobal.cert=/unquoted\n") == {}


def test_pip_settings_become_uv_variables(environment: ModuleType, tmp_path: Path) -> None:
    settings = {
        "index-url": "scheme://index",
        "extra-index-url": "scheme://a\nscheme://b",
        "find-links": f"{tmp_path} {tmp_path}/missing scheme://links",
        "trusted-host": "one two",
        "cert": "/ca.pem",
        "timeout": "60",
    }

    assert environment.uv.uv_environment(settings, {"HOME": str(tmp_path)}, tmp_path) == {
        "HOME": str(tmp_path),
        "UV_DEFAULT_INDEX": "scheme://index",
        "UV_INDEX": "scheme://a scheme://b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{tmp_path},scheme://links",
        "UV_INSECURE_HOST": "one two",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_HTTP_TIMEOUT": "60",
        "UV_PYTHON_DOWNLOADS": "never",
    }


def test_without_settings_uv_trusts_what_the_system_trusts(environment: ModuleType, tmp_path: Path) -> None:
    variables = environment.uv.uv_environment({}, {"HOME": str(tmp_path)}, tmp_path)

    assert variables == {"HOME": str(tmp_path), "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}


def test_what_the_user_set_for_uv_stays(environment: ModuleType, tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "UV_DEFAULT_INDEX": "mine"}

    assert environment.uv.uv_environment({"index-url": "pip's"}, own, tmp_path)["UV_DEFAULT_INDEX"] == "mine"


@pytest.mark.parametrize("environ", [{}, {"HOME": "/nonexistent"}])
def test_without_a_home_the_cache_stays_in_the_checkout(
    environment: ModuleType, tmp_path: Path, environ: dict[str, str]
) -> None:
    assert environment.uv.uv_environment({}, environ, tmp_path / "cache")["UV_CACHE_DIR"] == str(tmp_path / "cache")


class ScriptedRunner:
    """Runs nothing: programs whose words contain one of `works` succeed, the others fail."""

    def __init__(self, *works: str) -> None:
        self._works = works
        self.asked: list[str] = []

    def attempt(self, command: Sequence[str | Path], **_: object) -> subprocess.CompletedProcess[str]:
        line = " ".join(map(str, command))
        self.asked.append(line)
        code = 0 if any(word in line for word in self._works) else 1
        return subprocess.CompletedProcess(line, code, stdout="", stderr="it broke")

    def succeed(self, command: Sequence[str | Path], *, advice: str, **_: object) -> None:
        if self.attempt(command).returncode != 0:
            raise KeyboardInterrupt
        words = [str(word) for word in command]
        if "--target" in words:
            program = Path(words[words.index("--target") + 1]) / "bin/uv"
            program.parent.mkdir(parents=True)
            program.touch()


def test_the_pip_of_the_machine_comes_first(environment: ModuleType, checkout: Any) -> None:
    found = environment.pip.find_pip(checkout, ScriptedRunner("-m pip"))

    assert found == [environment.checkout.BASE_PYTHON, "-m", "pip"]


def test_a_pip_fetched_earlier_is_used_again(environment: ModuleType, checkout: Any) -> None:
    wheel = checkout.build / "debian/usr/share/python-wheels/pip-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()

    assert environment.pip.find_pip(checkout, ScriptedRunner(str(wheel))) == environment.pip.pip_in(wheel)


def test_without_pip_and_apt_one_is_told_to_install_pip(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(environment.running.Trouble, match="Install pip and try again"):
        environment.pip.find_pip(checkout, ScriptedRunner())


def test_apts_own_words_reach_the_user(environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)

    with pytest.raises(environment.running.Trouble, match=r"(?s)it broke.*Could not fetch python3-pip-whl from Debian"):
        environment.pip.find_pip(checkout, ScriptedRunner())


def test_uv_is_fetched_once_by_hash(environment: ModuleType, checkout: Any) -> None:
    runner = ScriptedRunner("pip install")

    program = environment.uv.get_uv(checkout, runner, ["pip"])

    assert program.exists()
    assert environment.uv.get_uv(checkout, runner, ["pip"]) == program
    assert len(runner.asked) == 1
    assert "--require-hashes" in runner.asked[0]


def test_half_a_uv_is_not_taken_for_one(environment: ModuleType, checkout: Any) -> None:
    (checkout.build / "uv.part/bin").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        environment.uv.get_uv(checkout, ScriptedRunner(), ["pip"])

    assert environment.uv.get_uv(checkout, ScriptedRunner("pip install"), ["pip"]).exists()


def test_a_new_uv_replaces_the_old_one(environment: ModuleType, checkout: Any) -> None:
    old = environment.uv.get_uv(checkout, ScriptedRunner("pip install"), ["pip"])
    checkout.lock("bootstrap").write_text("uv==2")
    new = environment.uv.get_uv(checkout, ScriptedRunner("pip install"), ["pip"])

    assert new.exists()
    assert not old.exists()
