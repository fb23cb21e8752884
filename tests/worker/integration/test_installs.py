"""Installing from a directory, forced or not, upgrading and deleting: what is on the disk and what runs afterwards."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from corral.worker.config import SupervisionConfig
from corral.worker.installing import directory_source
from corral.worker.installing.backend_metadata import Metadata, Provenance
from corral.worker.installing.directory_source import DirectorySource
from corral.worker.installing.orders import CannotInstall, Delivered, Fetching, InstallableBackend, InstallOrder
from corral.worker.installing.progress import InstallStep
from tests.kit.backend_node import Published, SleepingNode
from tests.kit.backend_scripts import write_backend
from tests.kit.waiting import within_timeout

SLEEPS = "exec sleep 1000"


class Mute:
    """Healthy at once; frees only when it may."""

    held: asyncio.Event | None = None
    freeing: asyncio.Event
    freed = 0

    async def health(self, *, timeout: timedelta) -> None: ...

    async def free(self, *, timeout: timedelta) -> None:
        Mute.freed += 1
        Mute.freeing.set()
        if Mute.held is not None:
            await Mute.held.wait()

    async def close(self) -> None: ...


class HeldSource:
    """Offers `slow`, also as `names@slow` and with the alias `quick`, which is copied only when the test lets it."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.fetches = 0
        self.sought = asyncio.Event()
        self.may_be_found = asyncio.Event()
        self.may_be_found.set()

    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        self.sought.set()
        await self.may_be_found.wait()
        if order.backend.rpartition("@")[2] != "slow":
            return None
        metadata = Metadata(name="slow", alias="quick", corral=Provenance(gallery="names"))
        return InstallableBackend(metadata=metadata, fetch=self._fetch)

    async def _fetch(self, fetching: Fetching) -> Delivered:
        into = fetching.into
        self.fetches += 1
        self.begun.set()
        await self.go_on.wait()
        write_backend(into.parent, f"{into.name}/x", shell=SLEEPS)
        (into / "x" / "run.sh").rename(into / "run.sh")
        fetching.report(InstallStep(text="slow", done=1, total=1))
        return Delivered()


class Rig(SleepingNode):
    def __init__(self, folder: Path, limits: SupervisionConfig | None = None) -> None:
        self.held = HeldSource(folder)
        super().__init__(
            folder=folder,
            limits=limits or SupervisionConfig(),
            connect=lambda *_: Mute(),
            system=folder / "system",
            sources=[DirectorySource(), self.held],
        )

    async def reply(self, subject: str, **request: object) -> dict[str, Any]:
        answer = await self.ask(subject, json.dumps(request).encode())
        assert answer is not None
        found: dict[str, Any] = json.loads(answer)
        return found

    async def listed(self) -> dict[str, dict[str, Any]]:
        backends = (await self.reply("backend.list"))["backends"] or []
        return {entry["name"]: entry for entry in backends}

    @property
    def on_disk(self) -> list[str]:
        return sorted(path.name for path in self.installed.iterdir())


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    Mute.held, Mute.freeing, Mute.freed = None, asyncio.Event(), 0
    async with Rig(tmp_path) as rig:
        yield rig


@pytest.fixture
def source(tmp_path: Path) -> Path:
    found = write_backend(tmp_path / "sources", "img", shell=SLEEPS)
    (found / "version").write_text("1")
    return found


async def test_a_directory_is_installed_started_and_described(rig: Rig, source: Path) -> None:
    reply = await rig.reply("backend.install", backend="mock", uri=str(source), name="mock", alias="m")

    assert reply == {"success": True, "address": "127.0.0.3:22301"}
    assert (rig.on_disk, rig.running()) == (["mock"], ["mock#0"])
    at = "2030-01-01T00:00:00Z"
    text = f'{{\n  "alias": "m",\n  "name": "mock",\n  "installed_at": "{at}",\n  "uri": "{source}"\n}}'
    assert (rig.installed / "mock" / "metadata.json").read_text() == text
    assert (rig.installed / "mock" / "metadata.json").stat().st_mode & 0o777 == 0o644
    entry = {"name": "mock", "is_system": False, "is_meta": False, "installed_at": at, "uri": str(source)}
    assert await rig.listed() == {"mock": entry}


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file://localhost{}"])
async def test_without_a_name_it_is_called_as_its_directory(rig: Rig, source: Path, form: str) -> None:
    reply = await rig.reply("backend.install", backend="img", uri=form.format(source))
    assert reply["success"], reply
    assert rig.on_disk == ["img"]


