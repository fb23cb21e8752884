"""An install, an upgrade, a roll-back and a delete, each killed at each of its steps: what is on the disk afterwards.

Whenever the worker and its puller die, after a repair there is a whole old version, or a whole new one, and nothing
else but layers that the next attempt goes on with.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.crash_driver import CrashDriver
from chaos.install_driver import META, NAME
from chaos.round import Workshop
from corral.base.clock import SystemClock
from corral.worker.installing.installer import Installer
from tests.kit.images import a_directory, a_file, a_hard_link, a_layer, a_symlink, gzipped, tar_of
from tests.kit.registry import FakeRegistry

_DONE_AGAIN_EVERY: Final = 8
"""One in this many crashes is followed by the same act, run to its end."""

Print = Mapping[str, str]
"""Fingerprint of a version: its files and their contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    name: str
    begins_with: str
    """The template."""
    tag: str
    """Tag of the image that the gallery names."""
    allowed: tuple[str, ...]
    """Which versions there may be afterwards; the last one when it came to its end. Empty: none."""


ACTS: Final = (
    Act(name="install", begins_with="empty", tag="v1", allowed=("", "v1")),
    Act(name="upgrade", begins_with="two", tag="v3", allowed=("v2", "v3")),
    Act(name="confirm", begins_with="two", tag="v2", allowed=("v2",)),
    Act(name="roll back", begins_with="two", tag="v2", allowed=("v2", "v1")),
    Act(name="delete", begins_with="two", tag="v2", allowed=("v2", "")),
)


async def killed_at_every_step(workshop: Workshop) -> None:
    """For each act, kill at as many steps as the workshop has, chosen by its seed; at all of them if there are not
    more."""
    async with FakeRegistry() as registry, CrashDriver.open(workshop, "chaos.install_driver") as driver:
        matrix = Matrix(workshop, registry, driver)
        await matrix.prepare()
        for act in ACTS:
            await matrix.run(act)


