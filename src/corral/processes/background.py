"""`corral up` in the background: starts it for a command that needs a fleet, and stops it again.

The fleet outlives the command that started it. Its own lock says whether it runs, its `up.json` when it is ready.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import ChildFailed, DataInUse, NotFound, PeerUnavailable
from corral.base.private_files import held, make_private_directory
from corral.processes.exit_codes import ExitCode
from corral.processes.settings import child_environment
from corral.processes.settings_sources import SettingSources
from corral.processes.up_file import LOCK, UpFile, read_up_file

_LOOK_SECONDS: Final = 0.1
_OUTPUT: Final = "start.log"
_MOST_OUTPUT: Final = 4000
STOP_PATIENCE: Final = timedelta(minutes=1)
"""Far longer than a stop takes, which has a limit of its own."""


class BackgroundFleet(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet that is ready."""

    content: UpFile
    is_new: bool
    """False: another command had started it meanwhile."""
    output: Path


def is_running(data: Path) -> bool:
    """Whether a `corral up` runs in this data directory, ready or not."""
    if not (data / LOCK).exists():
        return False
    try:
        with held(data / LOCK, ""):
            return False
    except DataInUse:
        return True


def start_fleet(sources: SettingSources, data: Path, *, on_wait: Callable[[], None]) -> BackgroundFleet:
    """Start `corral up`, or wait for one that is starting, until it is ready. ChildFailed says what it complained of.

    `on_wait` is called about ten times a second. An interrupt stops the fleet that this call started.
    """
    output = make_private_directory(make_private_directory(data) / "logs") / _OUTPUT
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "corral", "up"],
            env=child_environment(sources, {"CORRAL_DATA": str(data.absolute())}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in this terminal is not for it
        )
    try:
        while True:
            content = read_up_file(data)
            if content is not None and content.pids.up == process.pid:
                return BackgroundFleet(content=content, is_new=True, output=output)
            code = process.poll()
            if code == ExitCode.IN_USE and is_running(data):
                if content is not None:
                    return BackgroundFleet(content=content, is_new=False, output=output)
            elif code is not None:
                raise ChildFailed(f"`corral up` did not start: {_complaint(output)}")
            on_wait()
            time.sleep(_LOOK_SECONDS)
    except BaseException:
        if process.poll() is None:
            process.terminate()
            process.wait()
        raise


def _complaint(output: Path) -> str:
    """The last error that it printed, or its last lines."""
    with output.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_OUTPUT))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else " ".join(lines[-3:]) or f"it said nothing; see {output.parent}"


def stop_fleet(data: Path) -> int:
    """End the fleet of this data directory, wait until it is gone, and return its pid. NotFound when there is none."""
    content = read_up_file(data)
    if not is_running(data):
        raise NotFound(f"no `corral up` runs in {data}; name another data directory with --data")
    if content is None or not content.pids.up:
        raise PeerUnavailable(f"the `corral up` in {data} is starting or stopping at the moment; try again")
    os.kill(content.pids.up, signal.SIGTERM)
    give_up_at = time.monotonic() + STOP_PATIENCE.total_seconds()
    while is_running(data):
        if time.monotonic() > give_up_at:
            raise PeerUnavailable(f"the `corral up` in {data} does not end; its process id is {content.pids.up}")
        time.sleep(_LOOK_SECONDS)
    return content.pids.up
