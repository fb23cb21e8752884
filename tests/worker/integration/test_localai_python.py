"""Backends with an interpreter of their own, as LocalAI's Python images have it: their start scripts make links and
rewrite a file in their virtual environment before anything runs."""

import os
import sys
import sysconfig
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.base.errors import ChildFailed
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.confinement.confiner import Confiner
from corral.worker.confinement.granted_files import BackendPlaces
from corral.worker.confinement.machine import look
from corral.worker.installing.switching import home_of
from tests.kit.backend_node import BackendNode
from tests.kit.backend_scripts import write_serving_backend
from tests.kit.backends import BACKENDS
from tests.kit.clock import ManualClock
from tests.kit.ports import lasting_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines")

START = """#!/bin/bash
set -euo pipefail
own=$(realpath "$(dirname "$0")")
place=$own
if [ "x${ENV_DIR:-}" != "x" ]; then
    place=$ENV_DIR
fi
programs=$place/venv/bin
for name in python3 python; do
    if [ -e "$programs/$name" ] || [ -L "$programs/$name" ]; then rm -f "$programs/$name"; fi
done
ln -s ../../python/bin/python3 "$programs/python3"
ln -s python3 "$programs/python"
sed -i "s|^home = .*|home = $(cd "$place/python" && pwd)|" "$place/venv/pyvenv.cfg"
for script in "$programs"/*; do
    [ -f "$script" ] || continue
    head -c2 "$script" | grep -q '^#!' || continue
    sed -i '1s|^#!.*$|#!/usr/bin/env python3|' "$script"
done
export PATH="$programs:$PATH" LD_LIBRARY_PATH="$place/lib:${LD_LIBRARY_PATH:-}"
exec "$programs/python" "$own/backend.py" "$@"
"""
BUILT_AT = "/build/venv/bin/python3"
BESIDE = """
import sys, helper
assert sys.prefix != sys.base_prefix, "not in its virtual environment"
assert os.path.exists(os.path.join(os.environ["LD_LIBRARY_PATH"].split(":")[0], "libgpu.so"))
assert os.path.exists("helper.py"), "it does not start beside its files"
with open("weights.pth", "w") as file:  # as libraries do that fetch what they need to where they were started
    file.write("fetched")
"""


def write_localai_python(folder: Path, name: str) -> Path:
    """Write such a backend, with this machine's interpreter behind its own."""
    home = write_serving_backend(folder, name, body=BESIDE)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for part in ("python/bin", "lib", f"venv/lib/{version}/site-packages", "venv/bin"):
        (home / part).mkdir(parents=True)
    (home / "python/bin/python3").symlink_to(Path(sys.base_prefix, "bin", version))
    (home / "python/lib").symlink_to(Path(sys.base_prefix, "lib"))
    (home / "lib/libgpu.so").touch()
    (home / "helper.py").touch()
    packages = home / f"venv/lib/{version}/site-packages/packages.pth"
    packages.write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    (home / "venv/pyvenv.cfg").write_text("home = /build/python\n", encoding="utf-8")
    (home / "venv/bin/python3").symlink_to("/build/python/bin/python3")
    (home / "venv/bin/tool").write_text(f"#!{BUILT_AT}\n", encoding="utf-8")
    (home / "run.sh").write_text(START, encoding="utf-8")
    return home


def facts_of(home: Path) -> dict[str, str]:
    """What is in a directory: contents of files, targets of links."""
    return {
        str(path.relative_to(home)): os.readlink(path) if path.is_symlink() else path.read_text(encoding="utf-8")
        for path in sorted(home.rglob("*"))
        if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts
    }


def node_that_confines(folder: Path, *, landlock: bool, is_with_localai: bool) -> BackendNode:
    abilities = look(1_900_000_000)
    if not landlock:
        abilities = replace(abilities, landlock=0)
    places = BackendPlaces(data=folder, models=[folder / "models"])
    sdk = ConfinementConfig(read_paths=(BACKENDS / "sdk",))
    confiner = Confiner(sdk, places=places, abilities=abilities, is_with_localai=lambda: is_with_localai)
    ports = [range(port, port + 1) for port in (lasting_port(), lasting_port())]
    return BackendNode(folder=folder, clock=ManualClock(), ranges=ports, confinement=confiner)


@pytest.mark.parametrize("is_with_localai", [False, True])
@pytest.mark.parametrize("landlock", [True, False])
async def test_a_python_backend_of_localai_starts_confined(
    tmp_path: Path, landlock: bool, is_with_localai: bool
) -> None:
    node = node_that_confines(tmp_path, landlock=landlock, is_with_localai=is_with_localai)
    home = write_localai_python(node.installed, "cpu-transformers")
    before = facts_of(home)

    async with node:
        await node.install("cpu-transformers", "m")
        assert node.running() == ["m#0"]

        assert facts_of(home) == before, "its directory stays as it was installed"


async def test_bytecode_of_a_python_backend_is_kept_for_its_next_process(tmp_path: Path) -> None:
    """It cannot be written beside the packages, and compiling large ones takes longer than a start may take."""
    node = node_that_confines(tmp_path, landlock=True, is_with_localai=True)
    home = write_localai_python(node.installed, "cpu-transformers")

    async with node:
        await node.install("cpu-transformers", "m")

    assert list(home_of(home).rglob("helper.*.pyc"))


async def test_bytecode_that_came_with_the_packages_is_used(tmp_path: Path) -> None:
    node = node_that_confines(tmp_path, landlock=True, is_with_localai=True)
    home = write_localai_python(node.installed, "cpu-transformers")
    packages = next(home.glob("venv/lib/python*/site-packages"))
    (packages / "torch/__pycache__").mkdir(parents=True)

    async with node:
        launch = await node.install("cpu-transformers", "m")

    assert "PYTHONPYCACHEPREFIX" not in launch.variables()


async def test_two_replicas_of_a_python_backend_do_not_prepare_the_same_place(tmp_path: Path) -> None:
    node = node_that_confines(tmp_path, landlock=True, is_with_localai=True)
    write_localai_python(node.installed, "cpu-transformers")

    async with node:
        first = await node.install("cpu-transformers", "m")
        second = await node.install("cpu-transformers", "m", replica=1)

        assert first.variables()["ENV_DIR"] != second.variables()["ENV_DIR"]
        assert node.running() == ["m#0", "m#1"]


async def test_the_worker_opens_nothing_for_it_that_an_image_chose(tmp_path: Path) -> None:
    node = node_that_confines(tmp_path, landlock=True, is_with_localai=False)
    home = write_localai_python(node.installed, "cpu-transformers")
    (tmp_path / "secret").write_text("nobody's business", encoding="utf-8")
    (home / "venv/pyvenv.cfg").unlink()
    (home / "venv/pyvenv.cfg").symlink_to(tmp_path / "secret")

    async with node:
        with pytest.raises(ChildFailed) as failure:
            await node.install("cpu-transformers", "m")

    assert "Permission denied" in str(failure.value), "its script gets no further than the link"
    assert "business" not in str(failure.value)


async def test_an_image_with_too_many_files_for_links_is_not_started(tmp_path: Path) -> None:
    node = node_that_confines(tmp_path, landlock=True, is_with_localai=False)
    home = write_localai_python(node.installed, "cpu-transformers")
    for number in range(10_001):
        (home / f"venv/bin/{number}").touch()

    async with node:
        with pytest.raises(ChildFailed, match="more than 10000 files"):
            await node.install("cpu-transformers", "m")

        assert list((tmp_path / "scratch").iterdir()) == []
