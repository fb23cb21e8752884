"""The protocol with a process that plays acts and dies in them: `CrashDriver` gives orders, `take_orders` takes them.

Orders are lines of JSON. Each is answered with an exit code when the act's process, and everything that it had started,
is gone. That process is forked, so that a thousand deaths do not cost a thousand starts of Python.
"""

import asyncio
import ctypes
import json
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from chaos.crash_shim import steps_in
from chaos.round import Workshop
from tests.kit.waiting import WAIT_TIMEOUT

_ROOT: Final = Path(__file__).absolute().parents[1]
_KILLED: Final = -9
_SUBREAPER: Final = 36


class CrashDriver:
    """Has acts played in folders below the workshop's directory, each up to a chosen step."""

    def __init__(self, workshop: Workshop, process: asyncio.subprocess.Process) -> None:
        self._workshop = workshop
        self._process = process
        self._trace = workshop.directory / "trace"
        self._runs = 0
        self._orders = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, workshop: Workshop, module: str) -> AsyncIterator["CrashDriver"]:
        """Start `module`, whose main function calls `take_orders`."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdin=pipe, stdout=pipe, cwd=_ROOT)
        try:
            yield cls(workshop, process)
        finally:
            process.kill()
            await process.wait()

    def next_folder(self) -> Path:
        """A path for the next run that does not exist yet. The folder of the last run is deleted."""
        shutil.rmtree(self._workshop.directory / f"run-{self._runs}", ignore_errors=True)
        self._runs += 1
        return self._workshop.directory / f"run-{self._runs}"

    async def play(self, folder: Path, *, fatal: int, **order: object) -> int:
        """Play the act that `order` describes, kill it at step `fatal` (0: never), and return its exit code."""
        self._trace.unlink(missing_ok=True)
        self._orders += 1
        # The site is never the same folder twice: Python would take the byte code of the old one for it.
        order |= {"folder": str(folder), "site": str(folder / f"site-{self._orders}")}
        order |= {"trace": str(self._trace), "fatal": fatal}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
            return int(await self._process.stdout.readline())

    async def play_up_to(self, folder: Path, *, fatal: int, **order: object) -> None:
        """Play the act, and check that it came to its end or was killed at its fatal step.

        Concurrent work may take one step less than last time. Then the fatal step is never reached.
        """
        code = await self.play(folder, fatal=fatal, **order)
        assert code in ((0, _KILLED) if fatal else (0,)), f"{order} with {fatal} as its last step ended with {code}"

    def steps(self) -> list[str]:
        """The steps of the last act that was played."""
        return steps_in(self._trace)

    def chosen_steps(self, count: int) -> list[int]:
        """Numbers of the steps to kill at: as many as the workshop has, chosen by its seed, or all of them."""
        return sorted(self._workshop.random.sample(range(1, count + 1), min(count, self._workshop.steps)))


def take_orders(act: Callable[[dict[str, Any]], None]) -> None:
    """Play every order of standard input in a forked process, which `act` must end, and print its exit code."""
    logging.disable(logging.CRITICAL)  # what matters is what is left on the disk
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # so that we can wait for what a killed child had started
    for line in sys.stdin:
        child = os.fork()
        if not child:
            act(json.loads(line))
        print(_exit_code(child), flush=True)


def _exit_code(child: int) -> int:
    """The exit code of the child, after all of its descendants have ended too."""
    code = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def write_site(site: Path, limits: dict[str, Any], *, takes_parent: bool = True) -> None:
    """Write a `sitecustomize.py` that arms the shim in the process that fetches: its environment names this folder."""
    site.mkdir(exist_ok=True)
    text = f"from chaos.crash_shim import Shim\nShim(**{limits!r}, takes_parent={takes_parent}).arm()\n"
    (site / "sitecustomize.py").write_text(text)
