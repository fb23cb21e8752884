"""The parent's side of a download: starts the child process and hears it. What came stays for the next attempt."""

from collections.abc import Mapping
from typing import Final

import msgspec

from corral.base.reporting_child import ReportingChild, ReportingKind
from corral.hubs.downloads.orders import (
    DownloadCancelled,
    DownloaderDied,
    DownloadError,
    DownloadLine,
    DownloadOrder,
    DownloadProgress,
    DownloadResult,
    check_order,
)

MODULE: Final = "corral.processes.downloader"
_KIND: Final[ReportingKind[DownloadProgress, DownloadResult]] = ReportingKind(
    name="downloader",
    module=MODULE,
    read_line=msgspec.json.Decoder(DownloadLine).decode,
    progress=DownloadProgress,
    result=DownloadResult,
    errors=DownloadError,
    cancelled=DownloadCancelled,
    died=DownloaderDied,
)


class Downloader(ReportingChild[DownloadProgress, DownloadResult]):
    """The child process that executes one download order.

    `async with Downloader(order, environment=…) as downloader:` starts it; leaving the block ends it.
    """

    def __init__(self, order: DownloadOrder, *, environment: Mapping[str, str]) -> None:
        """Raise DownloadInvalid when the order cannot be executed."""
        check_order(order)
        super().__init__(_KIND, order, environment=environment)
