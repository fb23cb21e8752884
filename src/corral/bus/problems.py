"""Problems of the bus that no caller gets as an exception: they are counted, logged and passed to listeners."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 60.0
_MOST_REMEMBERED: Final = 1000


class ProblemKind(StrEnum):
    """Stable names, also used in metrics."""

    UNREACHABLE = "unreachable"
    """No server could be connected to."""
    UNAUTHORIZED = "unauthorized"
    """A server refused our credentials, or stopped accepting them."""
    DISCONNECTED = "disconnected"
    """A connection was lost."""
    PERMISSION_DENIED = "permission_denied"
    """The server refused a message, or a subscription that no call was waiting for."""
    SLOW_CONSUMER = "slow_consumer"
    """Messages were dropped because handlers did not keep up."""


_ERRORS: Final = frozenset({ProblemKind.UNAUTHORIZED, ProblemKind.PERMISSION_DENIED, ProblemKind.SLOW_CONSUMER})
_ENDURING: Final = frozenset({ProblemKind.UNREACHABLE, ProblemKind.UNAUTHORIZED})


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong. Holds no secret."""

    kind: ProblemKind
    detail: str
    subject: str = ""


class Problems:
    """Counts problems, and passes each to the listeners. An identical one is logged at most once a minute."""

    def __init__(self) -> None:
        self.counts: Counter[ProblemKind] = Counter()
        """How many of each kind since the start."""
        self.enduring: Problem | None = None
        """Why there is no connection now, when a reason is known."""
        self._listeners: list[Callable[[Problem], None]] = []
        self._logged: dict[Problem, float] = {}

    def listen(self, listener: Callable[[Problem], None]) -> Callable[[], None]:
        """Call the listener for each problem. Return a function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def report(self, problem: Problem) -> None:
        self.counts[problem.kind] += 1
        now = time.monotonic()
        if now - self._logged.get(problem, -_QUIET_SECONDS) >= _QUIET_SECONDS:
            if len(self._logged) >= _MOST_REMEMBERED:
                self._logged.clear()
            self._logged[problem] = now
            fields = {"kind": problem.kind, **({"subject": problem.subject} if problem.subject else {})}
            if problem.kind in _ERRORS:
                log.error("bus: %s", problem.detail, extra={"event": "bus.failing", **fields})
            else:
                log.warning("bus: %s", problem.detail, extra={"event": "bus.impaired", **fields})
        if problem.kind in _ENDURING:
            self.enduring = problem
        for listener in list(self._listeners):
            try:
                listener(problem)
            except Exception:
                log.exception("listener failed", extra={"event": "bus.listener_failed"})

    def overcome(self) -> None:
        """A connection is established again."""
        self.enduring = None
        self._logged.clear()
