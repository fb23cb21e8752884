"""The puller process: fetches, checks and unpacks one image, and reports its progress.

    python -m corral.processes.puller --order DESCRIPTOR

The order comes through an inherited descriptor, since it holds credentials. Lines of JSON go to the standard
output: progress, and at the end a result or a failure. It ends at SIGTERM, SIGINT, and with its parent.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from corral.base.clock import SystemClock
from corral.base.disclosure import refuse_inspection
from corral.base.errors import InvalidInput
from corral.base.reporting_child import FailureLine
from corral.base.tasks import end_tasks, running, start_task, stop_on_signals
from corral.oci.errors import ImageError, PolicyInvalid, PullCancelled, TrustUnavailable
from corral.oci.orders import PullOrder, PullReporter, PullResult, Scale
from corral.oci.pull import Pull
from corral.oci.signatures.formats import NothingAccepted, SignatureChecker
from corral.processes.exit_codes import ExitCode
from corral.processes.reporting import read_order, step_back, tell


def main(words: Sequence[str]) -> ExitCode:
    order = read_order(words, PullOrder, name="puller")
    os.umask(0o022)
    step_back(order.niceness)
    refuse_inspection()  # the order has credentials
    return uvloop.run(run_puller(order))


async def run_puller(order: PullOrder) -> ExitCode:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        scale = Scale()
        reporter = PullReporter(scale, tell, SystemClock())
        async with running(reporter.run(), name="progress"):
            line = await _outcome(order, scale, stop)
        reporter.flush()
        tell(line)
    return ExitCode.OK if isinstance(line, PullResult) else ExitCode.FAILED


async def _outcome(order: PullOrder, scale: Scale, stop: asyncio.Event) -> PullResult | FailureLine:
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
        return FailureLine.of(error)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
