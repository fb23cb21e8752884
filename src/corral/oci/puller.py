"""The parent's side of a pull: starts the child process, hears it, and removes what a failed one unpacked."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from corral.base.reporting_child import ReportingChild, ReportingKind
from corral.oci.errors import ImageError, PullCancelled, PullerDied
from corral.oci.orders import PullLine, PullOrder, PullProgress, PullResult
from corral.oci.tree import empty, is_directory

MODULE: Final = "corral.processes.puller"
_KIND: Final[ReportingKind[PullProgress, PullResult]] = ReportingKind(
    name="puller",
    module=MODULE,
    read_line=msgspec.json.Decoder(PullLine).decode,
    progress=PullProgress,
    result=PullResult,
    errors=ImageError,
    cancelled=PullCancelled,
    died=PullerDied,
)


class Puller(ReportingChild[PullProgress, PullResult]):
    """The child process that executes one pull.

    `async with Puller(order, environment=…) as puller:` starts it; leaving the block early stops it and removes what it
    unpacked.
    """

    def __init__(self, order: PullOrder, *, environment: Mapping[str, str]) -> None:
        super().__init__(_KIND, order, environment=environment)
        self._target = Path(order.target)
        self._was_there = self._is_foreign = False

    def start(self) -> None:
        """Start the child and return at once. Raise ChildFailed when it cannot be started."""
        self._was_there = is_directory(self._target)
        self._is_foreign = self._was_there and bool(os.listdir(self._target))
        super().start()

    def clean_up(self) -> None:
        """Remove the target of a puller that died. Leave a target that was not empty before the pull."""
        if not is_directory(self._target) or self._is_foreign:
            return
        if self._was_there:
            empty(self._target)
        else:
            shutil.rmtree(self._target, ignore_errors=True)
