"""A fleet for the benches, started as a user would: `corral up` with real processes, a data directory of its own."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.simulation import Frontend
from corral.base.errors import ChildFailed
from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from corral.bus.authority import Authority
from corral.bus.config import BusConfig
from corral.bus.minting import Minter
from corral.processes.up_file import UpFile, read_up_file

READY_WITHIN_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.01
_OURS: Final = ("CORRAL_", "LOCALAI_")


def corral(*arguments: str) -> list[str]:
    """How to start Corral with this very interpreter."""
    return [sys.executable, "-m", "corral", *arguments]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of this process without the caller's own settings of Corral, which would make figures incomparable."""
    neutral = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**neutral, **(changes or {})}


@asynccontextmanager
async def fleet(data: Path, *, workers: int, settings: Mapping[str, str] | None = None) -> AsyncIterator[UpFile]:
    """Ready at once; ended, with everything that belongs to it, on leaving."""
    arguments = corral("up", "--data", str(data), "--port", "0", "--workers", str(workers))
    bare = {"CORRAL_PROVISIONS": str(data / "none")}  # the same fleet on every checkout
    command = ChildCommand(argv=arguments, env=environment({**bare, **(settings or {})}), output=Output.TAIL)
    async with start_process(command) as process:
        try:
            yield await _until_ready(data, process)
        finally:
            process.terminate()
            await process.wait()


async def _until_ready(data: Path, process: ChildProcess) -> UpFile:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while (found := read_up_file(data)) is None:
        if process.returncode is not None or time.monotonic() > deadline:
            raise ChildFailed("corral up did not become ready:\n" + "\n".join(process.tail))
        await asyncio.sleep(_LOOK_SECONDS)
    return found


def frontend_of(up: UpFile) -> Frontend:
    """How simulated nodes reach it."""
    parts = urlsplit(up.url)
    return Frontend(
        host=parts.hostname or "",
        port=parts.port or 0,
        registration_token=up.keys.registration,
        admin_key=up.keys.admin,
    )


def frontend_bus(data: Path, up: UpFile) -> BusConfig:
    """How to log in to the fleet's NATS as its frontend does, to ask its workers."""
    authority = Authority.load_or_create(data / "nats")
    user = Minter(authority.account_seed, timedelta(hours=1)).mint_frontend(at=datetime.now(UTC))
    return BusConfig(url=up.nats_url, jwt=user.jwt, seed=user.seed)
