"""What is removed by age, what after a restart, and what never."""

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from corral.worker.config import FilesConfig
from corral.worker.files import disk
from corral.worker.files.disk import NEW_PREFIX, PART_PREFIX, part_name
from corral.worker.files.keys import Area
from corral.worker.files.serving import FileServing
from corral.worker.files.store import FileStore
from corral.worker.files.sweeping import Sweeper
from corral.worker.files.threads import Threads
from tests.kit.clock import ManualClock

HOUR = timedelta(hours=1)
RETENTION = 24 * HOUR


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


class Disk:
    """Files of any age."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        self.root = root
        self._clock = clock

    def put(self, *names: str, age: timedelta = timedelta(0)) -> None:
        moment = (self._clock.now() - age).timestamp()
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
            os.utime(path, (moment, moment))
            os.utime(path.parent, (moment, moment))

    @property
    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}

    @property
    def directories(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_dir()}


@pytest.fixture
def files(tmp_path: Path, clock: ManualClock) -> Disk:
    for area in Area:
        (tmp_path / area).mkdir()
    return Disk(tmp_path, clock)


@pytest.fixture
async def sweeper(files: Disk, clock: ManualClock) -> AsyncIterator[Sweeper]:
    store, threads = FileStore({area: files.root / area for area in Area}), Threads()
    yield Sweeper(store, threads, clock=clock, retention=RETENTION)
    store.close()
    await threads.close()


OLD = RETENTION + HOUR
PART = part_name("m.gguf")


async def test_staged_files_go_when_they_are_old(sweeper: Sweeper, files: Disk) -> None:
    files.put("staging/ephemeral/inputs/1/in.wav", "staging/ephemeral/inputs/1/in.wav.sha256", age=OLD)
    files.put("staging/localai-output-1.tmp", "staging/x.bin", age=OLD)
    files.put("staging/ephemeral/inputs/2/in.wav", age=RETENTION - HOUR)

    await sweeper.sweep()

    assert files.files == {"staging/ephemeral/inputs/2/in.wav"}
    assert "staging/ephemeral/inputs/1" not in files.directories


async def test_finished_models_and_outputs_never_go(sweeper: Sweeper, files: Disk) -> None:
    kept = {"models/m.gguf", "models/m.gguf.sha256", "models/deep/er/m.gguf", "data/out/q.gguf"}
    files.put(*kept, age=1000 * OLD)

    await sweeper.sweep()
    await sweeper.clean_up()

    assert files.files == kept


async def test_unfinished_uploads_go_when_they_are_old(sweeper: Sweeper, files: Disk) -> None:
    files.put(f"models/{PART}", "models/m.gguf.sha256.target", age=OLD)
    files.put(f"data/a/{PART}", f"models/{NEW_PREFIX}1", "models/gone.sha256.target", age=OLD)
    files.put(f"models/young/{PART}", "models/young/m.gguf.sha256.target", age=HOUR)

    await sweeper.sweep()

    assert files.files == {f"models/young/{PART}", "models/young/m.gguf.sha256.target"}


async def test_unfinished_downloads_go_when_they_are_old(sweeper: Sweeper, files: Disk) -> None:
    files.put("models/.corral/partial/old.part", "models/.corral/partial/old.ledger", age=OLD)
    files.put("models/.corral/partial/young.part", "models/.corral/partial/young.ledger", age=HOUR)

    await sweeper.sweep()

    assert files.files == {"models/.corral/partial/young.part", "models/.corral/partial/young.ledger"}


async def test_downloads_of_a_frontend_with_the_same_directory_stay(sweeper: Sweeper, files: Disk) -> None:
    files.put("models/.corral/store", "models/.corral/partial/old.part", age=OLD)

    await sweeper.sweep()

    assert files.files == {"models/.corral/store", "models/.corral/partial/old.part"}


async def test_a_model_that_is_being_replaced_stays_when_its_upload_goes(sweeper: Sweeper, files: Disk) -> None:
    files.put("models/m.gguf", f"models/{PART}", "models/m.gguf.sha256.target", age=OLD)

    await sweeper.sweep()

    assert files.files == {"models/m.gguf"}


async def test_what_localai_left_unfinished_under_its_name_stays(sweeper: Sweeper, files: Disk) -> None:
    """It may be complete, but for its note: nothing under a model's own name is removed by age."""
    files.put("models/m.gguf", "models/m.gguf.sha256.target", age=OLD)

    await sweeper.sweep()

    assert files.files == {"models/m.gguf", "models/m.gguf.sha256.target"}


async def test_a_file_that_was_read_lately_stays(sweeper: Sweeper, files: Disk, clock: ManualClock) -> None:
    files.put("staging/in.wav", age=OLD)
    os.utime(files.root / "staging/in.wav", (clock.now().timestamp(), (clock.now() - OLD).timestamp()))

    await sweeper.sweep()

    assert files.files == {"staging/in.wav"}


async def test_after_a_restart_only_uploads_that_can_be_resumed_stay(sweeper: Sweeper, files: Disk) -> None:
    files.put(f"models/{PART}", "models/m.gguf.sha256.target", "models/m.gguf", age=HOUR)
    files.put(f"models/nobody/{PART}", f"models/{NEW_PREFIX}1", f"staging/{PART_PREFIX}2", age=HOUR)
    files.put("staging/in.wav", age=HOUR)

    await sweeper.clean_up()

    assert files.files == {f"models/{PART}", "models/m.gguf.sha256.target", "models/m.gguf", "staging/in.wav"}


async def test_an_upload_of_this_life_is_no_leftover(sweeper: Sweeper, files: Disk) -> None:
    files.put(f"models/{PART}", age=-timedelta(seconds=1))

    await sweeper.clean_up()

    assert files.files == {f"models/{PART}"}


@pytest.mark.parametrize("name", [f"models/{PART}", f"models/{NEW_PREFIX}1"])
async def test_what_another_process_is_writing_stays(sweeper: Sweeper, files: Disk, name: str) -> None:
    files.put(name, age=OLD)
    held = os.open(files.root / name, os.O_RDWR)
    disk.hold(held)

    await sweeper.clean_up()
    await sweeper.sweep()
    assert files.files == {name}
    os.close(held)
    await sweeper.sweep()

    assert files.files == set()


async def test_links_are_not_followed(sweeper: Sweeper, files: Disk) -> None:
    files.put("elsewhere/precious", age=OLD)
    (files.root / "staging" / "link").symlink_to(files.root / "elsewhere")

    await sweeper.sweep()

    assert files.files == {"elsewhere/precious"}


async def test_a_directory_that_is_gone_stops_nothing(sweeper: Sweeper, files: Disk) -> None:
    (files.root / "models").rmdir()
    files.put("staging/old", age=OLD)

    await sweeper.sweep()

    assert files.files == set()


async def test_it_runs_by_itself(files: Disk, clock: ManualClock) -> None:
    files.put("staging/in.wav", age=RETENTION - 2 * HOUR)
    files.put(f"models/{NEW_PREFIX}1", age=HOUR)

    async with FileServing(FilesConfig(retention=RETENTION), models=files.root / "models", clock=clock):
        await clock.until_sleeping(1)
        assert files.files == {"staging/in.wav"}
        for _ in range(3):
            await clock.advance(HOUR)
            await clock.until_sleeping(1)

    assert files.files == set()
