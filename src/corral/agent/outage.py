"""Saying once that something fails, once when the reason changes, and once that it works."""

import logging


class Outage:
    """One thing that may fail for hours while it is tried every few seconds."""

    def __init__(self, log: logging.Logger, *, event: str, what: str, patience: int = 0) -> None:
        """The first `patience` failures in a row are nothing to be alarmed about: others may just be starting."""
        self._log = log
        self._event = event
        self._what = what
        self._patience = patience
        self._failures = 0
        self._told: tuple[int, str] | None = None

    def failed(self, problem: str) -> None:
        self._failures += 1
        level = logging.INFO if self._failures <= self._patience else logging.WARNING
        if (level, problem) == self._told:
            return
        self._told = (level, problem)
        self._log.log(level, "%s: %s", self._what, problem, extra={"event": f"{self._event}.failing"})

    def worked(self) -> None:
        self._failures = 0
        if self._told is None:
            return
        self._told = None
        self._log.info("%s: works now", self._what, extra={"event": f"{self._event}.works"})