async def test_a_uri_may_have_escapes(rig: Rig, tmp_path: Path) -> None:
    spaced = write_backend(tmp_path / "with space", "ü", shell=SLEEPS)
    reply = await rig.reply("backend.install", backend="ü", uri=spaced.as_uri())
    assert reply["success"], reply
    assert rig.on_disk == ["ü"]


@pytest.mark.parametrize("request_", [{"name": "mock"}, {}])
async def test_an_install_that_names_no_backend_takes_the_name_of_the_directory(
    rig: Rig, source: Path, request_: dict[str, str]
) -> None:
    reply = await rig.reply("backend.install", uri=str(source), **request_)
    assert reply["success"], reply
    assert rig.running() == [f"{request_.get('name', 'img')}#0"]


async def test_another_name_than_the_one_asked_for_is_installed_and_not_found(rig: Rig, source: Path) -> None:
    reply = await rig.reply("backend.install", backend="other", uri=str(source), name="notother")
    assert reply == {"success": False, "error": 'backend "other" not found after install attempt'}
    assert rig.on_disk == ["notother"]


async def test_what_is_installed_is_not_fetched_again_unless_forced(rig: Rig, source: Path, tmp_path: Path) -> None:
    other = write_backend(tmp_path / "sources", "other", shell=SLEEPS)
    await rig.reply("backend.install", backend="ext", uri=str(source), name="ext", alias="ea")
    await rig.ask("backend.stop", b'{"backend":"ext"}')

    await rig.reply("backend.install", backend="ext", uri=str(other), name="ext", alias="eb")
    assert (await rig.listed())["ext"]["uri"] == str(source)

    await rig.reply("backend.install", backend="ext", uri=str(other), name="ext", alias="eb", force=True)
    assert (await rig.listed())["ext"]["uri"] == str(other)
    assert (await rig.reply("backend.install", backend="eb", model_id="q"))["success"]
    assert not (await rig.reply("backend.install", backend="ea", model_id="r"))["success"]


async def test_force_ends_all_replaces_and_starts_one_afresh(rig: Rig, source: Path) -> None:
    asked = {"backend": "mock", "uri": str(source), "name": "mock", "alias": "m"}
    first = await rig.reply("backend.install", **asked)
    for model in ("m1", "m2"):
        await rig.reply("backend.install", backend="m", model_id=model)
    before, at = (rig.installed / "mock").stat().st_ino, (await rig.listed())["mock"]["installed_at"]
    (source / "version").write_text("2")

    second = await rig.reply("backend.install", **{**asked, "alias": ""}, force=True)

    assert second["success"]
    assert second["address"] != first["address"], "the old port rests"
    assert rig.running() == ["mock#0"]
    assert (rig.installed / "mock").stat().st_ino != before
    assert (await rig.listed())["mock"]["installed_at"] > at, "also within the same second"
    assert (rig.installed / "mock" / "version").read_text() == "2"
    assert json.loads((rig.installed / "mock" / "metadata.json").read_text())["alias"] == "m"
    assert Mute.freed == 0
    assert rig.on_disk == ["mock"]


async def test_the_same_forced_install_twice_at_once_succeeds_twice(rig: Rig, source: Path) -> None:
    asked = {"backend": "mock", "uri": str(source), "name": "mock"}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.reply("backend.install", **asked, force=True)) for _ in range(3)]
    assert all(task.result()["success"] for task in tasks)
    assert (rig.running(), rig.on_disk) == (["mock#0"], ["mock"])


