"""The puller process: fetches, checks and unpacks one image, and reports its progress.

    python -m corral.processes.puller --order DESCRIPTOR

The order comes through an inherited descriptor, since it holds credentials. Lines of JSON go to the standard
output: progress, and at the end a result or a failure. It ends at SIGTERM, SIGINT, and with its parent.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil
import uvloop

from corral.base.clock import SystemClock
from corral.base.errors import InvalidInput
from corral.base.tasks import end_tasks, running, start_task, stop_on_signals
from corral.oci.errors import ImageError, PolicyInvalid, PullCancelled, TrustUnavailable
from corral.oci.orders import PullFailure, PullLine, PullOrder, PullReporter, PullResult, Scale
from corral.oci.pull import Pull
from corral.oci.signatures.formats import NothingAccepted, SignatureChecker
from corral.processes.exit_codes import ExitCode

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_AUTOGROUP_ATTEMPTS: Final = 5
_AUTOGROUP_PAUSE_SECONDS: Final = 0.1


def main(words: Sequence[str]) -> ExitCode:
    parser = argparse.ArgumentParser(prog="corral puller")
    parser.add_argument("--order", type=int, required=True, help="the inherited descriptor that the order comes from")
    with os.fdopen(parser.parse_args(words).order, "rb") as file:
        order = msgspec.json.decode(file.read(), type=PullOrder)
    os.umask(0o022)
    step_back(order.niceness)
    return uvloop.run(run_puller(order))


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


async def run_puller(order: PullOrder) -> ExitCode:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        scale = Scale()
        reporter = PullReporter(scale, _tell, SystemClock())
        async with running(reporter.run(), name="progress"):
            line = await _outcome(order, scale, stop)
        reporter.flush()
        _tell(line)
    return ExitCode.OK if isinstance(line, PullResult) else ExitCode.FAILED


async def _outcome(order: PullOrder, scale: Scale, stop: asyncio.Event) -> PullResult | PullFailure:
    stopping = start_task(stop.wait(), name="stop")
    try:
        pull = Pull(order, scale=scale, clock=SystemClock(), checker=checker_for(order))
        work = start_task(pull.run(), name="pull")
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await end_tasks(work)
            raise PullCancelled
        return await work
    except ImageError as error:
        return PullFailure(code=error.code, message=str(error), retryable=error.retryable)
    finally:
        await end_tasks(stopping)


def checker_for(order: PullOrder) -> SignatureChecker:
    """Return the checker for the order's policy. Large libraries are loaded only when needed."""
    policy = order.verification
    if policy is None:
        return NothingAccepted()
    if policy.is_keyless:
        from corral.oci.signatures.keyless import KeylessChecker, TrustRootUnusable

        try:
            return KeylessChecker(policy, trusted_root=Path(order.trusted_root) if order.trusted_root else None)
        except TrustRootUnusable as error:
            raise TrustUnavailable(str(error)) from error
    from corral.oci.signatures.keyed import KeyChecker

    try:
        return KeyChecker(policy)
    except InvalidInput as error:
        raise PolicyInvalid(f"the gallery's {error}") from error


def _tell(line: PullLine) -> None:
    """Write the line with one call: the parent reads whole lines, all the time."""
    data = msgspec.json.encode(line) + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
