"""The downloader process: has the files of one order, and reports its progress.

    python -m corral.processes.downloader --order DESCRIPTOR

The order comes through an inherited descriptor, since it holds credentials. Lines of JSON go to the standard output:
progress, and at the end a result or a failure. A signal ends it at once, and nothing of what came is lost.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from corral.base.clock import SystemClock
from corral.base.disclosure import refuse_inspection
from corral.base.reporting_child import FailureLine
from corral.base.tasks import running
from corral.hubs.downloads.download import Download, DownloadReporter
from corral.hubs.downloads.orders import DownloadError, DownloadOrder, DownloadResult
from corral.hubs.downloads.transfers import RangeTransfers
from corral.processes.exit_codes import ExitCode
from corral.processes.reporting import read_order, step_back, tell


def main(words: Sequence[str]) -> ExitCode:
    order = read_order(words, DownloadOrder, name="downloader")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    step_back(order.niceness)
    refuse_inspection()  # the order has credentials
    return asyncio.run(run_downloader(order))


async def run_downloader(order: DownloadOrder) -> ExitCode:
    line: DownloadResult | FailureLine
    try:
        download = Download(order, clock=SystemClock())
        reporter = DownloadReporter(download, tell, SystemClock())
        try:
            with RangeTransfers(order.network, order.limits) as transfers:
                async with running(reporter.run(), name="progress"):
                    line = await download.run(transfers)
        finally:
            reporter.flush()
    except DownloadError as error:
        line = FailureLine.of(error)
    tell(line)
    return ExitCode.OK if isinstance(line, DownloadResult) else ExitCode.FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