async def test_six_first_installs_at_once_are_one_copy_and_one_process(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.reply("backend.install", backend="slow", model_id="m1")) for _ in range(6)]
        await rig.held.begun.wait()
        rig.held.go_on.set()
    assert [task.result() for task in tasks] == [{"success": True, "address": "127.0.0.3:22301"}] * 6
    assert (rig.held.fetches, rig.running()) == (1, ["m1#0"])


async def test_other_backends_do_not_wait_for_a_long_install(rig: Rig, source: Path) -> None:
    long = asyncio.create_task(rig.reply("backend.install", backend="slow"))
    await rig.held.begun.wait()

    assert (await rig.reply("backend.install", backend="img", uri=str(source)))["success"]
    assert (await rig.reply("backend.delete", backend="img"))["success"]
    assert await rig.listed() == {}
    assert await rig.reply("models.running") == {"models": []}

    rig.held.go_on.set()
    assert (await long)["success"]


async def test_a_delete_waits_for_the_install_of_the_same_backend(rig: Rig) -> None:
    install = asyncio.create_task(rig.reply("backend.install", backend="slow"))
    await rig.held.begun.wait()
    delete = asyncio.create_task(rig.reply("backend.delete", backend="slow"))
    rig.held.go_on.set()
    await install
    assert (await delete)["success"]
    assert (rig.on_disk, rig.running()) == ([], [])


async def test_a_delete_does_not_overtake_an_install_that_looks_for_its_source(rig: Rig) -> None:
    """Galleries may take seconds to answer, and nothing is on the disk so long."""
    rig.held.may_be_found.clear()
    rig.held.go_on.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.reply("backend.install", backend="slow", model_id="m1"))
        await rig.held.sought.wait()
        deleting = group.create_task(rig.reply("backend.delete", backend="slow"))
        await rig.listed()
        rig.held.may_be_found.set()
    assert deleting.result()["success"]
    assert rig.on_disk == []


@pytest.mark.parametrize("names", [("names@slow", "slow"), ("slow", "quick"), ("slow", "names@slow")])
@pytest.mark.parametrize("verb", ["backend.install", "backend.upgrade"])
async def test_a_delete_under_another_name_waits_for_what_is_looked_up(
    rig: Rig, verb: str, names: tuple[str, str]
) -> None:
    """Before that, nobody knows that both names are of one backend."""
    rig.held.may_be_found.clear()
    rig.held.go_on.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.reply(verb, backend=names[0]))
        await rig.held.sought.wait()
        deleting = group.create_task(rig.reply("backend.delete", backend=names[1]))
        await rig.listed()
        rig.held.may_be_found.set()
    assert (rig.on_disk, deleting.result()["success"]) == ([], True)


