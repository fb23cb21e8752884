"""Fixtures for all tests."""

import asyncio
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Connection, Engine, event
from sqlalchemy.util import LRUCache
from starlette import routing

from corral.base.processes import look_for_garbage_rarely
from corral.bus.port import Bus
from corral.files.s3 import S3Objects
from corral.files.storage import StorageConfig, StorageUnavailable
from corral.frontend.store.db import Database
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.databases import DatabaseSource
from tests.kit.leaks import ChildWatch, Snapshot, report, tasks_left
from tests.kit.ports import lasting_port
from tests.kit.s3 import S3Server

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
CHILDREN = ChildWatch()
TESTS = Path(__file__).parent
WAITING = ("chaos", "e2e", "browser", "cluster")
"""Directories of tests that wait for real processes, the slowest first."""
BUSY = ("integration", "conformance")
"""Those of tests that keep a core busy. All others are quick."""
BUSY_BESIDE = 3
"""Files that keep a core busy for each that waits: so some are beside every one that waits, and some after them."""

# How long examples take says something about the machine and nothing about the code. And the same code gets the same
# examples each time: a run that fails must be about the change that it judges.
settings.register_profile("corral", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("corral")


class _Statements(LRUCache[Any, Any]):
    """Compiled SQL for all engines of a dialect. SQLAlchemy keeps it by engine, and each test has its own engines."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._shared(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(self._shared(key), compiled)

    @staticmethod
    def _shared(key: Any) -> Any:
        dialect, *statement = key
        return (dialect.name, *statement)


STATEMENTS = _Statements(5000)


@event.listens_for(Engine, "engine_connect")
def share_statements(connection: Connection) -> None:
    connection.engine._compiled_cache = STATEMENTS


# Each test that has a frontend makes some two hundred routes, whose patterns are always the same.
routing.compile_path = cache(routing.compile_path)


# Nearly all that collecting the tests makes stays, so looking for garbage among it finds none.
gc.disable()


# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three processes per core, as tests with real processes wait two thirds of their time."""
    return min(3 * len(os.sched_getaffinity(0)), 8)


def pytest_configure(config: pytest.Config) -> None:
    """Each process reads the files of tests beginning with others, as all of them need all files.

    In a new checkout it is reading that takes long, since assertions are rewritten. What one process has rewritten, the
    others find as byte code, but not if all of them are at the same file.
    """
    process = getattr(config, "workerinput", None)
    if process is not None and [Path(argument).absolute() for argument in config.args] == [TESTS]:
        files = sorted(map(str, TESTS.rglob("test_*.py")))
        first = len(files) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
        config.args[:] = files[first:] + files[:first]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file that takes minutes must not be the last one of a process, and those that wait must not all run at once.

    Tests with real processes wait much of their time, and those of several parts hardly ever. So the first kind comes
    mixed with most of the second; the rest of the second follows, and then all that is quick.
    """
    files = sorted({item.path for item in items}, key=lambda path: (_rank(path), path))
    waiting = [file for file in files if _rank(file) < len(WAITING)]
    busy = files[len(waiting) :]
    place = {file: float(number) for number, file in enumerate(busy)}
    place |= {file: number * BUSY_BESIDE - 0.5 for number, file in enumerate(waiting)}
    items.sort(key=lambda item: (place[item.path], item.path))


def _rank(path: Path) -> int:
    kinds = (*WAITING, *BUSY)
    return next((rank for rank, part in enumerate(kinds) if part in path.parts), len(kinds))


def pytest_collection_finish() -> None:
    """Tests and modules stay, so the garbage collector is set as in the processes that people run."""
    look_for_garbage_rarely()
    gc.enable()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test no task, process, thread or descriptor is left that was not there before."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("no_leaks_of_the_loop")
        yield
        return
    before = Snapshot.take(CHILDREN)
    yield
    if leaks := before.leaks():
        pytest.fail(report(leaks), pytrace=False)


@pytest.fixture
async def no_leaks_of_the_loop() -> AsyncIterator[None]:
    """The same while the loop is still there. Set up before all other fixtures, so it looks after they are gone."""
    before = Snapshot.take(CHILDREN)
    yield
    if leaks := [*await tasks_left(), *await before.leaks_beside_tasks()]:
        pytest.fail(report(leaks), pytrace=False)


@contextmanager
def kept_on_failure(request: pytest.FixtureRequest, factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A directory that stays only when a test failed meanwhile: pytest cleans up after tests, not after fixtures."""
    failed_before = request.session.testsfailed
    folder = factory.mktemp(name)
    yield folder
    if request.session.testsfailed == failed_before:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def module_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For the fleets and files that the tests of a module share."""
    with kept_on_failure(request, tmp_path_factory, Path(request.node.name).stem) as folder:
        yield folder


@pytest.fixture(scope="session")
def database_source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseSource]:
    """Where databases come from. PostgreSQL starts when the first test needs it."""
    with kept_on_failure(request, tmp_path_factory, "databases") as folder, DatabaseSource(folder) as source:
        yield source


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, database_source: DatabaseSource) -> AsyncIterator[Database]:
    """A migrated database without rows, on SQLite and on PostgreSQL; choose one by indirect parametrisation."""
    async with database_source.fresh_database(request.param) as database:
        yield database


@pytest.fixture(params=DATABASES)
async def database_url(request: pytest.FixtureRequest, database_source: DatabaseSource) -> AsyncIterator[str]:
    """The same, closed: for programs that open it themselves."""
    async with database_source.fresh_url(request.param) as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """A bus without a network, which passes the conformance suite of the real one."""
    async with MemoryBus(MemoryServer()) as opened:
        yield opened


@pytest.fixture
def golden() -> Path:
    """Messages recorded from LocalAI's binaries, beside the checkout; CI always has them."""
    folder = Path(__file__).parents[2] / "shared" / "golden"
    if not folder.is_dir() and not os.environ.get("CI"):
        pytest.skip("the recordings are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def s3_client() -> None:
    """The client library's event loop runs. It starts with the first call and stays for the whole process, so it would
    be a leak of the test that makes this call."""

    async def first_call() -> None:
        url = f"http://127.0.0.1:{lasting_port()}"
        nobody = StorageConfig(url=url, bucket="none", access_key="none", secret_key="none", retries=0)
        with pytest.raises(StorageUnavailable):
            await S3Objects(nobody).look("nothing")

    asyncio.run(first_call())


@pytest.fixture(scope="session")
def s3_server(s3_client: None) -> Iterator[S3Server]:
    """A real S3 server."""
    with S3Server() as server:
        yield server
