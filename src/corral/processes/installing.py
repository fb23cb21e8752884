"""Builds the installer of backends, for the worker and for commands that use the same directory without one."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.clock import Clock, SystemClock
from corral.base.errors import PathNotUsable
from corral.base.private_files import held
from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import RegistryArtefacts
from corral.galleries.galleries import open_galleries
from corral.oci.blobs import UNFINISHED, prune
from corral.oci.config import ImagesConfig
from corral.worker.installing import switching
from corral.worker.installing.directory_source import DirectorySource
from corral.worker.installing.image_source import GalleryBackends, Pulls, UriSource
from corral.worker.installing.installer import Installer
from corral.worker.installing.orders import KeepPrevious

_LOCK: Final = "lock"
_LAYERS: Final = "layers"
_LAYERS_KEPT: Final = timedelta(days=1)
"""How long partial layers are kept for the next attempt."""


class InstallingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where backends are installed, and their sources."""

    backends: Path
    galleries: GalleriesConfig
    images: ImagesConfig
    system: Sequence[Path] = ()
    """Directories of backends that came with the system."""


async def open_installer(
    stack: AsyncExitStack, config: InstallingConfig, *, capability: str, clock: Clock
) -> Installer:
    """Open an installer that has the directory exclusively until the stack is closed, and repair it after a crash."""
    state_folder = config.backends / switching.OWN
    try:
        await asyncio.to_thread(state_folder.mkdir, mode=switching.DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise PathNotUsable(f"backends cannot be installed into {config.backends}: {error.strerror}") from error
    problem = (
        f"another worker, or a command, installs backends into {config.backends}: ask that worker through its "
        "frontend, or stop it first"
    )
    stack.enter_context(held(state_folder / _LOCK, problem))
    before = (SystemClock().now() - _LAYERS_KEPT).timestamp()  # the machine's clock, like the times of files
    ending = UNFINISHED if config.images.keep_layers else ""
    await asyncio.to_thread(prune, state_folder / _LAYERS, before=before, ending=ending)
    return await stack.enter_async_context(await make_installer(stack, config, capability=capability, clock=clock))


async def make_installer(
    stack: AsyncExitStack, config: InstallingConfig, *, capability: str, clock: Clock
) -> Installer:
    """Make an installer for looking up only, without a lock."""
    registry = RegistryArtefacts(config.images, clock=clock)
    galleries = await stack.enter_async_context(open_galleries(config.galleries, registry=registry, clock=clock))
    pulls = Pulls(config.images, cache=config.backends / switching.OWN / _LAYERS)
    offered = GalleryBackends(galleries, pulls, capability=capability, system=config.system)
    sources = (DirectorySource(), UriSource(pulls), offered)
    keep = KeepPrevious(is_wanted=config.images.keep_previous, free_bytes=config.images.previous_min_free)
    return Installer(config.backends, sources=sources, clock=clock, keep=keep)
