"""Fleets of real processes that the tests of a module share, and commands that tests run."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.kit.models import write_model
from tests.kit.up import Answer, Running, RunningUp, call, run_corral, running, running_up

StartUp = Callable[..., RunningUp]


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    """Starts `corral up` in the test's directory; may be called again after a stop."""
    with ExitStack() as stack:

        def start(*arguments: str, **variables: str) -> RunningUp:
            return stack.enter_context(running_up(tmp_path, *arguments, **variables))

        yield start


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[RunningUp]:
    """One fleet for all tests of a module that leave it as it was."""
    folder = module_folder / "up"
    folder.mkdir()
    with running_up(folder) as running:
        running.until_ready()
        yield running


@pytest.fixture(scope="session")
def run_up() -> Callable[..., AbstractContextManager[RunningUp]]:
    """`corral up` in a directory, for as long as a block lasts."""
    return running_up


@pytest.fixture(scope="session")
def run_process() -> Callable[..., AbstractContextManager[Running]]:
    """Any command of ours in a directory, for as long as a block lasts."""
    return running


@pytest.fixture(scope="module")
def answering_up(module_folder: Path) -> Iterator[RunningUp]:
    """One fleet for all tests of a module that ask real models, and leave its processes alone.

    `chat` and `embed` are loaded when somebody asks; `cold` is there for one test, which sees it loaded.
    """
    folder = module_folder / "answering"
    folder.mkdir()
    models = folder / "models"
    write_model(models, "chat")
    write_model(models, "embed", embeddings=True)
    write_model(models, "cold")
    with running_up(folder, CORRAL_MODELS_PATH=str(models)) as running:
        running.until_ready()
        yield running


@pytest.fixture
def corral(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(
        *arguments: str, before: Callable[[], None] | None = None, typed: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return run_corral(tmp_path, *arguments, before=before, typed=typed, **variables)

    return run


@pytest.fixture
def start_process(tmp_path: Path) -> Callable[..., AbstractContextManager[Running]]:
    def start(arguments: Sequence[str], **variables: str) -> AbstractContextManager[Running]:
        return running(tmp_path, arguments, **variables)

    return start


@pytest.fixture(name="call")
def call_fixture() -> Callable[..., Answer]:
    """An HTTP call; status 0 when nobody answers."""
    return call
