"""Saying once that something fails, once when the reason changes, and once that it works."""

import logging


class Outage:
    """One thing that may fail for hours while it is tried every few seconds."""

    def __init__(self, log: logging.Logger, *, event: str, what: str) -> None:
        self._log = log
        self._event = event
        self._what = what
        self._problem: str | None = None

    def failed(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        self._log.warning("%s: %s", self._what, problem, extra={"event": f"{self._event}.failing"})

    def worked(self) -> None:
        if self._problem is None:
            return
        self._problem = None
        self._log.info("%s: works now", self._what, extra={"event": f"{self._event}.works"})
