"""What backends keep in their HOME: downloads and compiled code, which the next process of the same backend finds."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.base.errors import ChildFailed
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.confinement.confiner import Confiner
from corral.worker.confinement.granted_files import BackendPlaces
from corral.worker.confinement.machine import look
from corral.worker.installing.switching import home_of, repair
from tests.kit.backend_node import BackendNode
from tests.kit.backend_scripts import write_serving_backend
from tests.kit.backends import BACKENDS
from tests.kit.clock import ManualClock
from tests.kit.ports import lasting_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines")

COUNTS = """
place = os.path.expanduser("~/.cache/huggingface")
os.makedirs(place, exist_ok=True)
with open(os.path.join(place, "starts"), "a") as file:
    file.write("+")
"""
PEEPS = """
open({path!r}).close()
"""


def confining_node(folder: Path, *, landlock: bool = True, is_with_localai: bool = True) -> BackendNode:
    abilities = look(1_900_000_000)
    if not landlock:
        abilities = replace(abilities, landlock=0)
    confiner = Confiner(
        ConfinementConfig(read_paths=(BACKENDS / "sdk",)),
        places=BackendPlaces(data=folder, models=[folder / "models"]),
        abilities=abilities,
        is_with_localai=lambda: is_with_localai,
    )
    ports = [range(port, port + 1) for port in (lasting_port(), lasting_port(), lasting_port())]
    return BackendNode(folder=folder, clock=ManualClock(), ranges=ports, confinement=confiner)


def starts_of(home: Path) -> int:
    return len((home_of(home) / ".cache/huggingface/starts").read_text())


@pytest.mark.parametrize("landlock", [True, False])
@pytest.mark.parametrize("is_with_localai", [True, False])
async def test_the_next_process_finds_what_the_first_one_downloaded(
    tmp_path: Path, landlock: bool, is_with_localai: bool
) -> None:
    node = confining_node(tmp_path, landlock=landlock, is_with_localai=is_with_localai)
    home = write_serving_backend(node.installed, "engine", body=COUNTS)

    async with node:
        for model in ("a", "b"):
            launch = await node.install("engine", model)
            assert launch.variables()["HOME"] == str(home_of(home))
            await node.supervisor.end(launch)

    assert starts_of(home) == 2
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_replicas_that_start_at_once_share_it(tmp_path: Path) -> None:
    node = confining_node(tmp_path, is_with_localai=False)
    home = write_serving_backend(node.installed, "engine", body=COUNTS)

    async with node:
        await asyncio.gather(*(node.install("engine", "m", replica=index) for index in range(3)))

    assert starts_of(home) == 3


async def test_another_backend_reads_nothing_of_it(tmp_path: Path) -> None:
    node = confining_node(tmp_path)
    home = write_serving_backend(node.installed, "engine", body=COUNTS)
    write_serving_backend(
        node.installed, "thief", body=PEEPS.format(path=str(home_of(home) / ".cache/huggingface/starts"))
    )

    async with node:
        await node.install("engine", "m")
        with pytest.raises(ChildFailed, match="Permission denied"):
            await node.install("thief", "m")


async def test_it_goes_with_the_backend(tmp_path: Path) -> None:
    node = confining_node(tmp_path)
    home = write_serving_backend(node.installed, "engine", body=COUNTS)
    async with node:
        await node.install("engine", "m")
        await node.ask("backend.delete", b'{"backend":"engine"}')

    assert not home.exists()
    assert not home_of(home).exists()


def test_one_without_a_backend_goes_at_the_next_start(tmp_path: Path) -> None:
    kept, left = home_of(tmp_path / "kept"), home_of(tmp_path / "left")
    for folder in (kept, left, tmp_path / "kept"):
        folder.mkdir(parents=True)

    repair(tmp_path)

    assert kept.exists()
    assert not left.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes owners")
async def test_one_of_another_user_is_made_anew(tmp_path: Path) -> None:
    home = write_serving_backend(tmp_path / "backends", "engine", body=COUNTS)
    for is_with_localai in (True, False):
        async with confining_node(tmp_path, is_with_localai=is_with_localai) as node:
            await node.install("engine", "m")

    assert starts_of(home) == 1


async def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    node = confining_node(tmp_path)
    home = write_serving_backend(node.installed, "engine", body=COUNTS)
    (tmp_path / "elsewhere").mkdir()
    home_of(home).parent.mkdir(parents=True)
    home_of(home).symlink_to(tmp_path / "elsewhere")

    async with node:
        await node.install("engine", "m")

    assert not home_of(home).is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_single_program_among_the_backends_has_none(tmp_path: Path) -> None:
    """What is around it belongs to the others."""
    node = confining_node(tmp_path)
    home = write_serving_backend(node.installed, "engine")
    program = node.installed / "plain"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{home}/backend.py" "$@"\n')
    program.chmod(0o755)

    async with node:
        launch = await node.install("plain", "m")
        assert Path(launch.variables()["HOME"]).is_relative_to(tmp_path / "scratch")

    assert not (tmp_path / ".corral").exists()
