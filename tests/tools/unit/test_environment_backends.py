"""Packages and images of Corral's own backends."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests.kit.waiting import wait_until


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
    assert environment.backends.missing_backends(checkout, "runtime") == []
    assert environment.backends.missing_backends(checkout, "dev") == [speaker]

    environment.backends.provide_backend(speaker, checkout, make_home)

    assert (speaker / "venv" / "bin").is_dir()
    assert environment.backends.missing_backends(checkout, "dev") == []
    (speaker / "requirements.txt").write_text("espeak==2\n")
    assert environment.backends.missing_backends(checkout, "dev") == [speaker]
    environment.backends.provide_backend(speaker, checkout, make_home)
    assert len(list((checkout.build / "backends").iterdir())) == 1, "the packages of the old lock are gone"


def test_half_the_packages_of_a_backend_are_not_taken_for_all(
    environment: ModuleType, checkout: Any, speaker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*words: str | Path, advice: str) -> None:
        make_home(*words, advice=advice)
        if words[0] == "pip":
            raise environment.running.Trouble(advice, "no route")

    environment.backends.provide_backend(speaker, checkout, fail)

    assert "The packages of speaker could not be had" in capsys.readouterr().out
    assert environment.backends.missing_backends(checkout, "dev") == [speaker]
    environment.backends.provide_backend(speaker, checkout, make_home)
    assert environment.backends.missing_backends(checkout, "dev") == []


def test_client_packages_are_for_developers_and_of_one_lock_only(environment: ModuleType, checkout: Any) -> None:
    assert not environment.backends.missing_clients(checkout, "runtime")
    for lock in ("client==1", "client==2"):
        checkout.lock("clients").write_text(lock)
        assert environment.backends.missing_clients(checkout, "dev")
        environment.backends.provide_clients(checkout, make_home)
        assert not environment.backends.missing_clients(checkout, "dev")
        assert list(checkout.build.glob("clients-*")) == [checkout.clients_home]


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
        output = words.index("--output")
        names = [Path(str(word).rpartition("=")[2]).name for word in words[:output]]
        Path(words[output + 1]).write_text("".join(f"uri: ./{name}\n" for name in names))


def provide(environment: ModuleType, checkout: Any, uv: ImageUv, names: Sequence[str] = ()) -> None:
    everything = tuple(environment.checkout.OWN_BACKENDS)
    environment.backends.provide_images(checkout, uv, names or everything, "Making images")


def test_images_are_made_once_for_each_input(environment: ModuleType, checkout: Any) -> None:
    backend = checkout.root / "backends/echo/backend.py"
    backend.parent.mkdir(parents=True)
    backend.write_text("one")
    earlier = checkout.backend_gallery
    provide(environment, checkout, ImageUv(environment))
    assert checkout.missing_images(environment.checkout.OWN_BACKENDS) == []

    backend.write_text("two")
    (backend.parent / "__pycache__").mkdir()
    now = checkout.backend_gallery
    (backend.parent / "__pycache__/backend.pyc").touch()

    assert now != earlier
    assert now == checkout.backend_gallery
    assert checkout.missing_images(environment.checkout.OWN_BACKENDS) == list(environment.checkout.OWN_BACKENDS)
    provide(environment, checkout, ImageUv(environment))
    assert [place.name for place in checkout.build.iterdir()] == [now.parent.name]


def test_libraries_of_a_bare_machine_go_into_the_images(environment: ModuleType, checkout: Any) -> None:
    checkout.libraries.mkdir(parents=True)
    (checkout.libraries / "libgomp.so.1").touch()
    (checkout.libraries / "other.not-found").touch()
    uv = ImageUv(environment)

    provide(environment, checkout, uv)

    assert uv.asked[0][-2:] == ["--library", str(checkout.libraries / "libgomp.so.1")]
    assert uv.asked[-1][1].startswith("default=")


def test_the_image_of_the_first_answer_is_made_first_and_the_rest_beside_it(
    environment: ModuleType, checkout: Any
) -> None:
    everything = list(environment.checkout.OWN_BACKENDS)
    provide(environment, checkout, ImageUv(environment), environment.checkout.FIRST_BACKENDS)
    assert checkout.missing_images(environment.checkout.FIRST_BACKENDS) == []
    rest = checkout.missing_images(everything)
    assert set(rest) == set(everything) - {"llama_cpp"}

    uv = ImageUv(environment)
    provide(environment, checkout, uv)

    assert [Path(words[0]).name for words in uv.asked[:-1]] == rest, "what is there is not made again"
    assert checkout.missing_images(everything) == []
    assert not list(checkout.build.glob("*.part"))


def test_an_image_that_no_index_lists_is_made_again(environment: ModuleType, checkout: Any) -> None:
    """The set-up was killed between the two."""
    provide(environment, checkout, ImageUv(environment), ["echo"])
    (checkout.backend_gallery.parent / "silero_vad").mkdir()
    assert checkout.missing_images(["echo", "silero_vad"]) == ["silero_vad"]
    provide(environment, checkout, ImageUv(environment), ["silero_vad"])
    assert checkout.missing_images(["echo", "silero_vad"]) == []


def test_what_a_new_fleet_is_given_lies_where_corral_up_looks_for_it(environment: ModuleType, checkout: Any) -> None:
    checkout.chat_model.parent.mkdir(parents=True)
    checkout.chat_model.write_text("weights")
    provide(environment, checkout, ImageUv(environment))
    for _ in range(2):
        environment.backends.link_provisions(checkout)
        assert (checkout.provisions / "first-model.gguf").read_text() == "weights"
        assert (checkout.provisions / "backends" / "index.yaml").exists()


def test_without_the_images_all_else_works(
    environment: ModuleType, checkout: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for trouble in (environment.running.Trouble("no route"), OSError(28, "No space left on device")):
        provide(environment, checkout, ImageUv(environment, trouble))

    assert capsys.readouterr().out.count("not done") == 2
    assert not checkout.backend_gallery.exists()


_REST = """
import contextlib, os, sys, threading
sys.path.insert(0, sys.argv[1])
from environment import command

def make_for_ever(*arguments):
    print(os.getpid(), flush=True)
    threading.Event().wait()

command.exclusive = lambda checkout: contextlib.nullcontext()
command.Uv = lambda checkout, runner: None
command.provide_images = make_for_ever
command.make_the_rest(None, int(sys.argv[2]))
"""


def test_who_makes_the_rest_of_the_images_is_nobodys_child_and_leaves_with_the_command_beside_it(root: Path) -> None:
    reader, writer = os.pipe()
    words = [sys.executable, "-c", _REST, str(root / "tools"), str(reader)]
    with subprocess.Popen(words, pass_fds=[reader], process_group=0, stdout=subprocess.PIPE, text=True) as starter:
        os.close(reader)
        assert starter.stdout is not None
        maker = psutil.Process(int(starter.stdout.readline()))
        assert starter.wait(60) == 0
        assert maker.is_running()
        assert maker.nice() == min(os.nice(0) + 15, 19)
        os.close(writer)
        wait_until(lambda: not maker.is_running() or maker.status() == psutil.STATUS_ZOMBIE, "its end")
