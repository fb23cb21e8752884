"""What child processes with one order share: how they get it, how they report, and that they disturb nobody."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import psutil

OrderT = TypeVar("OrderT", bound=msgspec.Struct)

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_AUTOGROUP_ATTEMPTS: Final = 5
_AUTOGROUP_PAUSE_SECONDS: Final = 0.1


def read_order(words: Sequence[str], kind: type[OrderT], *, name: str) -> OrderT:
    """Read the order from the inherited descriptor that the arguments name: it holds credentials."""
    parser = argparse.ArgumentParser(prog=f"corral {name}")
    parser.add_argument("--order", type=int, required=True, help="the inherited descriptor that the order comes from")
    with os.fdopen(parser.parse_args(words).order, "rb") as file:
        return msgspec.json.decode(file.read(), type=kind)


def tell(line: msgspec.Struct) -> None:
    """Write the line with one call: the parent reads whole lines, all the time."""
    data = msgspec.json.encode(line) + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def step_back(niceness: int) -> None:
    """Lower the priority below everything that serves: an install takes minutes anyway, a token must not wait."""
    if not niceness:
        return
    os.nice(niceness)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # batch: never preempts running processes
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, 7)
        if os.getsid(0) == os.getpid():  # else the session is not ours alone
            _lower_session(niceness)


def _lower_session(niceness: int) -> None:
    """Kernels with autogroups share CPUs among sessions first, and niceness counts only within one."""
    for _ in range(_AUTOGROUP_ATTEMPTS):
        try:
            _AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:  # changed a moment ago: the kernel limits the rate
            time.sleep(_AUTOGROUP_PAUSE_SECONDS)
        except OSError:
            return  # no autogroups
        else:
            return
