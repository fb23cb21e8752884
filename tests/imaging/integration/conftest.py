"""A backend with packages of its own, in a folder of wheels: builds need no network."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.imaging.build import BuildOrder, BuiltBackend, build
from corral.imaging.layers import Compression, Packing
from corral.imaging.packages import PackageInstaller, find_installer
from corral.oci.manifests import this_platform
from corral.processes.configs import shipped_installers
from tests.kit.docker_registry import DockerRegistry
from tests.kit.wheels import a_wheel, lock_of

RUN = """#!/bin/sh
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
echo "tiny runs from $here"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """A backend that can be built as often as one likes."""

    directory: Path
    wheels: Path
    installer: PackageInstaller
    environment: dict[str, str]

    def order(self, **changes: object) -> BuildOrder:
        usual: dict[str, object] = {
            "directory": self.directory,
            "platforms": (this_platform(),),
            "packing": Packing(compression=Compression.ZSTD, level=1),
            "wheels": self.wheels,
            "environment": self.environment,
        }
        return BuildOrder(**{**usual, **changes})  # type: ignore[arg-type]

    async def build(self, output: Path, **changes: object) -> BuiltBackend:
        return await build(self.order(**changes), output, lambda: self.installer)


@pytest.fixture
def workbench(tmp_path: Path) -> Workbench:
    directory, wheels = tmp_path / "backends" / "tiny", tmp_path / "wheels"
    directory.mkdir(parents=True)
    (directory / "run.sh").write_text(RUN)
    (directory / "corral.json").write_text('{"name": "tiny", "version": "1.0", "description": "Does little."}')
    made = [a_wheel(wheels, "first", script="first"), a_wheel(wheels, "second", files={"second/data.txt": "data"})]
    (directory / "requirements.txt").write_text(lock_of(made))
    environment = {"PATH": os.defpath, "HOME": str(tmp_path / "home"), "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    return Workbench(
        directory=directory,
        wheels=wheels,
        installer=find_installer(None, shipped_installers(), shutil.which("uv") or ""),
        environment=environment,
    )


@pytest.fixture
def registry() -> Iterator[DockerRegistry]:
    with DockerRegistry() as registry:
        yield registry