async def test_a_delete_does_not_wait_for_ever_for_the_source_of_another_install(
    rig: Rig, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory on a file server that is away may never be found, nor missed."""
    monkeypatch.setattr("corral.worker.installing.installer.LONGEST_LOOKUP", timedelta())
    await rig.reply("backend.install", backend="img", uri=str(source))
    rig.held.may_be_found.clear()
    rig.held.go_on.set()
    install = asyncio.create_task(rig.reply("backend.install", backend="slow"))
    await rig.held.sought.wait()

    deleted = await within_timeout(rig.reply("backend.delete", backend="img"), lambda: "the delete")

    assert deleted["success"]
    assert not install.done()
    rig.held.may_be_found.set()
    assert (await install)["success"]


async def test_a_delete_does_not_overtake_an_install_of_what_another_delete_removed(rig: Rig) -> None:
    """The install had found the backend on the disk, and must look for a source after all."""
    rig.held.go_on.set()
    await rig.reply("backend.install", backend="slow", model_id="m1")
    Mute.held = asyncio.Event()
    rig.held.sought.clear()
    rig.held.may_be_found.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.reply("backend.delete", backend="quick"))
        await Mute.freeing.wait()
        group.create_task(rig.reply("backend.install", backend="slow", model_id="m2"))
        await rig.listed()
        assert not rig.held.sought.is_set()
        Mute.held.set()
        await rig.held.sought.wait()
        deleting = group.create_task(rig.reply("backend.delete", backend="quick"))
        for _ in range(5):
            await rig.listed()
        rig.held.may_be_found.set()
    assert (rig.on_disk, deleting.result()["success"]) == ([], True)


async def test_a_delete_by_its_alias_waits_for_the_install_of_a_backend(rig: Rig) -> None:
    install = asyncio.create_task(rig.reply("backend.install", backend="slow"))
    await rig.held.begun.wait()
    delete = asyncio.create_task(rig.reply("backend.delete", backend="quick"))
    await rig.listed()
    rig.held.go_on.set()
    await install
    assert (await delete)["success"]
    assert (rig.on_disk, rig.running()) == ([], [])


async def test_a_delete_does_not_wait_for_the_download_of_another_backend(rig: Rig, source: Path) -> None:
    await rig.reply("backend.install", backend="mock", uri=str(source), name="mock")
    install = asyncio.create_task(rig.reply("backend.install", backend="slow"))
    await rig.held.begun.wait()
    waiting = asyncio.create_task(rig.reply("backend.install", backend="names@slow"))
    await rig.listed()
    assert (await rig.reply("backend.delete", backend="mock"))["success"]
    rig.held.go_on.set()
    assert (await install)["success"]
    assert (await waiting)["success"]


async def test_the_end_of_the_worker_ends_an_install_and_leaves_nothing(rig: Rig) -> None:
    install = asyncio.create_task(rig.reply("backend.install", backend="slow"))
    await rig.held.begun.wait()
    rig.installer.close()
    reply = await install
    assert not reply["success"]
    assert "shutting down" in reply["error"]
    assert rig.on_disk == []
    with pytest.raises(CannotInstall, match="shutting down"):
        await rig.install("slow", "again")


# What goes wrong.


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda source: (source / "run.sh").unlink(), "not a valid backend: run file not found"),
        (lambda source: (source / "bad").symlink_to("/etc"), "leads out of the backend's directory"),
        (lambda source: os.mkfifo(source / "pipe"), "is a named pipe"),
    ],
)
async def test_a_directory_that_is_no_backend_leaves_what_was_there(
    rig: Rig, source: Path, spoil: Callable[[Path], None], error: str
) -> None:
    asked = {"backend": "mock", "uri": str(source), "name": "mock"}
    await rig.reply("backend.install", **asked)
    before = (rig.installed / "mock").stat().st_ino
    spoil(source)

    for subject, more in (("backend.install", {"force": True}), ("backend.upgrade", {})):
        reply = await rig.reply(subject, **asked, **more)
        assert not reply["success"]
        assert error in reply["error"]
    assert ((rig.installed / "mock").stat().st_ino, rig.on_disk) == (before, ["mock"])


async def test_a_full_disk_leaves_nothing_of_the_new_version(
    rig: Rig, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"backend": "mock", "uri": str(source), "name": "mock"}
    await rig.reply("backend.install", **asked)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(directory_source, "_write_all", full)
    reply = await rig.reply("backend.upgrade", **asked)

    assert reply["error"].endswith("No space left on device")
    assert reply["stopped_process_keys"] == ["mock#0"]
    assert rig.on_disk == ["mock"]
    assert (await rig.reply("backend.install", backend="mock"))["success"], "the old version still runs"


async def test_room_is_looked_for_before_the_first_byte(
    rig: Rig, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(directory_source.shutil, "disk_usage", lambda _: Usage(free=1024))
    reply = await rig.reply("backend.install", backend="img", uri=str(source))
    assert "1.0 KiB are free in" in reply["error"]
    assert "LOCALAI_BACKENDS_PATH" in reply["error"]
    assert rig.on_disk == []


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "x.install-tmp", "x.install-backup", "n" * 250])
async def test_a_name_that_is_none_is_refused(rig: Rig, source: Path, name: str) -> None:
    reply = await rig.reply("backend.install", backend=name, uri=str(source), name=name)
    assert "cannot be the name of a backend's directory" in reply["error"]
    assert rig.on_disk == []
    assert not (rig.installed.parent / "evil").exists()


async def test_a_source_that_contains_the_backends_is_refused(rig: Rig, tmp_path: Path) -> None:
    reply = await rig.reply("backend.install", backend="x", uri=str(tmp_path), name="x")
    assert "contains the directory that backends are installed into" in reply["error"]


@pytest.mark.parametrize("uri", ["file://elsewhere/x", "/nowhere", "http://h/x", "docker://x", "some-name"])
async def test_a_source_that_cannot_be_used_is_said(rig: Rig, uri: str) -> None:
    reply = await rig.reply("backend.install", backend="x", uri=uri, name="x")
    assert reply["error"].startswith("installing backend from gallery: ")
    assert rig.on_disk == []


async def test_a_crash_s_leftovers_are_repaired_at_the_start(tmp_path: Path) -> None:
    installed = tmp_path / "backends"
    write_backend(installed, "mock.install-backup", shell=SLEEPS)
    write_backend(installed, "mock.install-tmp", shell=SLEEPS)
    async with Rig(tmp_path) as rig:
        assert rig.on_disk == ["mock"]
        assert (await rig.reply("backend.install", backend="mock"))["success"]


# Upgrade and delete.


async def test_an_upgrade_stops_replaces_and_starts_nothing(rig: Rig, source: Path) -> None:
    asked = {"backend": "mock", "uri": str(source), "name": "mock"}
    await rig.reply("backend.install", **asked)
    await rig.reply("backend.install", backend="mock", model_id="m1")
    (source / "version").write_text("2")

    reply = await rig.reply("backend.upgrade", **asked, replica_index=0)

    stopped = reply.pop("stopped_process_keys")
    assert reply == {"success": True, "reports_stopped_processes": True}
    assert sorted(stopped) == ["m1#0", "mock#0"]
    assert (rig.running(), Mute.freed) == ([], 0)
    assert (rig.installed / "mock" / "version").read_text() == "2"
    assert await rig.reply("backend.upgrade", **asked) == {"success": True, "reports_stopped_processes": True}


@pytest.mark.parametrize("more", [{"backend_galleries": "{"}, {}])
async def test_an_upgrade_that_fails_still_says_what_it_stopped(rig: Rig, source: Path, more: dict[str, str]) -> None:
    await rig.reply("backend.install", backend="mock", uri=str(source), name="mock")
    reply = await rig.reply("backend.upgrade", backend="mock", **more)
    error = (
        "decoding backend galleries: " if more else 'upgrading backend from gallery: no backend found with name "mock"'
    )
    assert reply.pop("error").startswith(error)
    assert reply == {"success": False, "stopped_process_keys": ["mock#0"], "reports_stopped_processes": True}


@pytest.mark.parametrize("name", ["ext1", "al1"])
async def test_a_delete_frees_stops_and_removes(rig: Rig, source: Path, name: str) -> None:
    await rig.reply("backend.install", backend="ext1", uri=str(source), name="ext1", alias="al1")
    await rig.reply("backend.install", backend="al1", model_id="m1")
    reply = await rig.reply("backend.delete", backend=name)
    assert sorted(reply.pop("stopped_process_keys")) == ["ext1#0", "m1#0"]
    assert reply == {"success": True, "reports_stopped_processes": True}
    assert (rig.on_disk, rig.running(), Mute.freed) == ([], [], 2)
    again = await rig.reply("backend.delete", backend=name)
    assert again == {
        "success": False,
        "error": f'backend "{name}": backend not found',
        "reports_stopped_processes": True,
    }


def write_meta(rig: Rig) -> None:
    (rig.installed / "metamock").mkdir()
    meta = {"name": "metamock", "meta_backend_for": "cpu-mockm"}
    (rig.installed / "metamock" / "metadata.json").write_text(json.dumps(meta))


async def test_a_meta_backend_is_deleted_with_its_build(rig: Rig) -> None:
    write_backend(rig.installed, "cpu-mockm", shell=SLEEPS)
    write_meta(rig)
    await rig.install("metamock", "m3")
    await rig.install("cpu-mockm", "m4")
    reply = await rig.reply("backend.delete", backend="metamock")
    assert sorted(reply["stopped_process_keys"]) == ["m3#0", "m4#0"]
    assert rig.on_disk == []


async def test_a_meta_backend_without_its_build_is_deleted_too(rig: Rig) -> None:
    write_meta(rig)
    assert await rig.reply("backend.delete", backend="metamock") == {"success": True, "reports_stopped_processes": True}
    assert rig.on_disk == []


async def test_a_build_is_deleted_without_its_meta_backend(rig: Rig) -> None:
    write_backend(rig.installed, "cpu-mockm", shell=SLEEPS)
    write_meta(rig)
    await rig.install("metamock", "m3")
    reply = await rig.reply("backend.delete", backend="cpu-mockm")
    assert (reply["stopped_process_keys"], rig.on_disk) == (["m3#0"], ["metamock"])


async def test_a_system_s_backend_cannot_be_deleted(rig: Rig) -> None:
    write_backend(rig.system, "sysmock", shell=SLEEPS)
    await rig.install("sysmock", "m4")
    reply = await rig.reply("backend.delete", backend="sysmock")
    error = 'system backend "sysmock" cannot be deleted'
    assert reply == {"success": False, "error": error, "reports_stopped_processes": True}
    assert rig.running() == ["m4#0"]


async def test_while_a_process_lives_its_files_stay(tmp_path: Path, source: Path) -> None:
    short = timedelta(milliseconds=20)
    Mute.freeing = asyncio.Event()
    async with Rig(tmp_path, SupervisionConfig(free_within=short, stop_grace=short, kill_within=short)) as rig:
        await rig.reply("backend.install", backend="mock", uri=str(source), name="mock")
        Mute.held = asyncio.Event()  # it never comes to its end
        reply = await rig.reply("backend.delete", backend="mock")
        Mute.held.set()
    assert reply == {
        "success": False,
        "error": "still running, although they were killed: mock#0",
        "reports_stopped_processes": True,
    }
    assert rig.on_disk == ["mock"]


# Progress.


async def test_an_install_with_an_operation_tells_how_far_it_is(rig: Rig, source: Path) -> None:
    (source / "weights").write_bytes(bytes(5 * 1024 * 1024))
    asked = {"backend": "img", "uri": str(source), "op_id": "x.y*z> 1"}
    await rig.reply("backend.install", **asked)
    await rig.reply("backend.install", **asked)
    await rig.reply("backend.upgrade", **{**asked, "op_id": ""})

    assert isinstance(rig.publisher, Published)
    subjects = {subject for subject, _ in rig.publisher.messages}
    events = [json.loads(data) for _, data in rig.publisher.messages]
    assert subjects == {"nodes.11111111-2222-4333-8444-555555555555.backend.install.x-y-z--1.progress"}
    assert 1 <= len(events) <= 2, "the first step and, if it was another one, the last"
    numbers = [event.pop("corral") for event in events]
    assert [number["sequence"] for number in numbers] == list(range(1, len(events) + 1))
    assert numbers[-1]["current"] == numbers[-1]["total"] > 5 * 1024 * 1024
    assert events[-1] == {
        "op_id": "x.y*z> 1",
        "node_id": "11111111-2222-4333-8444-555555555555",
        "backend": "img",
        "file_name": "Starting img",
        "current": "5.0 MiB",
        "total": "5.0 MiB",
        "percentage": 100,
        "phase": "starting",
    }


async def test_an_upgrade_tells_on_the_subject_of_installs(rig: Rig, source: Path) -> None:
    await rig.reply("backend.upgrade", backend="img", uri=str(source), op_id="o1")
    assert isinstance(rig.publisher, Published)
    assert {subject.rpartition(".backend.")[2] for subject, _ in rig.publisher.messages} == {"install.o1.progress"}
