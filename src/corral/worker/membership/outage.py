"""Saying once that something fails, once when the reason changes, and once that it works."""

import logging
from datetime import timedelta

from corral.base.clock import Clock


class Outage:
    """One thing that may fail for hours while it is tried every few seconds."""

    def __init__(
        self, log: logging.Logger, clock: Clock, *, event: str, what: str, patience: timedelta = timedelta(0)
    ) -> None:
        """An outage shorter than `patience` is nothing to be alarmed about: others may just be starting."""
        self._clock = clock
        self._log = log
        self._event = event
        self._what = what
        self._patience = patience
        self._began: float | None = None
        self._told: tuple[int, str] | None = None

    def failed(self, problem: str) -> None:
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now
        is_short = now - self._began < self._patience.total_seconds()
        level = logging.INFO if is_short else logging.WARNING
        if (level, problem) == self._told:
            return
        self._told = (level, problem)
        self._log.log(level, "%s: %s", self._what, problem, extra={"event": f"{self._event}.failing"})

    def worked(self) -> None:
        self._began = None
        if self._told is None:
            return
        self._told = None
        self._log.info("%s: works now", self._what, extra={"event": f"{self._event}.works"})
