"""Runs one backend on this machine as a worker would, for its author: without worker, frontend and model."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.errors import ChildFailed, CorralError, NotFound
from corral.base.ids import new_secret
from corral.base.processes import Child, ChildCommand, describe_exit, start_process, until_ready
from corral.base.tasks import first_done, stop_on_signals
from corral.processes.local_backends import MachineConfig
from corral.processes.probe import take_port
from corral.rpc.backend import Backend
from corral.wire.replicas import ProcessKey
from corral.worker.installing.backend_directory import BackendDirectory, Home
from corral.worker.processes.process import LOOPBACK, TOKEN_VARIABLE, Launch

_LOOK_SECONDS: Final = 0.1
_PROBE: Final = timedelta(seconds=2)
_GRACE: Final = timedelta(seconds=15)


def find_backend(word: str, machine: MachineConfig) -> Home:
    """Find a backend by directory, or by the name that a worker here would know. NotFound lists the places. Blocks."""
    path = Path(word)
    if "/" in word or path.is_dir():
        directory = BackendDirectory(installed=path.absolute().parent, system=(), capability="")
        home = directory.find(path.absolute().name)
        places = [str(path / "run.sh")]
    else:
        system = machine.system_backends
        home = BackendDirectory(installed=machine.backends, system=system, capability="").find(word)
        places = [str(place) for place in (machine.backends, *system)]
    if home is None:
        raise NotFound(f"there is no backend {word}; looked at {', '.join(places)}")
    return home


async def run_backend(
    home: Home,
    on_ready: Callable[[Launch], None],
    *,
    environment: Mapping[str, str],
    port: int,
    model_name: str,
    ready_within: timedelta,
) -> int:
    """Run until interrupted, or until the backend ends; return its exit code. Its output goes to the terminal.

    With port 0, any free port is taken.
    """
    launch = Launch(
        key=ProcessKey(home.name, 0),
        backend=home.name,
        home=home,
        model_id=model_name,
        bind_host=LOOPBACK,
        port=port or take_port(LOOPBACK, 0),
        http_port=take_port(LOOPBACK, 0) if home.manifest.has_openai_port else None,
        front_port=take_port(LOOPBACK, 0) if home.manifest.has_front else None,
        # A token in the environment is kept, because the user's client has it.
        token=environment.get(TOKEN_VARIABLE) or new_secret(),
        http_key=new_secret(),
        mark="corral backend run",
        environment=environment,
    )
    stop = asyncio.Event()
    child = Child(
        name=home.name,
        command=lambda: ChildCommand(argv=launch.argv(), env=launch.variables(), cwd=launch.home.directory),
        ready=lambda: _answers(launch),
        ready_within=ready_within,
        stop_grace=_GRACE,
    )
    async with start_process(child.command()) as process:
        with stop_on_signals(stop, hurry=process.kill):
            if await first_done(stop.wait(), until_ready(child, process)) == 1:
                on_ready(launch)
                if await first_done(stop.wait(), process.wait()) == 1:
                    code = await process.wait()
                    raise ChildFailed(f"{home.name} ended by itself ({describe_exit(code)})")
            return await process.stop(_GRACE)


async def _answers(launch: Launch) -> None:
    """Wait until its gRPC Health responds. Each attempt uses a new connection, because an old one backs off."""
    while True:
        async with Backend(launch.address, token=launch.token) as client:
            with suppress(CorralError):
                return await client.health(timeout=_PROBE)
        await asyncio.sleep(_LOOK_SECONDS)
