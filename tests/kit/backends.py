"""Real backend processes for tests, started the way a worker starts them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from corral.rpc.backend import Backend
from corral.rpc.errors import BackendGone
from tests.kit.ports import lasting_port

BACKENDS: Final = Path(__file__).parents[2] / "backends"
SHIPPED: Final = tuple(sorted(json.loads(file.read_text())["name"] for file in BACKENDS.glob("*/corral.json")))
"""Names of the backends in the repository."""
TOKEN: Final = "token-of-the-tests"
KEY: Final = "key-of-the-tests"
SOON: Final = timedelta(seconds=30)
_LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBackend:
    """A process that is ready, and a client of it."""

    process: ChildProcess
    client: Backend
    http_url: str = ""
    front_url: str = ""

    @property
    def address(self) -> str:
        return self.client.address


def backend_command(name: str, *words: str, env: Mapping[str, str] | None = None) -> ChildCommand:
    """`run.sh` as a worker runs it: with the Python of its own that set-up gave it, or with this one."""
    folder = BACKENDS / name
    python = {} if (folder / "venv").exists() else {"CORRAL_BACKEND_PYTHON": sys.executable}
    environment = {
        "PATH": "/usr/bin:/bin",
        "LOCALAI_GRPC_AUTH_TOKEN": TOKEN,
        "CORRAL_HTTP_KEY": KEY,
        **python,
        **(env or {}),
    }
    return ChildCommand(argv=["./run.sh", *words], env=environment, cwd=folder, output=Output.TAIL)


@asynccontextmanager
async def running_backend(
    name: str, *words: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[RunningBackend]:
    """A backend without a model. It is killed at the end if it has not ended by then."""
    port = lasting_port()
    address, http, front = f"127.0.0.1:{port}", f"127.0.0.1:{port - 1}", f"127.0.0.1:{lasting_port()}"
    places = ("--addr", address, "--http-addr", http, "--front-addr", front)
    command = backend_command(name, *places, "--model-name", "the-model", *words, env=env)
    async with start_process(command) as process, Backend(address, token=TOKEN) as client:
        await until_healthy(client, process)
        yield RunningBackend(process=process, client=client, http_url=f"http://{http}", front_url=f"http://{front}")


async def until_healthy(client: Backend, process: ChildProcess) -> None:
    """Across processes there is no event to wait for: look again until it answers."""
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            try:
                return await client.health(timeout=SOON)
            except BackendGone:
                if process.returncode is not None:
                    raise AssertionError("\n".join(["the backend died", *process.tail])) from None
                await asyncio.sleep(_LOOK_SECONDS)