class Matrix:
    def __init__(self, workshop: Workshop, registry: FakeRegistry, driver: CrashDriver) -> None:
        self._workshop = workshop
        self._registry = registry
        self._driver = driver
        self._folder = workshop.directory
        self._prints: dict[str, Print] = {}
        self._digests: dict[str, str] = {}

    async def prepare(self) -> None:
        """Three versions in the registry, and directories to begin with: none installed, and two of them."""
        for version in ("v1", "v2", "v3"):
            self._digests[version] = self._registry.add_image(NAME, _layers(version), tag=version).digest
        (self._folder / "empty").mkdir()
        for version, begins_with, act, ends_with in (
            ("v1", "empty", "install", "one"),
            ("v2", "one", "upgrade", "two"),
            ("v3", "two", "upgrade", "three"),
        ):
            made = await self._played(act, begins_with, version, fatal=0)
            self._prints[version] = _print(made / "backends" / NAME)
            shutil.copytree(made, self._folder / ends_with, symlinks=True)

    async def run(self, act: Act) -> None:
        whole = await self._played(act.name, act.begins_with, act.tag, fatal=0)
        steps = self._driver.steps()
        self._check(whole, act, allowed=act.allowed[-1:], where="at its end")
        chosen = self._driver.chosen_steps(len(steps))
        versions = Counter([await self._crash(act, number, steps[number - 1]) or "none" for number in chosen])
        counted = ", ".join(f"{number} x {version}" for version, number in sorted(versions.items()))
        self._workshop.story.measure(
            f"{act.name}: {len(steps)} steps, killed at {len(chosen)} of them: {counted}, all whole"
        )

    async def _crash(self, act: Act, number: int, step: str) -> str:
        where = f"killed at step {number} ({step})"
        left = await self._played(act.name, act.begins_with, act.tag, fatal=number)
        async with Installer(left / "backends", sources=(), clock=SystemClock()):
            version = self._check(left, act, allowed=act.allowed, where=where)
        if number % _DONE_AGAIN_EVERY == 0:
            await self._done_again(act, left, where)
        self._workshop.story.tell(f"{act.name} {where}: {version or 'nothing'} is there")
        return version

    async def _done_again(self, act: Act, left: Path, where: str) -> None:
        """A roll-back would lead back again, so it is left out."""
        if act.name == "roll back":
            return
        await self._driver.play(left, fatal=0, act=act.name)
        self._check(left, act, allowed=act.allowed[-1:], where=f"{where}, then done again")

    # Playing.

    async def _played(self, act: str, begins_with: str, tag: str, *, fatal: int) -> Path:
        """Run the act up to its fatal step, and return the folder that it left behind."""
        folder = self._driver.next_folder()
        shutil.copytree(self._folder / begins_with, folder, symlinks=True)
        uri = f"{self._registry.address}/{NAME}:{tag}"
        entries = [{"name": META, "capabilities": {"default": NAME}}, {"name": NAME, "alias": "m", "uri": uri}]
        (folder / "index.yaml").write_text(json.dumps(entries))
        await self._driver.play_up_to(folder, fatal=fatal, act=act)
        return folder

    # Checking.

    def _check(self, folder: Path, act: Act, *, allowed: tuple[str, ...], where: str) -> str:
        """The version that is there, whole, with nothing else."""
        backends = folder / "backends"
        version = self._version(backends / NAME, f"{act.name} {where}")
        assert version in allowed, f"{act.name} {where}: {version!r} is there"
        left = {path.name for path in backends.iterdir()} if backends.exists() else set()
        assert left <= {NAME, META, ".corral"}, f"{act.name} {where} left {left}"
        if (backends / META).exists():
            pointer = json.loads((backends / META / "metadata.json").read_text())
            assert pointer["meta_backend_for"] == NAME
        self._check_own(backends / ".corral", version, f"{act.name} {where}")
        if where.endswith(("at its end", "done again")):
            assert not list((backends / ".corral").glob("layers/*")), f"{act.name} {where} left layers"
        return version

    def _check_own(self, own: Path, version: str, where: str) -> None:
        left = {str(path.relative_to(own)) for path in own.glob("*/*") if path.parent.name != "layers"}
        assert left <= {f"previous/{NAME}"}, f"{where} left {left}"
        assert {path.name for path in own.glob("*")} <= {"lock", "layers", "previous", "scratch"}
        before = self._version(own / "previous" / NAME, f"{where}: the version before")
        assert not before or version, f"{where}: a version before nothing"
        assert not before or before != version, f"{where}: {version} twice"

    def _version(self, place: Path, where: str) -> str:
        if not place.exists():
            return ""
        fingerprint = _print(place)
        version = next((name for name, expected in self._prints.items() if expected == fingerprint), None)
        assert version is not None, f"{where}: a mixture: {fingerprint}"
        metadata = json.loads((place / "metadata.json").read_text())
        assert metadata["digest"] == self._digests[version], f"{where}: it says that it is something else"
        return version


def _print(place: Path) -> Print:
    """The fingerprint of a version. Metadata of the installer is left out: it contains the time."""
    fingerprint = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if name == "metadata.json":
            continue
        mode = oct(path.lstat().st_mode)
        if path.is_symlink():
            fingerprint[name] = f"{mode} -> {path.readlink()}"
        elif path.is_file():
            fingerprint[name] = f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            fingerprint[name] = mode
    return fingerprint


def _layers(version: str) -> list[bytes]:
    """Return layers with one member of every kind, and a file that a later layer replaces."""
    base = gzipped(
        tar_of(
            a_directory("lib"),
            a_file("lib/engine.so", version.encode() * 1000),
            a_symlink("lib/engine.so.1", "engine.so"),
            a_hard_link("lib/copy.so", "lib/engine.so"),
            a_file("version", b"to be replaced"),
        )
    )
    return [base, a_layer({"run.sh": b"#!/bin/sh\n", "version": version.encode()})]
