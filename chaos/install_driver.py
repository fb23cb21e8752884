"""A process that installs, upgrades, rolls back and deletes, each time in a child that may be killed at any step.

    python -m chaos.install_driver

Orders come from `chaos/installs.py`, as `chaos/crash_driver.py` says.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from chaos.crash_driver import take_orders, write_site
from chaos.crash_shim import Shim
from corral.base.clock import SystemClock
from corral.galleries.config import GalleriesConfig
from corral.galleries.gallery import GallerySource
from corral.oci.config import ImagesConfig
from corral.oci.limits import UnpackLimits
from corral.processes.installing import InstallingConfig, open_installer
from corral.worker.installing.backend_directory import BackendDirectory
from corral.worker.installing.installer import Installer
from corral.worker.installing.orders import InstallOrder
from corral.worker.installing.progress import InstallStep

_ROOT: Final = Path(__file__).absolute().parents[1]
NAME: Final = "cpu-mock"
META: Final = "mock"


def main() -> None:
    take_orders(_act)


def _act(order: dict[str, Any]) -> None:
    code = 1
    try:
        folder, site = Path(order["folder"]), Path(order["site"])
        limits = {"root": str(folder), "trace": order["trace"], "fatal": order["fatal"]}
        write_site(site, limits)
        Shim(**limits, takes_parent=False).arm()
        asyncio.run(_acted(order["act"], folder, site))
        code = 0
    finally:
        os._exit(code)


async def _acted(act: str, folder: Path, site: Path) -> None:
    async with AsyncExitStack() as stack:
        installer = await open_installer(stack, _config(folder, site), capability="default", clock=SystemClock())
        await _do(act, installer, folder / "backends")


async def _do(act: str, installer: Installer, backends: Path) -> None:
    order = InstallOrder(backend=META, wants_newest=True)
    match act:
        case "install":
            await installer.install(await installer.find(order), _unheard)
        case "upgrade" | "confirm":
            await installer.upgrade(await installer.find(order), _unheard)
        case "roll back":
            await installer.roll_back(backends / NAME)
        case "delete":
            located = BackendDirectory(installed=backends, system=(), capability="default").locate(META)
            if located is not None:
                await installer.remove(located)


def _config(folder: Path, site: Path) -> InstallingConfig:
    source = GallerySource(name="g", url=(folder / "index.yaml").as_uri())
    environment = {"PATH": os.defpath, "PYTHONPATH": f"{site}{os.pathsep}{_ROOT}"}
    return InstallingConfig(
        backends=folder / "backends",
        galleries=GalleriesConfig(sources=(source,), cache=folder.parent / "galleries"),
        images=ImagesConfig(
            environment=environment, limits=UnpackLimits(free_bytes=0), niceness=0, previous_min_free=0
        ),
    )


def _unheard(_: InstallStep) -> None:
    """Discard progress that nobody follows."""


if __name__ == "__main__":
    main()
